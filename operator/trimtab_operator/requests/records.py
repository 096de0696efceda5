"""The record that answers a request: who asked, why, for what, and what follows."""

from dataclasses import replace
from typing import Any

import msgspec

from trimtab_operator import drafts
from trimtab_operator.commands import Append
from trimtab_operator.incidents import Asked, Latch, RemediationSettings, Wishes
from trimtab_operator.observation import Observation, Request
from trimtab_operator.run_state import JournalAction, RequestState, RunPhase, RunState

_NO_POLICY = RemediationSettings(margin=0, before=0, after=0, probe=0, probation_steps=200, margin_factor=1.0)
"""What a person's own incident goes by where no policy is in force."""


def accept(
    state: RunState,
    request: Request,
    message: str,
    phase: RunPhase | None = None,
    *,
    incident: str | None = None,
    **after: object,
) -> Append:
    """The request is accepted; `message` says what follows, `phase` is the phase the run is in from now on."""
    return _answer(state, request, RequestState.ACCEPTED, message, phase, incident, after)


def refuse(state: RunState, request: Request, why: str) -> Append:
    """The request is refused, and changes nothing."""
    return _answer(state, request, RequestState.REFUSED, why, None, None, {})


def latch_of(state: RunState, observation: Observation, request: Request, action: str) -> Latch:
    """What an incident acts on that a person opens: nothing is flagged, and the run is as far as it was judged.

    Within an incident its own remediation stays; else it is that of the first policy in force. A person who asks has
    decided, so no approval is waited for.
    """
    incident = state.incident
    settings = incident.latch.remediation if incident else observation.remediation or _NO_POLICY
    asked = Asked(
        uid=request.uid, request=request.name, action=request.action.value, by=request.by, reason=request.reason
    )
    return Latch(
        policy=None,
        rule="",
        metric="",
        action=action,
        observed="none",
        threshold=None,
        sigma=None,
        control_limit=None,
        message=f"{request.by} asks for {request.action} ({request.reason})",
        attempt=max(state.attempt, 1),
        first_bad_step=observation.judged_step,
        fired_step=observation.judged_step,
        flagged=None,
        remediation=msgspec.structs.replace(settings, margin=0, learning_rate=None, approval_seconds=None),
        rule_text={},
        asked=asked,
    )


def name_of(state: RunState, job: str, latch: Latch) -> str:
    """The incident that the latch belongs to: the open one, or the one that it opens."""
    return state.incident.name if state.incident else drafts.incident_name(state, job, latch)


def _answer(
    state: RunState,
    request: Request,
    answer: RequestState,
    message: str,
    phase: RunPhase | None,
    incident: str | None,
    after: dict[str, Any],
) -> Append:
    asked: dict[str, Any] = {
        "uid": request.uid,
        "name": request.name,
        "action": request.action,
        "by": request.by,
        **({"skip": request.wishes.skip} if request.wishes.skip else {}),
    }
    wishes = {"wishes": request.wishes} if request.wishes != Wishes() and "wishes" not in after else {}
    named = {"incident": incident} if incident else {}
    command = drafts.record(
        state,
        JournalAction.RUN_REQUESTED,
        phase,
        reason={"message": message, "asked": request.reason},
        after={"request": asked, **wishes, **after},
        outcome=answer.value,
        **named,
    )
    return Append(replace(command.draft, id=f"request/{request.uid}", on_behalf_of=request.by))
