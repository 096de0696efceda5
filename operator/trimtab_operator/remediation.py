"""The state machine: from what the journal says and what is seen now to the next command. Pure.

`advance` answers one question: what is the next record to write or effect to perform? The caller does it, folds the
record and asks again, until there is nothing left to do. Nothing here waits, reads a clock or remembers: a new
operator that folds the same journal and sees the same world asks for the same command.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trimtab_contract.directives import (
    AckState,
    Action,
    CheckpointReference,
    LearningRateOverride,
    OnNonFinite,
    Reason,
)
from trimtab_policies.rules import Action as RuleAction

from trimtab_operator import bookkeeping, drafts, final_checkpoint, requests, worlds
from trimtab_operator.commands import Append, Command, Perform
from trimtab_operator.extent import Extent, ExtentOutcome, find_extent
from trimtab_operator.incidents import MAX_PLANS, Finding, Incident, Latch, Plan, SkipRange
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import CheckpointState, JournalAction, RunPhase, RunState
from trimtab_operator.selection import select_rollback

_P = RunPhase
_STOPPABLE = frozenset({_P.STOPPED})

TRANSITIONS: Mapping[RunPhase, frozenset[RunPhase]] = {
    _P.PENDING: _STOPPABLE | {_P.WATCHING, _P.FAILED, _P.NEEDS_HUMAN},
    _P.WATCHING: _STOPPABLE | {_P.HOLDING, _P.COMPLETED, _P.FAILED, _P.NEEDS_HUMAN},
    _P.HOLDING: _STOPPABLE | {_P.DIAGNOSING, _P.WATCHING, _P.PROBATION},
    _P.DIAGNOSING: _STOPPABLE | {_P.SELECTING},
    _P.SELECTING: _STOPPABLE | {_P.AWAITING_APPROVAL, _P.RESTORING, _P.NEEDS_HUMAN},
    _P.AWAITING_APPROVAL: _STOPPABLE | {_P.RESTORING, _P.NEEDS_HUMAN},
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

ACTION_ORDER = tuple(action.value for action in RuleAction)
"""What a rule may ask for, weakest first: only a stronger one takes an open incident over."""


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
        return requests.next_command(state, observation)
    for decide in (*_IN_EVERY_PHASE, _PHASES[state.phase]):
        command = decide(state, observation)
        if command is not None:
            if isinstance(command, Append) and command.draft.after and "phase" in command.draft.after:
                check_transition(state.phase, RunPhase(command.draft.after["phase"]))
            return command
    return None


# Rules that fire ------------------------------------------------------------------------------------------------


def _next_firing(state: RunState, observation: Observation) -> Command | None:
    latch = observation.firing
    if latch is None or latch.attempt != state.attempt or state.settled(latch.attempt, latch.fired_step):
        return None
    if state.phase is _P.PENDING:
        return _running(state)
    if state.phase is _P.WATCHING:
        name = _incident_name(state, observation.job, latch)
        return drafts.record(
            state,
            JournalAction.INCIDENT_OPENED,
            _P.HOLDING,
            incident=name,
            reason=drafts.firing_reason(latch),
            after={"latch": latch},
            policy_hash=latch.policy.hash,
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
            policy_hash=latch.policy.hash,
        )
    if state.phase in {_P.HOLDING, _P.DIAGNOSING} and state.incident is not None:
        held = state.incident.latch
        if ACTION_ORDER.index(latch.action) > ACTION_ORDER.index(held.action):
            return drafts.record(
                state,
                JournalAction.UPGRADED,
                reason=drafts.firing_reason(latch),
                after={"latch": latch},
                policy_hash=latch.policy.hash,
            )
    return None


def _incident_name(state: RunState, job: str, latch: Latch) -> str:
    """Named after what fired; a second incident at the same place of the same attempt gets a number."""
    name = f"{job}-a{latch.attempt}-s{latch.first_bad_step}"
    return name if name not in state.incident_names else f"{name}-{len(state.incident_names) + 1}"


# Phases ------------------------------------------------------------------------------------------------------------


def _pending(state: RunState, observation: Observation) -> Command | None:
    released = worlds.release_restored(state, observation)
    if released is not None:
        return released
    latest = observation.acks.latest
    if latest is None or latest.attempt != state.attempt:
        return None
    # The first words of a world may be read late: one that held by itself or finished has trained, too.
    self_held = latest.state is AckState.HOLDING and latest.reason == Reason.NON_FINITE
    return _running(state) if self_held or latest.state in {AckState.RUNNING, AckState.FINISHED} else None


def _running(state: RunState) -> Command:
    number = state.world.number if state.world else 0
    return drafts.record(state, JournalAction.WORLD_RUNNING, _P.WATCHING, after={"world": number})


def _watching(state: RunState, observation: Observation) -> Command | None:
    for decide in (requests.go_on, worlds.release_restored, _complete, _release_self_hold, _renew_on_nonfinite):
        command = decide(state, observation)
        if command is not None:
            return command
    return None


def _probation(state: RunState, observation: Observation) -> Command | None:
    released = requests.go_on(state, observation) or worlds.release_restored(state, observation)
    if released is not None or state.incident is None:
        return released
    until = state.incident.probation_until
    finished = final_checkpoint.finished_and_judged(state, observation)
    if observation.judged_step >= until or finished:
        judged = f"all rules green up to step {observation.judged_step}"
        outcome = f"{judged}, the end of the run" if finished else f"{judged}, behind the probation's last step {until}"
        return drafts.record(
            state, JournalAction.INCIDENT_CLOSED, _P.WATCHING, outcome="Recovered", reason={"message": outcome}
        )
    return _release_self_hold(state, observation) or _renew_on_nonfinite(state, observation)


def _holding(state: RunState, observation: Observation) -> Command | None:
    incident, directive = state.incident, state.directive
    if incident is None or directive is None:
        return None
    if incident.latch.action == "Stop":
        stop = drafts.instruct(state, observation, Action.STOP, incident=incident.name)
        return drafts.intend(state, JournalAction.STOPPED, stop, _P.STOPPED, drafts.firing_reason(incident.latch))
    if incident.paused and incident.held_step is not None:
        return None
    if not state.world_lives:
        return _held(state, observation, step=observation.judged_step, lost=True, agree=None)
    if directive.action is not Action.HOLD or directive.incident != incident.name:
        hold = drafts.instruct(state, observation, Action.HOLD, incident=incident.name)
        return drafts.intend(state, JournalAction.DIRECTIVE, hold, reason=drafts.firing_reason(incident.latch))
    latest = observation.acks.latest
    if (
        latest is not None
        and latest.state is AckState.HOLDING
        and latest.attempt == state.attempt
        and (latest.epoch, latest.seq) >= directive.order
        and observation.judged_step >= min(latest.step, incident.latch.fired_step)
    ):
        agree = latest.replicas.agree if latest.replicas else None
        return _held(state, observation, step=latest.step, lost=False, agree=agree)
    return None


def _held(state: RunState, observation: Observation, *, step: int, lost: bool, agree: bool | None) -> Command:
    latest = observation.acks.latest
    differing = list(latest.replicas.differing) if latest and latest.replicas and not lost else []
    nonfinite = list(latest.nonfinite) if latest and latest.nonfinite is not None and not lost else None
    reason: dict[str, Any] = {"differing": differing} if differing else {}
    after: dict[str, Any] = {"step": step, "lost": lost, "replicas_agree": agree, "nonfinite_state": nonfinite}
    paused = state.incident is not None and state.incident.paused
    if paused and state.incident is not None:
        why = state.incident.latch.message
        reason["message"] = f"the run is paused, for {why}; {requests.how_to_answer(observation.job)}"
        after["paused"] = True
    return drafts.record(
        state,
        JournalAction.HELD,
        None if paused else _P.DIAGNOSING,
        evidence=observation.frozen_evidence,
        reason=reason or None,
        after=after,
    )


def _diagnosing(state: RunState, observation: Observation) -> Command | None:
    incident = state.incident
    if incident is None:
        return None
    if incident.replicas_agree is False:
        finding, why = Finding.TRANSIENT, "replicas disagree: one of them was damaged, the data is not to blame"
    elif incident.world_lost:
        finding, why = Finding.UNDECIDED, "the suspect state is lost with its pods"
    elif incident.replicas_agree is None:
        finding, why = Finding.UNDECIDED, "the replicas of the suspect state were not compared"
    else:
        finding, why = Finding.UNDECIDED, "replicas agree; nothing proves a transient fault"
    return drafts.record(state, JournalAction.DIAGNOSED, _P.SELECTING, after={"finding": finding.value, "why": why})


def _selecting(state: RunState, observation: Observation) -> Command | None:
    incident = state.incident
    if incident is None:
        return None
    retarget = bool(incident.plans) and bool(incident.plans[-1].failed)
    spent = bookkeeping.rollbacks_in_window(state, observation)
    counted = not retarget and not incident.asked
    if counted and spent >= observation.limits.max_rollbacks:
        why = f"{spent} rollbacks within the budget's window are spent (budget.maxRollbacks)"
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})
    if len(incident.plans) >= MAX_PLANS:
        why = f"none of this incident's {MAX_PLANS} plans helped, and an incident holds no more"
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})
    selection = select_rollback(state)
    if selection.target is None and not state.checkpoints and state.world_lives:
        return None  # the state before the first step is saved, too, and still on its way
    if selection.target is None:
        why = f"no trustworthy checkpoint at or before step {selection.bound} is left"
        return drafts.record(
            state,
            JournalAction.NEEDS_HUMAN,
            _P.NEEDS_HUMAN,
            reason={"message": why, "candidates": list(selection.candidates)},
        )
    plan = Plan(number=len(incident.plans) + 1, target=selection.target.reference)
    return drafts.record(
        state,
        JournalAction.TARGET_SELECTED,
        _P.RESTORING,
        reason={
            "message": f"step {plan.target.step}: the newest trustworthy one at or before step {selection.bound}",
            "bound": selection.bound,
            "candidates": list(selection.candidates),
        },
        after={"plan": plan, "counted": counted, **({"asked": True} if incident.asked and not retarget else {})},
    )


def _restoring(state: RunState, observation: Observation) -> Command | None:
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
        return bookkeeping.quarantine(state, incident.target, f"{failed.reason}: {failed.detail}")
    return None


def _drop_target(state: RunState, _observation: Observation) -> Command | None:
    """A plan whose target is quarantined has failed, whoever found it out: no world may restore it any more."""
    incident = state.incident
    if state.phase not in {_P.RESTORING, _P.DIAGNOSING_RESTORED} or incident is None or incident.target is None:
        return None
    known = state.checkpoint(incident.target.key)
    if known is None or known.state is not CheckpointState.QUARANTINED:
        return None
    return drafts.record(
        state,
        JournalAction.RESTORE_FAILED,
        _P.SELECTING,
        reason={"message": known.why},
        after={"key": incident.target.key, "why": known.why},
    )


def _refused_skip(state: RunState, observation: Observation) -> Command | None:
    """A range that begins in what is trained already is taken out again: it would fit no later checkpoint either."""
    refused, directive = state.refused, state.directive
    if refused is None or directive is None or refused.reason != Reason.RANGE_ALREADY_TRAINED:
        return None
    if state.phase is _P.PROBATION:
        reason = {"message": f"the plan skips nothing, so it would change nothing: {refused.detail}"}
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason=reason)
    action = Action.HOLD if state.phase is _P.NEEDS_HUMAN else directive.action
    without = drafts.instruct(state, observation, action, skip=state.skip_before)
    message = f"the skip is taken out again: {refused.detail}"
    return drafts.intend(state, JournalAction.DIRECTIVE, without, reason={"message": message})


def _diagnosing_restored(state: RunState, observation: Observation) -> Command | None:
    incident = state.incident
    if incident is None or incident.target is None or not state.world_lives:
        return None
    if incident.finding is Finding.TRANSIENT or incident.extent_done:
        return _resume(state, observation, incident, incident.target)
    if observation.probe_problem:
        reason = {"message": f"the extent of the damage is unknown: {observation.probe_problem}"}
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason=reason)
    if observation.probe is None:
        return None
    latch = incident.latch
    extent = find_extent(
        observation.probe,
        flagged=latch.flagged,
        before=latch.remediation.before,
        after=latch.remediation.after,
        sigma=latch.sigma,
        control_limit=latch.control_limit,
        shrink=latch.on_loss,
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
        return bookkeeping.quarantine(state, target, extent.message)
    if extent.outcome is ExtentOutcome.UNBOUNDED:
        return drafts.record(
            state,
            JournalAction.NEEDS_HUMAN,
            _P.NEEDS_HUMAN,
            reason=numbers,
            evidence=observation.probe_evidence,
        )
    first = max(extent.first, drafts.ledger(state).window_of_step(target.step + 1))
    skip = SkipRange(first=first, last=extent.last, bad=len(extent.bad))
    return drafts.record(
        state,
        JournalAction.EXTENT_FOUND,
        reason=numbers,
        evidence=observation.probe_evidence,
        after={"skip": skip},
    )


def _resume(state: RunState, observation: Observation, incident: Incident, target: CheckpointReference) -> Command:
    ledger, override = drafts.ledger(state), incident.latch.remediation.learning_rate
    if incident.extent is not None:
        ledger = ledger.including(incident.extent.first, incident.extent.last)
    lr = LearningRateOverride(scale=override.scale, until_step=target.step + override.until_step) if override else None
    directive = drafts.instruct(state, observation, Action.RUN, skip=ledger.ranges, lr=lr, incident=incident.name)
    skipped = f"windows {incident.extent.first} to {incident.extent.last}" if incident.extent else "nothing"
    message = f"resume behind step {target.step}, skipping {skipped}"
    return drafts.intend(state, JournalAction.DIRECTIVE, directive, _P.PROBATION, {"message": message})


def _needs_human(state: RunState, observation: Observation) -> Command | None:
    """A world that was started to hold for a human is brought to where it shall hold."""
    return worlds.confirm_restore(state, observation) if worlds.stuck_again(state) else None


# Shared by several phases --------------------------------------------------------------------------------------------


def _complete(state: RunState, observation: Observation) -> Command | None:
    if not final_checkpoint.finished_and_judged(state, observation) or observation.firing is not None:
        return None
    if final_checkpoint.is_awaited(state, observation):
        return None
    finish = drafts.instruct(state, observation, Action.FINISH)
    message = f"all {observation.judged_step} steps are trained and judged; {final_checkpoint.told(state, observation)}"
    return drafts.intend(state, JournalAction.COMPLETED, finish, _P.COMPLETED, {"message": message})


def _complete_without_world(state: RunState, observation: Observation) -> Command | None:
    """A world that went away after it had finished is not started again for nothing."""
    return _complete(state, observation) if state.phase is _P.WATCHING and not state.world_lives else None


def _release_self_hold(state: RunState, observation: Observation) -> Command | None:
    """A world that held by itself after a non-finite step goes on when that record fires no enforced rule."""
    latest, directive = observation.acks.latest, state.directive
    if (
        not state.world_lives
        or latest is None
        or directive is None
        or directive.action is not Action.RUN
        or latest.state is not AckState.HOLDING
    ):
        return None
    own = latest.reason == Reason.NON_FINITE and (latest.epoch, latest.seq) == directive.order
    if not own or observation.judged_step < latest.step or directive.release == latest.step:
        return None
    run = drafts.instruct(state, observation, Action.RUN, release=latest.step)
    message = f"no enforced rule fires on the withheld step {latest.step}"
    return drafts.intend(state, JournalAction.DIRECTIVE, run, reason={"message": message})


def _renew_on_nonfinite(state: RunState, observation: Observation) -> Command | None:
    directive = state.directive
    if not state.world_lives or directive is None or directive.action is not Action.RUN:
        return None
    wanted = OnNonFinite.HOLD if observation.hold_on_nonfinite else OnNonFinite.CONTINUE
    if directive.on_nonfinite is wanted:
        return None
    run = drafts.instruct(state, observation, Action.RUN)
    return drafts.intend(
        state, JournalAction.DIRECTIVE, run, reason={"message": f"policies ask for {wanted} on non-finite"}
    )


def _nothing(_state: RunState, _observation: Observation) -> Command | None:
    return None


_PHASES: Mapping[RunPhase, Callable[[RunState, Observation], Command | None]] = {
    _P.PENDING: _pending,
    _P.WATCHING: _watching,
    _P.HOLDING: _holding,
    _P.DIAGNOSING: _diagnosing,
    _P.SELECTING: _selecting,
    _P.AWAITING_APPROVAL: _nothing,
    _P.RESTORING: _restoring,
    _P.DIAGNOSING_RESTORED: _diagnosing_restored,
    _P.PROBATION: _probation,
    _P.NEEDS_HUMAN: _needs_human,
    _P.COMPLETED: _nothing,
    _P.STOPPED: _nothing,
    _P.FAILED: bookkeeping.reopen,
}

_IN_EVERY_PHASE = (
    bookkeeping.next_record,
    _next_firing,
    _drop_target,
    _refused_skip,
    requests.next_command,
    _complete_without_world,
    worlds.next_command,
)
"""What is looked at before a phase's own decision, in this order."""
