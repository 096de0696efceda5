"""Records that follow from what is seen and change nothing about the run: policies, checkpoints, notes. Pure."""

from datetime import datetime, timedelta

from trimtab_contract.directives import VERIFIED_BY_SELF, CheckpointReference

from trimtab_operator import read_back
from trimtab_operator.checkpoint_records import checkpoint_record, quarantine
from trimtab_operator.commands import Append, Command, Draft
from trimtab_operator.final_checkpoint import is_final
from trimtab_operator.notices import DELIVERED, UNDELIVERED
from trimtab_operator.observation import CheckpointClaim, Observation
from trimtab_operator.run_state import RESTORABLE, Checkpoint, CheckpointState, JournalAction, RunPhase, RunState

RELAPSES_OF_A_TARGET = 2
"""After so many rollbacks to one checkpoint that did not help, it is quarantined."""

_GREEN = frozenset({RunPhase.WATCHING, RunPhase.PENDING, RunPhase.COMPLETED})


def next_record(state: RunState, observation: Observation) -> Command | None:
    """The next fact the journal lacks, in a fixed order, or None."""
    return (
        _accept_guard(state, observation)
        or told(state, observation)
        or _refusal(state, observation)
        or _blindness(state, observation)
        or _note(state, observation)
        or _claim(state, observation)
        or _verification(state, observation)
        or read_back.answered(state, observation)
        or _abandon(state)
        or _condemn(state)
        or _certify(state, observation)
    )


def after_end(state: RunState, observation: Observation) -> Command | None:
    """What is still found out once the run has ended, of what its checkpoints are worth."""
    return told(state, observation) or read_back.answered(state, observation) or _certify(state, observation)


def reopen(state: RunState, observation: Observation) -> Command | None:
    """A failed run starts again when its TrainingJob was edited."""
    if observation.limits.generation == state.failed_generation:
        return None
    return Append(
        Draft(
            action=JournalAction.REOPENED,
            id=f"run/{JournalAction.REOPENED}/{state.seq + 1}",
            reason={"message": f"generation {observation.limits.generation} of the TrainingJob"},
            after={"phase": RunPhase.PENDING.value},
        )
    )


def rollbacks_in_window(state: RunState, observation: Observation) -> int:
    """How many rollbacks the budget's window holds."""
    since = datetime.fromisoformat(observation.now) - timedelta(seconds=observation.limits.window_seconds)
    return sum(time >= since for time in state.rollback_times)


def verified_while_restoring(state: RunState, target: CheckpointReference, hosts: tuple[str, ...]) -> Append | None:
    """A committed checkpoint that was hashed whole by the world that restored it is verified."""
    known = state.checkpoint(target.key)
    if known is None or known.state is not CheckpointState.COMMITTED:
        return None
    why = f"every object was hashed while it was restored on {', '.join(hosts)}"
    return checkpoint_record(state, JournalAction.VERIFIED, target, known.attempt, why)


def _accept_guard(state: RunState, observation: Observation) -> Command | None:
    guard = observation.guard
    # A failed run is judged by nothing; once it is reopened, by what is there then.
    if guard is None or state.phase is RunPhase.FAILED:
        return None
    known = state.guards[-1] if state.guards else None
    if known is not None and (known.policies, known.mode) == (guard.policies, guard.mode):
        return None
    return Append(
        Draft(
            action=JournalAction.POLICY_ACCEPTED,
            id=f"run/{JournalAction.POLICY_ACCEPTED}/{state.seq + 1}",
            after={"guard": guard},
            before={"guard": known} if known else None,
        )
    )


def told(state: RunState, observation: Observation) -> Command | None:
    """What people were told, or could not be: a new operator does not say it again."""
    owed = {notice.id: notice for notice in state.owed}
    for outcome in observation.notices:
        if outcome.id in owed:
            return Append(
                Draft(
                    action=JournalAction.NOTICE_SENT,
                    id=f"notice/{outcome.id}",
                    incident=owed[outcome.id].incident,
                    outcome=DELIVERED if outcome.delivered else UNDELIVERED,
                    reason={"message": outcome.message},
                    after={"notice": outcome.id, "kind": owed[outcome.id].kind},
                )
            )
    return None


def _refusal(state: RunState, observation: Observation) -> Command | None:
    """The trainer's word against the directive in force; said once, however often it is repeated."""
    refused, directive = observation.acks.refused, state.directive
    if refused is None or directive is None or (refused.epoch, refused.seq) != directive.order or state.refused:
        return None
    told = f"{directive.action} of attempt {directive.attempt} is refused"
    return Append(
        Draft(
            action=JournalAction.DIRECTIVE_REFUSED,
            id=f"run/{JournalAction.DIRECTIVE_REFUSED}/{refused.epoch}.{refused.seq}",
            incident=state.incident.name if state.incident else None,
            reason={"reason": refused.reason, "message": f"{told}: {refused.detail or refused.reason}"},
            after={"epoch": refused.epoch, "seq": refused.seq, "world": refused.world, "attempt": refused.attempt},
        )
    )


def _blindness(state: RunState, observation: Observation) -> Command | None:
    """Whose rules judge nothing, because no record has their metric: a reviewer must not take that for health."""
    for missing in observation.missing_metrics:
        if (missing.policy, missing.metric) in state.blind:
            continue
        return Append(
            Draft(
                action=JournalAction.METRIC_MISSING,
                id=f"metric/{missing.policy}/{missing.metric}",
                reason={"rule": missing.rule, "message": missing.message},
                after={"policy": missing.policy, "metric": missing.metric, "judged_step": observation.judged_step},
            )
        )
    return None


def _note(state: RunState, observation: Observation) -> Command | None:
    for note in observation.notes:
        if (f"{note.policy}/{note.rule}", note.attempt, note.step) in state.fired:
            continue
        return Append(
            Draft(
                action=JournalAction.RULE_FIRED,
                id=f"rule/{note.policy}/{note.rule}/a{note.attempt}-s{note.step}",
                reason={
                    "rule": note.rule,
                    "threshold": note.threshold,
                    "observed": note.observed,
                    "message": note.message,
                },
                after={
                    "rule": f"{note.policy}/{note.rule}",
                    "attempt": note.attempt,
                    "step": note.step,
                    "action": note.action,
                    "would_have": note.would_have,
                },
                policy_hash=note.policy_hash,
            )
        )
    return None


def _claim(state: RunState, observation: Observation) -> Command | None:
    for claim in observation.claims:
        if not state.knows(claim.reference.key):
            return _judge_claim(state, claim)
    return None


def _judge_claim(state: RunState, claim: CheckpointClaim) -> Command:
    action = JournalAction.COMMITTED if claim.usable else JournalAction.QUARANTINED
    return checkpoint_record(
        state,
        action,
        claim.reference,
        claim.attempt,
        claim.why,
        claim.evidence,
        loss=claim.loss,
        size=claim.size,
    )


def _verification(state: RunState, observation: Observation) -> Command | None:
    for reference, host in observation.acks.verified:
        known = state.checkpoint(reference.key)
        if known is None or known.reference != reference or known.state is not CheckpointState.COMMITTED:
            continue
        if host == VERIFIED_BY_SELF and read_back.awaits_job(state, observation, known):
            continue
        why = _read_back_by(host, observation)
        if why:
            return checkpoint_record(state, JournalAction.VERIFIED, reference, known.attempt, why)
    for reference, why in observation.acks.verify_failed:
        known = state.checkpoint(reference.key)
        if known is not None and known.reference == reference and known.state in RESTORABLE:
            return quarantine(state, reference, why)
    return None


def _read_back_by(host: str, observation: Observation) -> str:
    """Whose word it is that a checkpoint can be read; empty where it counts for nothing."""
    if host != VERIFIED_BY_SELF:
        return f"read back and hashed whole by {host}"
    latest = observation.acks.latest
    if latest is not None and len(set(latest.hosts)) > 1:
        return ""  # of several nodes one reads what another saved
    return "read back and hashed whole by self, the one node there is"


def _abandon(state: RunState) -> Command | None:
    """Checkpoints taken between the first bad step and the hold are evidence, never a target.

    Those of a paused run wait for the answer: a run that goes on needs them.
    """
    incident = state.incident
    if incident is None or incident.held_step is None or incident.paused or incident.latch.asked is not None:
        return None
    for checkpoint in state.checkpoints:
        suspect = (
            checkpoint.attempt == incident.latch.attempt
            and incident.latch.first_bad_step <= checkpoint.reference.step <= incident.held_step
        )
        if suspect and checkpoint.state in RESTORABLE:
            why = f"taken between the first bad step {incident.latch.first_bad_step} and the hold"
            return quarantine(state, checkpoint.reference, why)
    return None


def _condemn(state: RunState) -> Command | None:
    """A checkpoint behind which the run broke again twice is a target no more."""
    incidents = (*state.closed, *((state.incident,) if state.incident else ()))
    relapsed = [plan.target for incident in incidents for plan in incident.plans if plan.relapsed]
    for target in relapsed:
        if relapsed.count(target) >= RELAPSES_OF_A_TARGET:
            quarantined = quarantine(state, target, f"the run broke again behind it {relapsed.count(target)} times")
            if quarantined is not None:
                return quarantined
    return None


def _certify(state: RunState, observation: Observation) -> Command | None:
    if state.phase not in _GREEN or observation.firing is not None:
        return None
    for checkpoint in state.checkpoints:
        if _certifiable(state, checkpoint, observation):
            answered = max((step for step in state.resumed(checkpoint.attempt)), default=-1)
            let_pass = f", but for what a person let pass up to step {answered}"
            green = f"each found its metric healthy up to step {observation.green_step}"
            why = f"no rule that acts fired up to step {observation.judged_step}, and {green}"
            why += let_pass if answered >= checkpoint.reference.step else ""
            why = f"final: {why}" if is_final(state, checkpoint, observation) else why
            return checkpoint_record(state, JournalAction.CERTIFIED, checkpoint.reference, checkpoint.attempt, why)
    return None


def _certifiable(state: RunState, checkpoint: Checkpoint, observation: Observation) -> bool:
    if checkpoint.state is CheckpointState.VERIFIED and is_final(state, checkpoint, observation):
        return observation.green_step > 0  # no step comes after it that a rule could find healthy
    # Steps by which every rule that acts found its metric healthy: absence and rules that only watch vouch for nothing.
    green = min(observation.judged_step, observation.green_step) - checkpoint.reference.step
    proved = green >= observation.limits.certify_steps
    return checkpoint.state is CheckpointState.VERIFIED and proved and state.surviving(checkpoint)
