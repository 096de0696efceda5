"""Drafts of journal records and the directives they carry. Pure."""

from datetime import datetime
from typing import Any

import msgspec
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import Action, Diagnose, Directive, OnNonFinite
from trimtab_contract.journal import Evidence, Phase

from trimtab_operator.commands import Append, Draft
from trimtab_operator.extent import control_windows
from trimtab_operator.incidents import Incident, Latch
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import JournalAction, RunPhase, RunState


def record(state: RunState, action: JournalAction, phase: RunPhase | None = None, **fields: Any) -> Append:
    """A record without effect; `phase` is the phase the run is in from this record on."""
    after: dict[str, Any] = dict(fields.pop("after", {}))
    if phase is not None:
        after["phase"] = phase.value
    incident = state.incident.name if state.incident else None
    identity = f"{incident or 'run'}/{action}/{state.seq + 1}"
    return Append(Draft(action=action, id=identity, incident=fields.pop("incident", incident), after=after, **fields))


def intend(
    state: RunState,
    action: JournalAction,
    directive: Directive,
    phase: RunPhase | None = None,
    reason: dict[str, Any] | None = None,
    *,
    evidence: tuple[Evidence, ...] = (),
    **after: Any,
) -> Append:
    """The intent of an effect that sets `directive` in force."""
    incident = state.incident.name if state.incident else None
    content: dict[str, Any] = {"directive": directive, **after}
    if phase is not None:
        content["phase"] = phase.value
    return Append(
        Draft(
            action=action,
            phase=Phase.INTENT,
            id=state.next_id(incident),
            incident=incident,
            reason=reason,
            evidence=evidence,
            before={"directive": state.directive},
            after=content,
        )
    )


def instruct(state: RunState, observation: Observation, action: Action, **changes: Any) -> Directive:
    """The directive in force, changed, under the next journal sequence number; with every skip that was promised."""
    issued = datetime.fromisoformat(observation.now).timestamp()
    on_nonfinite = OnNonFinite.HOLD if observation.hold_on_nonfinite else OnNonFinite.CONTINUE
    base = state.directive or Directive(epoch=0, seq=0, world=1, attempt=1, action=action)
    fields: dict[str, Any] = {
        "epoch": state.epoch,
        "seq": state.seq + 1,
        "action": action,
        "issued_at": issued,
        "skip": state.ledger.ranges,
        "on_nonfinite": on_nonfinite,
        "release": None,
        "diagnose": None,
        **changes,
    }
    return msgspec.structs.replace(base, **fields)


def restore_directive(
    state: RunState, observation: Observation, incident: Incident, *, world: int | None = None
) -> Directive:
    """Restore the plan's target as a new attempt, held; measure the windows whose extent of damage is not known."""
    diagnose = None
    if incident.flagged is not None:
        first, last = incident.flagged
        diagnose = Diagnose(
            windows=(first, last + incident.latch.remediation.probe), control=control_windows(first, state.doubtful)
        )
    return instruct(
        state,
        observation,
        Action.HOLD,
        world=world if world is not None else (state.directive.world if state.directive else 1),
        attempt=state.attempt + 1,
        restore=incident.target,
        lr=None,
        diagnose=diagnose,
        incident=incident.name,
    )


def incident_name(state: RunState, job: str, latch: Latch) -> str:
    """Named after where it began; a second incident at the same place of the same attempt gets a number.

    Where a person began it, it is named after their request: at which step that is heard is a matter of chance.
    """
    if latch.asked is not None:
        return f"{job}-{latch.asked.action.lower()}-{sha256_hex(latch.asked.uid.encode())[:8]}"
    name = f"{job}-a{latch.attempt}-s{latch.first_bad_step}"
    return name if name not in state.incident_names else f"{name}-{len(state.incident_names) + 1}"


def firing_reason(latch: Latch) -> dict[str, Any]:
    """What a record says of the rule that fired, or of the person who asked."""
    if latch.asked is not None:
        return {"message": latch.message}
    return {
        "rule": latch.rule,
        "metric": latch.metric,
        "threshold": latch.threshold,
        "observed": latch.observed,
        "message": latch.message,
    }
