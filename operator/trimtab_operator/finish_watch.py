"""A world that has finished and is not told so: since when, and what its Finish waits for. No clock of its own."""

from trimtab_contract.directives import Ack

from trimtab_operator.observation import Acks
from trimtab_operator.run_state import RunPhase, RunState

FINISH_SECONDS = 600.0
"""How long a finished world may wait before people are told."""


class FinishWatch:
    """Counts how long the newest world has said that it is finished, whoever keeps its Finish from it."""

    def __init__(self) -> None:
        self._told: tuple[int, int, int] | None = None
        self._since = 0.0

    def observe(self, now: float, state: RunState, acks: Acks) -> Ack | None:
        """Take note of what is known at monotonic time `now`; the world's word once it has waited too long."""
        finished = acks.finished
        if finished is None or not _waits(state, finished):
            self._told = None
            return None
        told = finished.world, finished.attempt, finished.step
        if told != self._told:
            self._told, self._since = told, now
        return finished if now - self._since >= FINISH_SECONDS else None


def waits_for(finished: Ack, state: RunState, judged_step: int, trouble: str, last_step: int | None = None) -> str:
    """What the Finish of a finished world waits for; `trouble` is what keeps the operator from deciding, if anything.

    `judged_step` is the last step of the current attempt that was judged without a gap, `last_step` that of the run.
    """
    early = last_step is not None and finished.step < last_step
    why = f"the run has {last_step} steps" if early else _cause(finished, state, judged_step, trouble)
    return f"the world has finished step {finished.step} and waits: {why}"


def _waits(state: RunState, finished: Ack) -> bool:
    world = state.world
    if world is None or not world.live or state.phase is RunPhase.FAILED:
        return False
    # A run that is completed in the journal waits until its Finish is published.
    ended = state.ended and state.pending is None
    return not ended and (finished.world, finished.attempt) == (world.number, state.attempt)


def _cause(finished: Ack, state: RunState, judged_step: int, trouble: str) -> str:
    if trouble:
        return trouble
    if state.phase is RunPhase.NEEDS_HUMAN:
        return f"a human is asked: {state.question}"
    if judged_step < finished.step:
        missing = f"the record of step {judged_step + 1} is neither in Redis nor in the archive"
        return f"it is judged up to step {judged_step} only, for {missing}"
    if state.incident is not None:
        return f"incident {state.incident.name} is open, in phase {state.phase.value}"
    return "its last records are judged, and Finish is about to be sent"
