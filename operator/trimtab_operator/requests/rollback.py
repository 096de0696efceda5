"""Rollback: back to a checkpoint, the one a person names or the newest trustworthy one, and what changes behind it."""

from dataclasses import replace

import msgspec
from trimtab_policies.rules import Action

from trimtab_operator.commands import Append
from trimtab_operator.incidents import MAX_PLANS, Incident, Wishes
from trimtab_operator.observation import Observation, Request
from trimtab_operator.requests.legal import why_nobody_is_asked
from trimtab_operator.requests.ranges import trained_step, why_no_skip
from trimtab_operator.requests.records import accept as accepted
from trimtab_operator.requests.records import latch_of, name_of
from trimtab_operator.run_state import Checkpoint, RunPhase, RunState
from trimtab_operator.selection import select_rollback, why_not_restore

_P = RunPhase
_SHOWN = 8
"""How many checkpoints a refusal names."""


def why_not(state: RunState, observation: Observation, request: Request) -> str:
    """Why a run cannot go back so; everything is looked at before anything is touched."""
    nobody = why_nobody_is_asked(state)
    if nobody:
        return nobody
    incident = _proposed(state, observation, request)
    if len(incident.plans) >= MAX_PLANS:
        return f"the incident has had its {MAX_PLANS} plans"
    if incident.latch.flagged is None and request.wishes.change_nothing:
        return (
            "no rule has fired, so nothing is known to be damaged and the plan would change nothing: say what to skip "
            "(--skip), give a lower learning rate (--lr-scale), or say that the same steps shall be trained again "
            "(--unchanged)"
        )
    if request.wishes.step is None and not request.wishes.key:
        return _why_no_usual(state, observation, incident)
    target = _named(state, request.wishes)
    if target is None:
        return _unknown(state, request.wishes)
    why = _why_not_target(state, observation, incident, target)
    skip = request.wishes.skip
    return why or (why_no_skip(state, observation, skip, target.reference.step) if skip is not None else "")


def accept(state: RunState, observation: Observation, request: Request) -> Append:
    """What is suspected is looked at first, as after every hold; a run that trains holds before that."""
    wishes = request.wishes
    target = _named(state, wishes)
    if target is not None:
        wishes = msgspec.structs.replace(wishes, step=target.reference.step, key=target.reference.key)
    place = f"step {target.reference.step}" if target else "the newest trustworthy checkpoint before the damage"
    approval = state.incident is not None and state.incident.latch.remediation.approval_seconds is not None
    first = "; its plan waits for an approval first" if approval else ""
    message = f"the run goes back to {place}{_changes(wishes)}{first}"
    if state.phase is _P.HOLDING:
        return accepted(state, request, message, _P.DIAGNOSING, wishes=wishes)
    if state.phase is _P.NEEDS_HUMAN and state.incident is not None:
        return accepted(state, request, message, _P.SELECTING, wishes=wishes)
    latch = latch_of(state, observation, request, Action.ROLLBACK.value)
    name = name_of(state, observation.job, latch)
    opened = {"latch": latch, "wishes": wishes}
    if state.phase is _P.NEEDS_HUMAN:
        held = trained_step(state, observation)
        return accepted(state, request, message, _P.SELECTING, incident=name, held_step=held, **opened)
    return accepted(state, request, message, _P.HOLDING, incident=name, **opened)


def _proposed(state: RunState, observation: Observation, request: Request) -> Incident:
    """The incident as it would be if the request were accepted."""
    incident = state.incident
    if incident is None or state.phase is _P.PROBATION:
        latch = latch_of(state, observation, request, Action.ROLLBACK.value)
        held = trained_step(state, observation)
        before = incident or Incident(name="", latch=latch)
        incident = Incident(
            name=name_of(state, observation.job, latch),
            latch=latch,
            held_step=held,
            plans=before.plans,
            restored_plan=before.restored_plan,
        )
    return msgspec.structs.replace(incident, asked=True, wishes=request.wishes)


def _changes(wishes: Wishes) -> str:
    parts = [f", skipping windows {wishes.skip[0]} to {wishes.skip[1]}" if wishes.skip else ""]
    if wishes.learning_rate is not None:
        rate = wishes.learning_rate
        parts.append(f", at {rate.scale:g} of the learning rate for {rate.until_step} steps")
    if wishes.unchanged:
        parts.append(", and trains the same steps again: nothing is changed")
    return "".join(parts)


def _why_no_usual(state: RunState, observation: Observation, incident: Incident) -> str:
    """Why the usual choice would find nothing to go back to, or nothing to skip behind it."""
    selection = select_rollback(replace(state, incident=incident))
    skip = incident.wishes.skip
    if skip is None:
        return ""
    if selection.target is None:
        return f"no trustworthy checkpoint is left from before window {skip[0]}"
    return why_no_skip(state, observation, skip, selection.target.reference.step)


def _named(state: RunState, wishes: Wishes) -> Checkpoint | None:
    """The checkpoint that a person names; of several of one step the one of the surviving history."""
    if wishes.key:
        return state.checkpoint(wishes.key)
    of_step = [one for one in state.checkpoints if one.reference.step == wishes.step]
    return next((one for one in of_step if state.surviving(one)), of_step[-1] if of_step else None)


def _unknown(state: RunState, wishes: Wishes) -> str:
    if wishes.key:
        return (
            f"no checkpoint of this run has the manifest {wishes.key}: name a step, or the key of a manifest "
            "(`trimtab checkpoint list -o json` has them)"
        )
    steps = sorted({one.reference.step for one in state.checkpoints})
    known = ", ".join(str(step) for step in steps[-_SHOWN:])
    return f"no checkpoint is of step {wishes.step}; the newest are of steps {known}" if steps else "it has none yet"


def _why_not_target(state: RunState, observation: Observation, incident: Incident, target: Checkpoint) -> str:
    step, latch = target.reference.step, incident.latch
    why = why_not_restore(state, target)
    if why:
        return f"the checkpoint of step {step} cannot be restored: {why}"
    trained = trained_step(state, observation)
    if step > trained:
        return f"the checkpoint of step {step} is newer than the run, which is at step {trained}"
    if latch.flagged is not None and target.attempt == latch.attempt and step >= latch.first_bad_step:
        return f"the checkpoint of step {step} was taken behind the first bad step {latch.first_bad_step}"
    return ""
