"""The fold of worlds and of the directives they are given: attempts, starts, losses, refusals. Pure."""

from dataclasses import replace

import msgspec
from trimtab_contract.directives import Directive, Reason
from trimtab_contract.journal import JournalRecord

from trimtab_operator.folds.incidents import with_failure
from trimtab_operator.folds.requests import skip_refused
from trimtab_operator.folds.values import read
from trimtab_operator.run_state import Attempt, Refusal, RunPhase, RunState, Source, World

_MAY_BE_EDITED = frozenset({"Suspended", "Edited"})
"""How a world is lost whose successor may run another image or configuration."""
_FAULTS = frozenset({"Crashed", "Hung", Reason.STUCK_NON_FINITE.value})
"""How a world is lost by a fault: no person told it to end, nor was it evicted or preempted, a cluster's routine."""


def directed(state: RunState, record: JournalRecord) -> RunState:
    """A directive is in force; one of a new attempt begins that attempt."""
    directive = read(Directive, record.after, "directive")
    if state.directive is not None and directive.skip != state.directive.skip:
        state = replace(state, skip_before=state.directive.skip)
    if directive.attempt > state.attempt:
        attempt = Attempt(
            number=directive.attempt,
            world=directive.world,
            # Without a restore the run begins anew from its seed: nothing of the earlier attempts survives.
            parent=(state.attempt or None) if directive.restore else None,
            branch_step=directive.restore.step if directive.restore else 0,
            order=directive.order,
        )
        state = replace(state, attempts=(*state.attempts, attempt))
        if state.incident is not None and directive.restore is not None:
            incident = msgspec.structs.replace(state.incident, restoring_attempt=directive.attempt)
            state = replace(state, incident=incident)
    return replace(state, directive=directive)


def directive_refused(state: RunState, record: JournalRecord) -> RunState:
    """The trainer refused the directive in force."""
    if state.directive is None:
        return state
    reason = record.reason or {}
    refusal = Refusal(
        directive=state.directive, reason=str(reason.get("reason", "")), detail=str(reason.get("message", ""))
    )
    state = replace(state, refusal=refusal)
    return skip_refused(state, refusal) if refusal.reason == Reason.RANGE_ALREADY_TRAINED else state


def taken_over(state: RunState, record: JournalRecord) -> RunState:
    """A new operator leads; it may publish the directive anew under its epoch."""
    if record.after and record.after.get("directive"):
        return replace(state, directive=read(Directive, record.after, "directive"))
    return state


def world_started(state: RunState, record: JournalRecord) -> RunState:
    """A world of pods is started."""
    state = directed(state, record)
    after = record.after or {}
    if "source" in after:
        state = state.continuing(read(Source, after, "source"))
    number = state.directive.world if state.directive else 0
    return replace(
        state,
        world=World(number=number, spec_generation=int(after.get("generation", 0))),
        restarts=state.restarts + (1 if after.get("counted") else 0),
    )


def world_told_to_end(state: RunState, record: JournalRecord) -> RunState:
    """The world is told to end, and why."""
    if state.world is None:
        return state
    why = str((record.after or {}).get("why", ""))
    return replace(state, world=msgspec.structs.replace(state.world, told_to_end=why))


def world_lost(state: RunState, record: JournalRecord) -> RunState:
    """The world has ended without being done."""
    if state.world is None:
        return state
    lost = msgspec.structs.replace(state.world, live=False, lost_reason=str((record.after or {}).get("reason", "")))
    incident = state.incident
    if incident is not None and state.phase in {RunPhase.HOLDING, RunPhase.DIAGNOSING}:
        incident = msgspec.structs.replace(incident, world_lost=True)
    stuck = (record.after or {}).get("stuck_step")
    steps = (*state.stuck_steps, int(stuck)) if stuck is not None else state.stuck_steps
    failures = () if lost.lost_reason in _MAY_BE_EDITED else state.restore_failures
    state = replace(state, world=lost, incident=incident, stuck_steps=steps, restore_failures=failures)
    return with_failure(state, record) if lost.lost_reason in _FAULTS else state


def world_restored(state: RunState, record: JournalRecord) -> RunState:
    """A world has restored what its attempt begins with."""
    return replace(state, restored_attempt=int((record.after or {})["attempt"]))
