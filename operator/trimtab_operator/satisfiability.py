"""What no policy and no job shows alone: whether a policy can do for this job what it says. Pure."""

from collections.abc import Mapping
from typing import Any, cast

from trimtab_policies.policy import GuardPolicySpec
from trimtab_policies.reach import reach
from trimtab_policies.rules import Action

REPLICA_CHECK_EVERY = 50
STREAM_RECORDS = 2_000
"""The trainer's defaults of `replicaCheckEvery` and `telemetry.streamRecords`."""


def unsatisfiable(policy: GuardPolicySpec, config: Mapping[str, Any]) -> tuple[str, ...]:
    """One sentence for each thing that the policy asks of a job with this `spec.trainer.config` and cannot get.

    A field of the wrong type is skipped here: the trainer reports it.
    """
    problems: list[str] = []
    every = _whole(config.get("replicaCheckEvery"), REPLICA_CHECK_EVERY)
    margin = policy.remediation.margin
    rolls_back = any(rule.action is Action.ROLLBACK for rule in policy.rules)
    if rolls_back and every > margin:
        problems.append(
            f"spec.remediation.margin is {margin} and must be at least the job's "
            f"spec.trainer.config.replicaCheckEvery, which is {every}: a damaged replica could be older than the "
            "checkpoint that is restored"
        )
    telemetry: object = config.get("telemetry")
    kept = cast("Mapping[str, Any]", telemetry).get("streamRecords") if isinstance(telemetry, Mapping) else None
    stream = _whole(kept, STREAM_RECORDS)
    problems += [
        f"rule {rule.name} looks back over {reach(rule)} records, and the job keeps "
        f"spec.trainer.config.telemetry.streamRecords = {stream}: shorten the rule or keep more"
        for rule in policy.rules
        if reach(rule) > stream
    ]
    return tuple(problems)


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
