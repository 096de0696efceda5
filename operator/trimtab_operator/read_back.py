"""Which checkpoints a Job of its own reads back, because no other host of their world can: intent and result. Pure.

A world of one node has its own word only; one that has finished or is suspended has nobody left; and one of several
nodes reads each checkpoint once, so that what its store did not hand out then, or what it left unread at its end, stays
so. Nothing waits for the Job, whatever becomes of it, but for the last checkpoint of a finished world, which is waited
for in any case.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from trimtab_contract.directives import CheckpointReference
from trimtab_contract.journal import Phase
from trimtab_contract.read_back import MOST_ORDERED, ReadBack

from trimtab_operator import final_checkpoint
from trimtab_operator.checkpoint_records import checkpoint_record, quarantine
from trimtab_operator.commands import Append, Command, Draft
from trimtab_operator.observation import Observation, ReadBackOutcome
from trimtab_operator.run_state import Checkpoint, CheckpointState, JournalAction, ReadBackOrder, RunPhase, RunState
from trimtab_operator.selection import why_not_restore

NEWEST = MOST_ORDERED
"""So many of the newest checkpoints matter: the next world starts from one of them, and the last one is what the run is
made for. An older one is restored by later plans only, and verified whole as they read it."""
TRIES = 3
"""After so many Jobs that could not say anything of a checkpoint, none is started for it any more."""
READ_SINCE = 2
"""A world of several nodes reads in order: once it has read so many newer ones, it comes back to none before them."""
PAUSE_SECONDS = 300.0
"""Between two Jobs of a world that trains, which may save every few seconds."""
RETRY_SECONDS = 600.0
"""Before a checkpoint is tried again."""

START_SECONDS = 600
"""What a pod may take until it runs."""
PATIENCE_SECONDS = 600
"""What the store may be away, for each checkpoint."""
LEAST_BYTES_PER_SECOND = 16 * 1024 * 1024
"""Slower than any store that trains a model of that size."""
UNKNOWN_SIZE_SECONDS = 6 * 3600
"""For a checkpoint of which the journal does not say how large it is."""

_READ = frozenset({CheckpointState.VERIFIED, CheckpointState.CERTIFIED})
_STANDING = frozenset({RunPhase.WATCHING, RunPhase.COMPLETED, RunPhase.STOPPED, RunPhase.FAILED})


def awaits_job(state: RunState, observation: Observation, checkpoint: Checkpoint) -> bool:
    """Whether a Job will read the checkpoint of a one-node world: until then the world's own word does not count.

    It does where a Job could not, and where the end of the run would have to wait for one too long.
    """
    if not observation.limits.read_back_jobs or observation.final_check_over or not _one_node(observation):
        return False
    return checkpoint in wanted(state) and checkpoint.reference.key not in state.unread


def wanted(state: RunState) -> tuple[Checkpoint, ...]:
    """Those of the newest checkpoints that nobody has read back yet, newest first."""
    usable = [one for one in state.checkpoints if not one.of_source and not why_not_restore(state, one)]
    newest = list(reversed(usable))[:NEWEST]
    tried = state.unread
    return tuple(
        one for one in newest if one.state is CheckpointState.COMMITTED and tried.count(one.reference.key) < TRIES
    )


def answered(state: RunState, observation: Observation) -> Command | None:
    """What the Job found, one checkpoint after the other, and then that it is over."""
    order, outcome = state.read_back, observation.read_back
    if order is None or outcome is None or outcome.number != order.number:
        return None
    unread: list[CheckpointReference] = []
    problem = outcome.error
    for reference in order.checkpoints:
        known, found, detail = state.checkpoint(reference.key), *_found(outcome, reference)
        if known is None or known.reference != reference:
            continue
        if found is ReadBack.UNKNOWN:
            unread.append(reference)
            problem = problem or detail
        elif found is ReadBack.VERIFIED and known.state is CheckpointState.COMMITTED:
            why = f"read back and hashed whole by {_told(outcome)}"
            return checkpoint_record(state, JournalAction.VERIFIED, reference, known.attempt, why)
        elif found is ReadBack.DAMAGED and (record := quarantine(state, reference, f"{detail} ({_told(outcome)})")):
            return record
    problem = problem or f"{_told(outcome)} has said nothing of it"
    done = f"{_steps(order.checkpoints)} read back by {_told(outcome)}"
    message = f"{_steps(unread)} not read back: {problem}" if unread else done
    return Append(
        Draft(
            action=JournalAction.READ_BACK,
            phase=Phase.RESULT,
            id=order.id,
            reason={"message": message},
            after={"job": outcome.job, "unread": [one.key for one in unread]},
            outcome="Unread" if unread else "Read",
            error=problem if unread else None,
        )
    )


def next_intent(state: RunState, observation: Observation) -> Command | None:
    """The intent to read back what is left, one Job at a time, and none while anything is amiss."""
    if not observation.limits.read_back_jobs or observation.blocked or state.read_back is not None:
        return None
    if not observation.may_read_back:
        return None
    calm = state.phase in _STANDING and state.incident is None and (state.ended or observation.firing is None)
    if not calm:
        return None
    theirs = _over(state, observation) or _one_node(observation)
    left = [one for one in wanted(state) if theirs or _passed_over(state, one)]
    due = [one for one in left if _due(state, observation, one)]
    if not due:
        return None
    after: dict[str, Any] = {
        "checkpoints": [one.reference for one in due],
        "seconds": sum(_seconds(one) for one in due) + START_SECONDS,
        "avoid": sorted({place.node for place in observation.pods.places if place.node}),
    }
    message = f"{_steps(one.reference for one in due)} read back by a Job, for {_why(state, observation)}"
    number = state.seq + 1
    return Append(
        Draft(
            action=JournalAction.READ_BACK,
            phase=Phase.INTENT,
            id=f"run/{JournalAction.READ_BACK}/{number}",
            reason={"message": message},
            after=after,
        )
    )


def told(order: ReadBackOrder) -> str:
    """What is being read back, in words."""
    return f"{_steps(order.checkpoints)} read back and hashed by a Job"


def _over(state: RunState, observation: Observation) -> bool:
    """Whether no host of the run is left that could read anything back."""
    return _ended(state) or (observation.limits.suspend and not state.world_lives)


def _ended(state: RunState) -> bool:
    return state.ended or state.phase is RunPhase.FAILED


def _one_node(observation: Observation) -> bool:
    latest = observation.acks.latest
    return latest is not None and len(set(latest.hosts)) == 1


def _passed_over(state: RunState, checkpoint: Checkpoint) -> bool:
    """Whether the world that could read it has gone on to newer ones."""
    step = checkpoint.reference.step
    newer = (one for one in state.checkpoints if one.reference.step > step and state.surviving(one))
    return sum(one.state in _READ for one in newer) >= READ_SINCE


def _why(state: RunState, observation: Observation) -> str:
    if not _over(state, observation):
        return "its world has one node" if _one_node(observation) else "its world has gone on to newer ones"
    return "the run is over" if _ended(state) else "the run is suspended"


def _due(state: RunState, observation: Observation, checkpoint: Checkpoint) -> bool:
    passed = datetime.fromisoformat(observation.now).timestamp() - state.read_back_over
    if passed < 0:
        return True  # the clock was set back, and how long ago the last Job was over nobody knows
    if checkpoint.reference.key in state.unread:
        return passed >= RETRY_SECONDS
    finished = final_checkpoint.finished_word(state, observation.acks, observation.last_step) is not None
    return finished or _over(state, observation) or passed >= PAUSE_SECONDS


def _seconds(checkpoint: Checkpoint) -> int:
    size = checkpoint.size
    return PATIENCE_SECONDS + (UNKNOWN_SIZE_SECONDS if size is None else size // LEAST_BYTES_PER_SECOND)


def _found(outcome: ReadBackOutcome, reference: CheckpointReference) -> tuple[ReadBack, str]:
    """The answer of a checkpoint; where two pods differ, damage counts, as whoever has seen it has seen it."""
    answers = [one for one in outcome.answers if one.sha256 == reference.sha256]
    for found in (ReadBack.DAMAGED, ReadBack.VERIFIED, ReadBack.UNKNOWN):
        for answer in answers:
            if answer.found is found:
                return found, answer.detail
    return ReadBack.UNKNOWN, ""


def _told(outcome: ReadBackOutcome) -> str:
    return f"Job {outcome.job}" + (f" on node {outcome.node}" if outcome.node else "")


def _steps(references: Iterable[CheckpointReference]) -> str:
    steps = sorted(one.step for one in references)
    if len(steps) == 1:
        return f"the checkpoint of step {steps[0]} is"
    return f"the checkpoints of steps {', '.join(map(str, steps[:-1]))} and {steps[-1]} are"
