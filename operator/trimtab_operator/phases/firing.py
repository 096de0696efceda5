"""A rule that fires opens an incident, joins one, or is the relapse of one."""

from trimtab_policies.rules import Action

from trimtab_operator import drafts
from trimtab_operator.commands import Command
from trimtab_operator.incidents import Latch
from trimtab_operator.observation import Observation
from trimtab_operator.phases import watching
from trimtab_operator.run_state import JournalAction, RunPhase, RunState

_P = RunPhase

ACTION_ORDER = tuple(action.value for action in Action)
"""What a rule may ask for, weakest first: only a stronger one takes an open incident over."""


def next_firing(state: RunState, observation: Observation) -> Command | None:
    """The record of a rule that fires where nobody has answered it yet."""
    latch = observation.firing
    if latch is None or latch.attempt != state.attempt or state.settled(latch.attempt, latch.fired_step):
        return None
    if state.phase is _P.PENDING:
        return watching.running(state)
    if state.phase is _P.WATCHING:
        name = drafts.incident_name(state, observation.job, latch)
        return drafts.record(
            state,
            JournalAction.INCIDENT_OPENED,
            _P.HOLDING,
            incident=name,
            reason=drafts.firing_reason(latch),
            after={"latch": latch},
            policy_hash=latch.policy_hash,
        )
    if state.phase is _P.PROBATION and state.incident is not None:
        if latch.fired_step > state.incident.probation_until:
            return None  # the probation had passed: read late, it is closed first, and this is an incident of its own
        return drafts.record(
            state,
            JournalAction.RELAPSED,
            _P.HOLDING,
            reason=drafts.firing_reason(latch),
            after={"latch": latch},
            policy_hash=latch.policy_hash,
        )
    held = state.incident if state.phase in {_P.HOLDING, _P.DIAGNOSING} else None
    if held is not None and _takes_over(latch, held.latch):
        return drafts.record(
            state,
            JournalAction.UPGRADED,
            reason=drafts.firing_reason(latch),
            after={"latch": latch},
            policy_hash=latch.policy_hash,
        )
    return None


def _takes_over(latch: Latch, held: Latch) -> bool:
    """Whether it asks for more than what the run is held for: a stronger action, or a person's approval."""
    if ACTION_ORDER.index(latch.action) > ACTION_ORDER.index(held.action):
        return True
    approval = latch.remediation.approval_seconds is not None and held.remediation.approval_seconds is None
    return approval and latch.action == held.action and held.asked is None
