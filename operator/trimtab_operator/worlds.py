"""The newest world: notice that it ended, end one that hangs, start the next, let a restored one run. Pure."""

from typing import Any

from trimtab_contract.directives import Action, Directive, Reason
from trimtab_contract.journal import Phase

from trimtab_operator import bookkeeping, drafts
from trimtab_operator.commands import Append, Command, Draft
from trimtab_operator.observation import Observation, PodsState
from trimtab_operator.run_state import JournalAction, RunPhase, RunState
from trimtab_operator.selection import select_restart

_P = RunPhase


def next_command(state: RunState, observation: Observation) -> Command | None:
    """Notice that the newest world has ended, end one that hangs, start the next."""
    if state.phase in {_P.FAILED, _P.NEEDS_HUMAN}:
        return None
    world = state.world
    if world is not None and world.live:
        return _end_of_world(state, observation)
    if observation.limits.suspend or observation.blocked:
        return None
    if world is not None and observation.pods.world != world.number:
        return None
    if world is not None and observation.pods.state not in {PodsState.GONE, PodsState.ABSENT}:
        return None
    if state.phase in {_P.PENDING, _P.WATCHING, _P.PROBATION}:
        return _restart(state, observation)
    if state.phase in {_P.RESTORING, _P.DIAGNOSING_RESTORED} and state.incident is not None:
        directive = drafts.restore_directive(state, observation, state.incident, world=state.attempt + 1)
        reason = {"message": "the world was lost; the next one starts held on the plan's target"}
        return _start(state, observation, directive, reason, counted=False, phase=_P.RESTORING)
    return None


def _end_of_world(state: RunState, observation: Observation) -> Command | None:
    pods, world = observation.pods, state.world
    if world is None or pods.world != world.number:
        return None
    messages = [message for message in pods.messages if message.world == world.number]
    bad_config = next((item for item in messages if item.reason is Reason.BAD_CONFIG), None)
    if bad_config is not None and state.phase in {_P.PENDING, _P.WATCHING, _P.PROBATION}:
        return drafts.record(
            state,
            JournalAction.FAILED,
            _P.FAILED,
            reason={"message": bad_config.detail},
            after={"message": f"BadConfig: {bad_config.detail}", "generation": world.spec_generation},
        )
    if pods.state is PodsState.GONE:
        return _lost(state, observation)
    wanted_end = "Suspended" if observation.limits.suspend else observation.hung
    if wanted_end and pods.state is not PodsState.ABSENT:
        return Append(
            Draft(
                action=JournalAction.END_WORLD,
                phase=Phase.INTENT,
                id=state.next_id(state.incident.name if state.incident else None),
                incident=state.incident.name if state.incident else None,
                reason={"message": wanted_end},
                after={"world": world.number, "pods": list(pods.names)},
            )
        )
    return None


def _lost(state: RunState, observation: Observation) -> Command:
    pods, world = observation.pods, state.world
    number = world.number if world else 0
    messages = [message for message in pods.messages if message.world == number]
    stuck = next((item for item in messages if item.reason is Reason.STUCK_NON_FINITE), None)
    terminated = any(item.reason is Reason.TERMINATED for item in messages)
    reason = "Crashed"
    if observation.limits.suspend:
        reason = "Suspended"
    elif stuck is not None:
        reason = Reason.STUCK_NON_FINITE.value
    elif terminated or pods.evicted:
        reason = Reason.TERMINATED.value
    after: dict[str, Any] = {"world": number, "reason": reason, "hung": observation.hung}
    if stuck is not None:
        after["stuck_step"] = stuck.step
    details = "; ".join(
        f"{item.reason.value}: {item.detail}" if item.detail else item.reason.value for item in messages
    )
    return drafts.record(
        state, JournalAction.WORLD_LOST, reason={"message": details or pods.trouble or reason}, after=after
    )


def _restart(state: RunState, observation: Observation) -> Command:
    world = state.world
    lost_reason = world.lost_reason if world else ""
    if world is not None and state.stuck_steps and state.stuck_steps.count(state.stuck_steps[-1]) > 1:
        why = f"every update was withheld as non-finite, twice at step {state.stuck_steps[-1]}"
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _needs_human(state), reason={"message": why})
    counted = world is not None and lost_reason not in {Reason.TERMINATED.value, "Suspended", ""}
    if counted and state.restarts >= observation.limits.max_restarts:
        message = f"{state.restarts} restarts are spent (budget.maxRestarts); the last world ended as {lost_reason}"
        return drafts.record(
            state,
            JournalAction.FAILED,
            _P.FAILED,
            reason={"message": message},
            after={"message": message, "generation": observation.limits.generation},
        )
    checkpoint = select_restart(state)
    number = state.attempt + 1
    directive = drafts.instruct(
        state,
        observation,
        Action.HOLD if checkpoint else Action.RUN,
        world=number,
        attempt=number,
        restore=checkpoint.reference if checkpoint else None,
    )
    message = f"world {number} starts from " + (f"step {checkpoint.reference.step}" if checkpoint else "the seed")
    return _start(state, observation, directive, {"message": message}, counted=counted)


def _needs_human(state: RunState) -> RunPhase:
    return state.phase if state.phase is _P.PENDING else _P.NEEDS_HUMAN


def _start(
    state: RunState,
    observation: Observation,
    directive: Directive,
    reason: dict[str, Any],
    *,
    counted: bool,
    phase: RunPhase | None = None,
) -> Append:
    return drafts.intend(
        state,
        JournalAction.START_WORLD,
        directive,
        phase,
        reason,
        counted=counted,
        generation=observation.limits.generation,
    )


def release_restored(state: RunState, observation: Observation) -> Command | None:
    """After a fault restart: let the world run once its restore was acknowledged."""
    directive = state.directive
    if directive is None or directive.action is not Action.HOLD or directive.restore is None:
        return None
    restored, failed = observation.acks.restored, observation.acks.failed
    if restored is not None and restored.attempt == state.attempt:
        if state.restored_attempt != state.attempt:
            verified = bookkeeping.verified_while_restoring(state, directive.restore, restored.hosts)
            return verified or drafts.record(
                state,
                JournalAction.WORLD_RESTORED,
                after={"attempt": state.attempt, "checkpoint": directive.restore},
                reason={"message": restored.detail},
            )
        run = drafts.instruct(state, observation, Action.RUN)
        return drafts.intend(
            state, JournalAction.DIRECTIVE, run, reason={"message": f"go on behind step {directive.restore.step}"}
        )
    if failed is not None and failed.attempt == state.attempt:
        return _retry_restart(state, observation, f"{failed.reason}: {failed.detail}")
    return None


def _retry_restart(state: RunState, observation: Observation, why: str) -> Command:
    """The restore of a fault restart failed: the same world tries the next older checkpoint as a new attempt."""
    directive = state.directive
    if directive is not None and directive.restore is not None:
        quarantined = bookkeeping.quarantine(state, directive.restore, why)
        if quarantined is not None:
            return quarantined
    checkpoint = select_restart(state)
    if checkpoint is None:
        message = f"no checkpoint can be restored; the last one failed: {why}"
        return drafts.record(
            state,
            JournalAction.FAILED,
            _P.FAILED,
            reason={"message": message},
            after={"message": message, "generation": observation.limits.generation},
        )
    again = drafts.instruct(state, observation, Action.HOLD, attempt=state.attempt + 1, restore=checkpoint.reference)
    return drafts.intend(state, JournalAction.DIRECTIVE, again, reason={"message": why})
