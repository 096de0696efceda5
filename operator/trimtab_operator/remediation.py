"""The state machine: from what the journal says and what is seen now to the next command. Pure.

`advance` answers one question: what is the next record to write or effect to perform? The caller does it, folds the
record and asks again, until there is nothing left to do. Nothing here waits, reads a clock or remembers: a new
operator that folds the same journal and sees the same world asks for the same command.
"""

from collections.abc import Callable, Mapping

from trimtab_operator import automation, bookkeeping, deletion, read_back, requests, worlds
from trimtab_operator.commands import Append, Command, Perform
from trimtab_operator.observation import Observation
from trimtab_operator.phases import approval, firing, holding, restoring, selecting, watching
from trimtab_operator.run_state import RunPhase, RunState

_P = RunPhase
_STOPPABLE = frozenset({_P.STOPPED})

TRANSITIONS: Mapping[RunPhase, frozenset[RunPhase]] = {
    _P.PENDING: _STOPPABLE | {_P.WATCHING, _P.FAILED, _P.NEEDS_HUMAN},
    _P.WATCHING: _STOPPABLE | {_P.HOLDING, _P.COMPLETED, _P.FAILED, _P.NEEDS_HUMAN},
    _P.HOLDING: _STOPPABLE | {_P.DIAGNOSING, _P.WATCHING, _P.PROBATION},
    _P.DIAGNOSING: _STOPPABLE | {_P.SELECTING},
    _P.SELECTING: _STOPPABLE | {_P.AWAITING_APPROVAL, _P.RESTORING, _P.NEEDS_HUMAN},
    _P.AWAITING_APPROVAL: _STOPPABLE | {_P.RESTORING, _P.SELECTING, _P.NEEDS_HUMAN},
    _P.RESTORING: _STOPPABLE | {_P.DIAGNOSING_RESTORED, _P.SELECTING, _P.FAILED},
    _P.DIAGNOSING_RESTORED: _STOPPABLE
    | {_P.PROBATION, _P.SELECTING, _P.RESTORING, _P.AWAITING_APPROVAL, _P.NEEDS_HUMAN, _P.FAILED},
    _P.PROBATION: _STOPPABLE | {_P.WATCHING, _P.HOLDING, _P.COMPLETED, _P.FAILED, _P.NEEDS_HUMAN},
    _P.NEEDS_HUMAN: _STOPPABLE | {_P.SELECTING, _P.WATCHING},
    _P.FAILED: _STOPPABLE | {_P.PENDING},
    _P.COMPLETED: frozenset(),
    _P.STOPPED: frozenset(),
}
"""Every legal change of phase; anything else is a programming error and raises."""


class IllegalTransition(Exception):
    """A change of phase that the table does not know: a programming error, so none of the operator's own errors."""

    def __init__(self, before: RunPhase, after: RunPhase) -> None:
        super().__init__(f"phase {before} cannot become {after}")
        self.before = before
        self.after = after


def check_transition(before: RunPhase, after: RunPhase) -> None:
    """Raise IllegalTransition unless the table allows the change."""
    if after is not before and after not in TRANSITIONS[before]:
        raise IllegalTransition(before, after)


def advance(state: RunState, observation: Observation) -> Command | None:
    """The next command, or None when all that can be done now is done."""
    if state.pending is not None:
        return Perform(state.pending)
    if state.ended:
        return (
            requests.next_command(state, observation)
            or bookkeeping.after_end(state, observation)
            or deletion.removed(state, observation)
            or read_back.next_intent(state, observation)
        )
    for decide in (*_IN_EVERY_PHASE, _PHASES[state.phase], deletion.next_command, read_back.next_intent):
        command = decide(state, observation)
        if command is not None:
            if isinstance(command, Append) and command.draft.after and "phase" in command.draft.after:
                check_transition(state.phase, RunPhase(command.draft.after["phase"]))
            return command
    return None


def _nothing(_state: RunState, _observation: Observation) -> Command | None:
    return None


_PHASES: Mapping[RunPhase, Callable[[RunState, Observation], Command | None]] = {
    _P.PENDING: watching.pending,
    _P.WATCHING: watching.watching,
    _P.HOLDING: holding.holding,
    _P.DIAGNOSING: holding.diagnosing,
    _P.SELECTING: selecting.selecting,
    _P.AWAITING_APPROVAL: approval.awaiting_approval,
    _P.RESTORING: restoring.restoring,
    _P.DIAGNOSING_RESTORED: restoring.diagnosing_restored,
    _P.PROBATION: watching.probation,
    _P.NEEDS_HUMAN: watching.needs_human,
    _P.COMPLETED: _nothing,
    _P.STOPPED: _nothing,
    _P.FAILED: bookkeeping.reopen,
}

_IN_EVERY_PHASE = (
    automation.released,
    bookkeeping.next_record,
    firing.next_firing,
    restoring.drop_target,
    restoring.refused_skip,
    requests.next_command,
    watching.complete_without_world,
    worlds.next_command,
)
"""What is looked at before a phase's own decision, in this order."""
