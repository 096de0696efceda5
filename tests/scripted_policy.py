"""The policy and the limits of a scripted run, as a TrainingJob and the policy's text would give them."""

from functools import lru_cache

import msgspec
from played_trainer import Scenario
from trimtab_operator.incidents import Latch, PolicyIdentity, RemediationSettings
from trimtab_operator.observation import Limits

POLICY = PolicyIdentity(kind="GuardPolicy", namespace="lab", name="guard", uid="p", generation=1, hash="h1")
THRESHOLD = 5.0
HEALTHY, BAD = 2.0, 9.0


@lru_cache(None)
def policy_of(generation: int) -> PolicyIdentity:
    """The policy after so many edits."""
    return msgspec.structs.replace(POLICY, generation=generation, hash=f"h{generation}")


@lru_cache(None)
def settings_of(scenario: Scenario) -> RemediationSettings:
    """What it says of remediation."""
    return RemediationSettings(
        margin=scenario.margin,
        before=scenario.before,
        after=2,
        probe=16,
        probation_steps=scenario.probation,
        margin_factor=scenario.margin_factor,
        learning_rate=scenario.override,
        approval_seconds=scenario.approval,
    )


@lru_cache(None)
def limits_of(scenario: Scenario, generation: int, suspend: bool) -> Limits:
    """What the TrainingJob says of limits after so many edits."""
    return Limits(
        max_rollbacks=scenario.max_rollbacks,
        max_restarts=scenario.max_restarts,
        window_seconds=86400,
        certify_steps=scenario.certify,
        generation=generation,
        suspend=suspend,
    )


def latch_of(
    scenario: Scenario, rule: str, metric: str, where: tuple[int, int, int], flagged: tuple[int, int]
) -> Latch:
    """A rule that fired; `where`: the attempt, its first bad step and the step at which the rule fired."""
    attempt, first, fired = where
    on_loss = metric == "loss"
    return Latch(
        policy=POLICY,
        rule=rule,
        metric=metric,
        action=scenario.action,
        observed=BAD,
        threshold=THRESHOLD if on_loss else 0.0,
        sigma=4.0 if on_loss else None,
        control_limit=THRESHOLD,
        message=f"{metric} is above its limit",
        attempt=attempt,
        first_bad_step=first,
        fired_step=fired,
        flagged=flagged,
        remediation=settings_of(scenario),
        rule_text={},
        healthy=scenario.healthy,
    )
