"""Which checkpoints must stay, and why; nothing needs the others any more. Pure.

A run that breaks must find the checkpoint it would have found had nothing ever been deleted, as far as it goes back
for a first plan; and a certified one behind every damage that is noticed late, at about twice the distance at most. So
all of the last steps stay, and behind them certified ones at distances that grow by a factor of two. As distances only
grow while a run trains, what is left out once is never missed on a later rung.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trimtab_policies.policy import GuardPolicySpec
from trimtab_policies.reach import reach
from trimtab_policies.rules import Action

from trimtab_operator.observation import RetentionSettings
from trimtab_operator.run_state import RESTORABLE, Checkpoint, CheckpointState, RunState
from trimtab_operator.selection import why_not_restore

LEAST_REACH = 4_000
"""So many steps back certified ones are kept in any case: a slow divergence is noticed thousands of steps late."""
FURTHEST_REACH = 1_000_000_000
"""More steps than any run has; margins that grow with each plan soon know no bound."""
CERTIFIED_KEPT = 2
LEAST_PLANS = 2
"""Where no rollback is allowed, people roll back; and one checkpoint may fail to restore."""
RUNG_FACTOR = 2
"""How much further back the next rung may lie."""
NOBODY: Final[Mapping[str, str]] = MappingProxyType({})
"""No other run goes on from any checkpoint of a run."""


@dataclass(frozen=True, slots=True)
class Fate:
    """A checkpoint, why it is kept and until when; no reason: it may be deleted."""

    checkpoint: Checkpoint
    kept: str
    until: str = ""


def retention_settings(
    *,
    keep_last: int,
    keep_every: int | None,
    certify_steps: int,
    max_rollbacks: int,
    policies: Iterable[GuardPolicySpec],
) -> RetentionSettings:
    """The settings that a job's fields and the policies in force amount to."""
    near, furthest = 0, LEAST_REACH
    for policy in policies:
        rolling_back = [rule for rule in policy.rules if rule.action is Action.ROLLBACK]
        if not rolling_back:
            continue
        remediation = policy.remediation
        streak = max(rule.within_records or rule.for_records for rule in rolling_back)
        near = max(near, streak + remediation.margin)
        last_margin = remediation.margin * remediation.escalate.margin_factor**max_rollbacks
        furthest = max(furthest, max(map(reach, rolling_back)) + min(FURTHEST_REACH, round(last_margin)))
    return RetentionSettings(
        keep_last=keep_last,
        keep_every=keep_every,
        certify_steps=certify_steps,
        near=near,
        reach=furthest,
        plans=max(LEAST_PLANS, max_rollbacks),
    )


def review(
    state: RunState, settings: RetentionSettings, judged_step: int, continued: Mapping[str, str] = NOBODY
) -> tuple[Fate, ...]:
    """Every checkpoint that is not being deleted yet, oldest step first, and why it is kept; ages count from
    `judged_step`, the last step that rules have looked at. `continued` says which run goes on from a checkpoint, by the
    manifest's key."""
    checkpoints = [one for one in state.checkpoints if one.state is not CheckpointState.DELETING]
    needed = _needed(state, settings, judged_step, continued)
    return tuple(Fate(one, *needed.get(one.reference.key, ("",))) for one in checkpoints)


def _needed(
    state: RunState, settings: RetentionSettings, judged_step: int, continued: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Why each checkpoint that something needs is needed, and until when, by its manifest's key; the first reason of
    the order below counts."""
    reasons: dict[str, tuple[str, str]] = {}

    def keep(checkpoints: Iterable[Checkpoint], why: str, until: str, steps: int = 0) -> None:
        for one in checkpoints:
            reasons.setdefault(one.reference.key, (why, until.format(one.reference.step + steps)))

    if state.incident is not None:
        keep(state.checkpoints, "any may be named or chosen", f"incident {state.incident.name} is closed")
    restored = state.directive.restore if state.directive is not None else None
    named = (one for one in state.checkpoints if one.reference == restored)
    keep(named, "the directive in force restores it", "another one restores another")
    for one in state.checkpoints:
        if one.reference.key in continued:
            keep([one], f"run {continued[one.reference.key]} goes on from it", "that run is over")
    spared = (one for one in state.checkpoints if one.reference.key in state.spared)
    keep(spared, "it could not be deleted", "somebody deletes it by hand")

    failed = state.unproved
    unproved = (one for one in state.checkpoints if one.reference.key in failed)
    keep(unproved, "it is what was saved, and did not behave so when it was restored", "the job is edited")

    foreign = (one for one in state.checkpoints if one.of_source)
    keep(foreign, "it belongs to the run that this one continues", "that run deletes it")

    own = [one for one in reversed(state.checkpoints) if not one.of_source]
    usable = [one for one in own if one.state in RESTORABLE and not why_not_restore(state, one)]
    certified = [one for one in usable if one.state is CheckpointState.CERTIFIED]
    behind_start = sum(one.reference.step > 0 for one in certified)
    if not any(one.reference.step > 0 for one in usable):
        keep(own, "no other behind the start may be restored", "one may be")
    last = settings.keep_last
    keep(usable[:last], f"one of the last {last} (checkpoint.keepLast)", f"{last} newer ones are there")
    newer = f"{CERTIFIED_KEPT} newer ones are certified"
    keep(certified[:CERTIFIED_KEPT], f"one of the last {CERTIFIED_KEPT} certified", newer)
    near = settings.near
    within = _near(usable, judged_step, near)
    keep(within, f"a first plan may go back {near} steps", f"a newer one is {near} steps old")
    milestones = _milestones(usable, settings.keep_every)
    keep(milestones, f"a milestone (checkpoint.keepEvery: {settings.keep_every})", "somebody deletes it by hand")
    # Each doubling of the distance has a rung of its own, and keeps one when the others are thinned out.
    far = settings.reach * RUNG_FACTOR ** (settings.plans - 1)
    rungs = _rungs(certified if behind_start >= CERTIFIED_KEPT else usable, judged_step, far)
    keep(rungs, f"a rung of the ladder that reaches back {far} steps", "its neighbours are close enough")
    grace = 2 * settings.certify_steps
    pending = [one for one in usable if one not in certified and judged_step - one.reference.step < grace]
    keep(_rungs(pending, judged_step, grace), "it may still be certified", "step {} is judged", grace)
    if behind_start < CERTIFIED_KEPT:
        start = (one for one in usable if one.reference.step == 0)
        keep(start, "the state before the first step", f"{CERTIFIED_KEPT} are certified")
    return reasons


def _near(newest_first: Sequence[Checkpoint], judged_step: int, near: int) -> list[Checkpoint]:
    """Those that a first plan may choose: all of the last steps, and the newest one behind them."""
    within = [one for one in newest_first if judged_step - one.reference.step <= near]
    return [*within, *newest_first[len(within) : len(within) + 1]]


def _milestones(newest_first: Sequence[Checkpoint], every: int | None) -> list[Checkpoint]:
    """The first one at or behind each multiple of `every` steps."""
    if every is None:
        return []
    first = {one.reference.step // every: one for one in newest_first}
    return [one for number, one in first.items() if number > 0]


def _rungs(newest_first: Sequence[Checkpoint], judged_step: int, far: int) -> list[Checkpoint]:
    """The newest, and then each time the oldest that is at most `RUNG_FACTOR` times as old as the one before it, or the
    next one where none is; down to the first that is at least `far` steps old, or to the oldest of all."""
    ages = [judged_step - one.reference.step for one in newest_first]
    rungs: list[Checkpoint] = []
    index = 0
    while index < len(ages):
        rungs.append(newest_first[index])
        if ages[index] >= far:
            break
        following = index + 1
        while following + 1 < len(ages) and ages[following + 1] <= RUNG_FACTOR * ages[index]:
            following += 1
        index = following
    return rungs
