"""Whether a rollback or a restart may begin, or waits for the breaker over all runs. Pure.

What is under way goes on, runs that hold keep holding, and a person's own request waits for nothing.
"""

from trimtab_operator import drafts
from trimtab_operator.commands import Command
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import JournalAction, RunPhase, RunState

_ANSWERED_OTHERWISE = frozenset({RunPhase.HOLDING, RunPhase.NEEDS_HUMAN, RunPhase.COMPLETED, RunPhase.STOPPED})


def waits(state: RunState, observation: Observation) -> bool:
    """Whether a rollback or restart that would begin now must wait."""
    hold, incident = observation.automation_held, state.incident
    if hold is None or (incident is not None and incident.asked):
        return False
    return not hold.id or state.let_go != hold.id


def wait(state: RunState, observation: Observation) -> Command | None:
    """Write down, once for each trip, why the run waits."""
    hold = observation.automation_held
    if hold is None or not hold.id or (state.automation is not None and state.automation.id == hold.id):
        return None
    return drafts.record(state, JournalAction.AUTOMATION_HELD, reason={"message": hold.message}, after={"hold": hold})


def released(state: RunState, observation: Observation) -> Command | None:
    """Write down that what the run waited for is over."""
    hold, known = observation.automation_held, state.automation
    if known is None or (hold is not None and hold.id in {"", known.id}):
        return None
    message = "no run has failed for the quiet time: rollbacks and restarts begin again"
    return drafts.record(
        state, JournalAction.AUTOMATION_RELEASED, reason={"message": message}, after={"hold": known.id}
    )


def may_be_let_go(state: RunState) -> bool:
    """Whether a person can let this run go on without waiting; where something else is asked, that comes first."""
    return state.automation is not None and state.phase not in _ANSWERED_OTHERWISE
