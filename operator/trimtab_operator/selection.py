"""Which checkpoint to restore, and why not the others. Pure.

Only checkpoints of the surviving history count: one taken in an abandoned attempt is never chosen, whoever asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab_operator.incidents import Candidate, Incident
from trimtab_operator.run_state import Checkpoint, CheckpointState, RunState

ENOUGH_UNPROVED = 2
"""After so many checkpoints that are what was saved and do not behave so, no further one is tried."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen checkpoint, or None, and what was thought of each one, newest first."""

    target: Checkpoint | None
    candidates: tuple[Candidate, ...]
    bound: int


def rollback_bound(state: RunState) -> int:
    """The newest step a rollback of the open incident may restore.

    The first plan goes `margin` steps before the first bad one; each relapse multiplies the margin and goes behind
    the target that was restored and did not help, and so does a rollback that a person asks for. Where no rule fired,
    it is the step at which the run holds; and a checkpoint goes before the windows that a person wants skipped.
    """
    incident = state.incident
    if incident is None:
        message = "a rollback needs an open incident"
        raise ValueError(message)
    settings = incident.latch.remediation
    margin = round(settings.margin * settings.margin_factor**incident.relapses)
    bound = incident.latch.first_bad_step - margin
    if incident.latch.asked is not None:
        bound = incident.held_step if incident.held_step is not None else incident.latch.fired_step
    if incident.wishes.skip is not None:
        bound = min(bound, state.ledger.steps_before(incident.wishes.skip[0]))
    tried = incident.carried_out
    if (incident.relapses or incident.asked) and tried is not None:
        bound = min(bound, tried.target.step - 1)
    return bound


def select_rollback(state: RunState) -> Selection:
    """The checkpoint the open incident goes back to.

    Verified and certified ones count, and committed ones too: they are verified whole by the world that restores
    them, so the choice does not depend on how far background verification had got. After a relapse a certified one
    is preferred, and for a rule on divergence, whose damage begins long before it is found. The state at step 0, or
    the checkpoint that the run continues, is the last candidate whatever the bound.
    """
    bound = rollback_bound(state)
    incident = state.incident
    proved = "" if incident is None else _preference(incident)
    usable: list[Checkpoint] = []
    thoughts: list[tuple[Checkpoint, str]] = []
    for checkpoint in _newest_first(state):
        why_not = why_not_restore(state, checkpoint)
        step = checkpoint.reference.step
        if not why_not and step > bound and step > 0 and not checkpoint.of_source:
            why_not = f"newer than step {bound}, the first bad step less the margin"
        if not why_not:
            usable.append(checkpoint)
        thoughts.append((checkpoint, why_not))
    certified = [item for item in usable if item.state is CheckpointState.CERTIFIED]
    target = (certified if proved and certified else usable)[0] if usable else None
    return Selection(target, _explain(thoughts, target, proved), bound)


def _preference(incident: Incident) -> str:
    """When a certified checkpoint goes before a newer one, in words; empty where the newest old enough does."""
    if incident.relapses:
        return "after a relapse"
    return "for a rule on divergence" if incident.latch.on_divergence else ""


def select_named(state: RunState, key: str) -> Selection:
    """The checkpoint that a person names by its manifest: where it may not be restored, no other takes its place."""
    named = state.checkpoint(key)
    why_not = why_not_restore(state, named) if named is not None else "not known"
    if named is None or why_not:
        step = named.reference.step if named is not None else 0
        return Selection(None, _explain([(named, why_not)] if named else [], None, ""), step)
    thought = Candidate(
        step=named.reference.step, attempt=named.attempt, state=named.state.value, chosen=True, why="named by a person"
    )
    return Selection(named, (thought,), named.reference.step)


def select_restart(state: RunState) -> Checkpoint | None:
    """The checkpoint a new world starts from after a fault: the newest one of the surviving history."""
    return next((item for item in _newest_first(state) if not why_not_restore(state, item)), None)


def known_level(state: RunState, step: int) -> float | None:
    """The lowest loss that the surviving history is known to have had up to a step: what its checkpoints measured."""
    losses = [
        one.loss
        for one in state.checkpoints
        if one.loss is not None and one.reference.step <= step and state.surviving(one)
    ]
    return min(losses, default=None)


def _newest_first(state: RunState) -> list[Checkpoint]:
    return sorted(state.checkpoints, key=lambda item: (item.reference.step, item.attempt), reverse=True)


def why_not_restore(state: RunState, checkpoint: Checkpoint) -> str:
    """Why a checkpoint is never restored, whoever asks; empty when it may be."""
    if not state.surviving(checkpoint):
        return f"taken in attempt {checkpoint.attempt}, which is no part of the surviving history at this step"
    if checkpoint.state is CheckpointState.DELETING:
        return "being deleted: nothing needed it any more"
    if checkpoint.state is CheckpointState.QUARANTINED:
        return f"quarantined: {checkpoint.why}"
    failures = state.restore_failures.count(checkpoint.reference.key)
    if failures:
        return f"failed to restore {failures} time(s)"
    return ""


def told_unproved(keys: Sequence[str], why: str) -> str:
    """Why no further checkpoint is tried, once several behave otherwise than when they were saved."""
    return (
        f"{len(keys)} checkpoints hold what was saved and behave otherwise than they did then, so what runs them is to "
        f"blame and none of them: compare spec.trainer.image, the nodes' processors and the data with before; {why}"
    )


def _explain(thoughts: list[tuple[Checkpoint, str]], target: Checkpoint | None, proved: str) -> tuple[Candidate, ...]:
    explained: list[Candidate] = []
    for checkpoint, why_not in thoughts:
        chosen = target is not None and checkpoint.reference.key == target.reference.key
        why = why_not
        if chosen and checkpoint.of_source:
            why = "the last candidate: the checkpoint that this run continues"
        elif chosen:
            why = (
                "the newest certified one old enough"
                if proved and checkpoint.state is CheckpointState.CERTIFIED
                else ("the newest one old enough")
            )
        elif not why and target is not None and checkpoint.reference.step > target.reference.step:
            why = f"not certified, and {proved} a certified one is preferred"
        elif not why:
            why = "an older one than the chosen"
        explained.append(
            Candidate(
                step=checkpoint.reference.step,
                attempt=checkpoint.attempt,
                state=checkpoint.state.value,
                chosen=chosen,
                why=why,
            )
        )
    return tuple(explained)
