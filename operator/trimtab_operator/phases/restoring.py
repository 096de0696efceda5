"""Restoring and DiagnosingRestored: the target in place, the extent of the damage, and the way on."""

from trimtab_contract.directives import Action, CheckpointReference, Reason

from trimtab_operator import bookkeeping, checkpoint_records, diagnosis, drafts, worlds
from trimtab_operator.commands import Command
from trimtab_operator.extent import Extent, ExtentOutcome, find_extent
from trimtab_operator.incidents import Finding, Incident, SkipRange
from trimtab_operator.observation import Observation
from trimtab_operator.phases import approval
from trimtab_operator.run_state import RESTORABLE, JournalAction, RunPhase, RunState
from trimtab_operator.selection import known_level

_P = RunPhase
_PLANNED = frozenset({_P.AWAITING_APPROVAL, _P.RESTORING, _P.DIAGNOSING_RESTORED})


def restoring(state: RunState, observation: Observation) -> Command | None:
    """Put the target in place as a new attempt, held; a target that cannot be restored is quarantined."""
    incident = state.incident
    if incident is None or incident.target is None or not state.world_lives:
        return None
    if not incident.restoring_attempt:
        directive = drafts.restore_directive(state, observation, incident)
        return drafts.intend(
            state,
            JournalAction.DIRECTIVE,
            directive,
            reason={"message": f"restore step {incident.target.step} in place"},
        )
    restored, failed = observation.acks.restored, observation.acks.failed
    if restored is not None and restored.attempt == incident.restoring_attempt:
        verified = bookkeeping.verified_while_restoring(state, incident.target, restored.hosts)
        if verified is not None:
            return verified
        return drafts.record(
            state,
            JournalAction.RESTORED,
            _P.DIAGNOSING_RESTORED,
            after={"attempt": restored.attempt, "checkpoint": incident.target},
            reason={"message": restored.detail},
        )
    if failed is not None and failed.attempt == incident.restoring_attempt:
        if failed.reason == Reason.STORE_UNAVAILABLE:
            again = drafts.restore_directive(state, observation, incident)
            return drafts.intend(state, JournalAction.DIRECTIVE, again, reason={"message": worlds.store_away(failed)})
        if failed.reason == Reason.CONFIG_MISMATCH:
            return worlds.misfit(state, observation, failed)
        why = f"{failed.reason}: {failed.detail}"
        if failed.reason == Reason.PROBE_FAILED:
            return _plan_failed(state, incident.target.key, why)
        return checkpoint_records.quarantine(state, incident.target, why)
    return None


def drop_target(state: RunState, _observation: Observation) -> Command | None:
    """A plan whose target is quarantined has failed, whoever found it out: no world may restore it any more."""
    incident = state.incident
    if state.phase not in _PLANNED or incident is None or incident.target is None:
        return None
    known = state.checkpoint(incident.target.key)
    if known is None or known.state in RESTORABLE:
        return None
    return _plan_failed(state, incident.target.key, known.why)


def _plan_failed(state: RunState, key: str, why: str) -> Command:
    after = {"key": key, "why": why}
    return drafts.record(state, JournalAction.RESTORE_FAILED, _P.SELECTING, reason={"message": why}, after=after)


def refused_skip(state: RunState, observation: Observation) -> Command | None:
    """A range that begins in what is trained already is taken out again: it would fit no later checkpoint either."""
    refused, directive = state.refused, state.directive
    if refused is None or directive is None or refused.reason != Reason.RANGE_ALREADY_TRAINED:
        return None
    if state.phase is _P.PROBATION and not refused.asked:
        reason = {"message": f"the plan skips nothing, so it would change nothing: {refused.detail}"}
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason=reason)
    action = Action.HOLD if state.phase is _P.NEEDS_HUMAN else directive.action
    without = drafts.instruct(state, observation, action, skip=state.skip_before, release=directive.release)
    message = f"the skip is taken out again: {refused.detail}"
    return drafts.intend(state, JournalAction.DIRECTIVE, without, reason={"message": message})


def diagnosing_restored(state: RunState, observation: Observation) -> Command | None:
    """Find the extent of the damage on the restored state, and let the run go on behind it."""
    incident = state.incident
    if incident is None or incident.target is None or not state.world_lives:
        return None
    flagged, wished = incident.flagged, incident.wishes.skip
    if wished is not None and not incident.extent_done:
        skip, reason = SkipRange(first=wished[0], last=wished[1], bad=0), {"message": "a person names these windows"}
        return drafts.record(state, JournalAction.EXTENT_FOUND, reason=reason, after={"skip": skip})
    if flagged is None or incident.extent_done:
        return _resume(state, observation, incident, incident.target)
    if observation.probe_problem:
        reason = {"message": f"the extent of the damage is unknown: {observation.probe_problem}"}
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason=reason)
    if observation.probe is None:
        return None
    level = known_level(state, incident.target.step)
    if incident.diagnosed_attempt != incident.restoring_attempt:
        found = diagnosis.diagnose_restored(incident, observation.probe, flagged, level)
        return drafts.record(
            state,
            JournalAction.DIAGNOSED,
            evidence=observation.probe_evidence,
            after=diagnosis.content(found, incident.restoring_attempt),
        )
    latch = incident.latch
    extent = find_extent(
        observation.probe,
        flagged=flagged,
        before=latch.remediation.before,
        after=latch.remediation.after,
        sigma=latch.sigma,
        control_limit=latch.control_limit,
        shrink=latch.on_loss,
        level=level,
    )
    return _judge_extent(state, observation, incident.target, extent)


def _judge_extent(
    state: RunState, observation: Observation, target: CheckpointReference, extent: Extent
) -> Command | None:
    numbers = {
        "message": extent.message,
        "control_mean": extent.control_mean,
        "control_std": extent.control_std,
        "threshold": extent.threshold,
        "bad": list(extent.bad),
    }
    if extent.outcome is ExtentOutcome.CONTROL_BAD:
        return checkpoint_records.quarantine(state, target, extent.message)
    if extent.outcome is ExtentOutcome.UNBOUNDED:
        return drafts.record(
            state,
            JournalAction.NEEDS_HUMAN,
            _P.NEEDS_HUMAN,
            reason=numbers,
            evidence=observation.probe_evidence,
        )
    first = max(extent.first, state.ledger.window_of_step(target.step + 1))
    skip = SkipRange(first=first, last=extent.last, bad=len(extent.bad))
    wider = approval.wider_plan(state, skip)
    if wider is not None:
        return approval.ask_wider(state, observation, wider, skip, numbers)
    return drafts.record(
        state,
        JournalAction.EXTENT_FOUND,
        reason=numbers,
        evidence=observation.probe_evidence,
        after={"skip": skip},
    )


def _resume(state: RunState, observation: Observation, incident: Incident, target: CheckpointReference) -> Command:
    ledger = state.ledger
    if incident.extent is not None:
        ledger = ledger.including(incident.extent.first, incident.extent.last)
    lr = incident.plan.learning_rate if incident.plan else None
    told = state.directive.skip if state.directive is not None else ()
    transient = incident.finding is Finding.TRANSIENT
    if ledger.ranges == told and lr is None and not incident.wishes.unchanged and not transient:
        why = (
            "the plan skips nothing, lowers no learning rate, and nothing proves a transient fault: it changes nothing"
        )
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})
    directive = drafts.instruct(state, observation, Action.RUN, skip=ledger.ranges, lr=lr, incident=incident.name)
    skipped = f"windows {incident.extent.first} to {incident.extent.last}" if incident.extent else "nothing"
    slower = f", at {lr.scale:g} of the learning rate up to step {lr.until_step}" if lr else ""
    message = f"resume behind step {target.step}, skipping {skipped}{slower}"
    return drafts.intend(state, JournalAction.DIRECTIVE, directive, _P.PROBATION, {"message": message})
