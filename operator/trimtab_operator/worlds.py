"""The newest world: notice that it ended, end one that hangs, start the next, let a restored one run. Pure."""

from typing import Any

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Ack, Action, CheckpointReference, Directive, Reason, TerminationMessage
from trimtab_contract.journal import Evidence, Phase

from trimtab_operator import automation, bookkeeping, checkpoint_records, drafts
from trimtab_operator.commands import Append, Command, Draft
from trimtab_operator.incidents import Incident
from trimtab_operator.observation import Observation, PodsState
from trimtab_operator.run_state import Checkpoint, JournalAction, RunPhase, RunState, Source, World
from trimtab_operator.selection import ENOUGH_UNPROVED, select_restart, told_unproved, why_not_restore

_P = RunPhase

SUSPENDED = "Suspended"
"""Why a world was told to end, and how it ended: asked for by `spec.suspend`, no fault."""

HUNG = "Hung"
"""How a world ended that was told to because it made no progress."""
RUN_FAILED = "RunFailed"
"""Likewise: the run has failed, and this world held for ever."""
EDITED = "Edited"
"""Likewise: it could not start as the job was written, and the job was corrected."""

_WHY_ENDED = {
    SUSPENDED: "spec.suspend is true",
    RUN_FAILED: "the run has failed",
    EDITED: "the job was edited before this world could start",
}

_OVER = frozenset({PodsState.GONE, PodsState.ABSENT})
_MAY_FAIL = frozenset({_P.PENDING, _P.WATCHING, _P.PROBATION, _P.RESTORING, _P.DIAGNOSING_RESTORED})


def next_command(state: RunState, observation: Observation) -> Command | None:
    """Notice that the newest world has ended, end one that hangs or outlived its run's failure, start the next."""
    world, pods, limits = state.world, observation.pods, observation.limits
    if world is not None and pods.world != world.number:
        return None
    if world is not None and world.live:
        return _end_of_world(state, observation, world)
    if world is not None and pods.state not in _OVER:
        return _tell_to_end(state, observation, RUN_FAILED)
    if limits.suspend or observation.blocked:
        return None
    if world is not None and world.lost_reason not in {SUSPENDED, EDITED} and automation.waits(state, observation):
        return automation.wait(state, observation) if state.phase in _MAY_FAIL else None
    if state.phase in {_P.PENDING, _P.WATCHING, _P.PROBATION}:
        return _restart(state, observation)
    if state.phase in {_P.RESTORING, _P.DIAGNOSING_RESTORED} and state.incident is not None:
        return _restore_in_new_world(state, observation, state.incident)
    if state.phase is _P.NEEDS_HUMAN and stuck_again(state) and _ended_stuck(world):
        return _hold_for_human(state, observation)
    return None


def stuck_again(state: RunState) -> bool:
    """Whether two worlds ended at the same step with every update withheld: a third one would do the same."""
    return bool(state.stuck_steps) and state.stuck_steps.count(state.stuck_steps[-1]) > 1


def _ended_stuck(world: World | None) -> bool:
    return world is not None and world.lost_reason == Reason.STUCK_NON_FINITE


def _end_of_world(state: RunState, observation: Observation, world: World) -> Command | None:
    pods = observation.pods
    bad_config = next((item for item in _messages(observation, world) if item.reason is Reason.BAD_CONFIG), None)
    if bad_config is not None and state.phase in _MAY_FAIL:
        return _fail(state, f"{Reason.BAD_CONFIG.value}: {bad_config.detail}", world.spec_generation)
    if pods.state in _OVER:
        return _lost(state, observation, world)
    # A world that never spoke is told to end for what kept its pods from starting.
    hung = "; ".join(filter(None, (observation.hung, pods.trouble))) if observation.hung else ""
    why = SUSPENDED if observation.limits.suspend else hung or _edited(state, observation, world)
    return _tell_to_end(state, observation, why) if why else None


def _edited(state: RunState, observation: Observation, world: World) -> str:
    """A world that waits for what an edit of the job may have mended is made anew; one that started is left alone."""
    stuck = state.phase is _P.PENDING and observation.pods.state is PodsState.STARTING and observation.pods.trouble
    return EDITED if stuck and world.spec_generation != observation.limits.generation else ""


def _tell_to_end(state: RunState, observation: Observation, why: str) -> Command | None:
    """End the pods that nobody told to end yet; those that were take the time they need."""
    if not observation.pods.names:
        return None
    incident = state.incident.name if state.incident else None
    return Append(
        Draft(
            action=JournalAction.END_WORLD,
            phase=Phase.INTENT,
            id=state.next_id(incident),
            incident=incident,
            reason={"message": _WHY_ENDED.get(why, why)},
            after={"world": observation.pods.world, "pods": list(observation.pods.names), "why": why},
        )
    )


def _lost(state: RunState, observation: Observation, world: World) -> Command:
    pods = observation.pods
    messages = _messages(observation, world)
    stuck = next((item for item in messages if item.reason is Reason.STUCK_NON_FINITE), None)
    if state.phase is _P.NEEDS_HUMAN:
        stuck = None  # a world that holds for a human trains nothing it could be stuck in
    # A pod that was deleted may be gone with its message; the ack stays.
    said = observation.acks.terminated
    terminated = any(item.reason is Reason.TERMINATED for item in messages) or (
        said is not None and said.world == world.number
    )
    reason = "Crashed"
    if observation.limits.suspend or world.told_to_end == SUSPENDED:
        reason = SUSPENDED
    elif stuck is not None:
        reason = Reason.STUCK_NON_FINITE.value
    elif world.told_to_end == EDITED:
        reason = EDITED
    elif world.told_to_end:
        reason = HUNG
    elif terminated or pods.evicted:
        reason = Reason.TERMINATED.value
    after: dict[str, Any] = {"world": world.number, "reason": reason, "hung": world.told_to_end}
    if stuck is not None:
        after["stuck_step"] = stuck.step
    details = "; ".join(
        f"{item.reason.value}: {item.detail}" if item.detail else item.reason.value for item in messages
    )
    absent = pods.state is PodsState.ABSENT
    silent = "its Job does not exist any more" if absent else "its pods ended and left no word why"
    message = details or pods.trouble or silent
    if reason in {SUSPENDED, EDITED, HUNG}:
        message = _WHY_ENDED.get(reason) or world.told_to_end
    return drafts.record(state, JournalAction.WORLD_LOST, reason={"message": message}, after=after)


def _messages(observation: Observation, world: World) -> list[TerminationMessage]:
    return [message for message in observation.pods.messages if message.world == world.number]


def _restart(state: RunState, observation: Observation) -> Command:
    """After a fault: a new world from the newest checkpoint of the surviving history, or the first one."""
    if stuck_again(state):
        why = f"every update was withheld as non-finite, twice at step {state.stuck_steps[-1]}"
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})
    if _restarts_spent(state, observation):
        return _restarts_failed(state, observation)
    if not state.attempts and observation.source is not None:
        return _continue(state, observation, observation.source)
    checkpoint = select_restart(state)
    if checkpoint is None and state.source is not None:
        return _fail(state, _source_lost(state, state.source), observation.limits.generation)
    if checkpoint is None and state.checkpoints:
        return _fail(state, _none_left(state), observation.limits.generation)
    directive = _next_world(state, observation, Action.HOLD if checkpoint else Action.RUN, checkpoint)
    message = f"world {directive.world} starts from {_place(checkpoint)}"
    return _start(state, observation, directive, {"message": message})


def _continue(state: RunState, observation: Observation, source: Source) -> Command:
    """The first world continues another run: from its checkpoint, with what it skips and its learning rate."""
    target, skip = source.checkpoint, SkipLedger.of((*source.skip, *state.ledger.ranges))
    directive = drafts.instruct(state, observation, Action.HOLD, restore=target, skip=skip.ranges, lr=source.lr)
    message = (
        f"world {directive.world} continues run {source.run} behind step {target.step}, from the checkpoint whose "
        f"manifest has SHA-256 {target.sha256}; {source.state.value}: {source.why}"
    )
    return _start(
        state, observation, directive, {"message": message}, evidence=observation.source_evidence, source=source
    )


def _none_left(state: RunState) -> str:
    """Why a run that has checkpoints and may restore none does not begin anew: never from its seed without a word."""
    newest = max(state.checkpoints, key=lambda one: (one.reference.step, one.attempt))
    why = why_not_restore(state, newest)
    return (
        f"none of the run's {len(state.checkpoints)} checkpoints may be restored; the newest, of step "
        f"{newest.reference.step}: {why}; to begin anew from the seed, start a new TrainingJob"
    )


def _source_lost(state: RunState, source: Source) -> str:
    """Why a run that continues another one has nothing left to start from: never from its seed without a word."""
    known = state.checkpoint(source.checkpoint.key)
    why = known.why if known is not None else "it is not known any more"
    place = f"the checkpoint of step {source.checkpoint.step} of run {source.run}, which this run continues"
    return f"{place}, cannot be restored: {why}; start a new TrainingJob from another one (spec.resumeFrom)"


def _hold_for_human(state: RunState, observation: Observation) -> Command:
    """The last world was stuck where the one before it was: the next one holds, for a human to look and decide."""
    checkpoint = select_restart(state)
    directive = _next_world(state, observation, Action.HOLD, checkpoint)
    message = f"world {directive.world} holds at {_place(checkpoint)} until a human decides"
    return _start(state, observation, directive, {"message": message})


def _next_world(state: RunState, observation: Observation, action: Action, checkpoint: Checkpoint | None) -> Directive:
    number = state.attempt + 1
    return drafts.instruct(
        state,
        observation,
        action,
        world=number,
        attempt=number,
        restore=checkpoint.reference if checkpoint else None,
        incident=state.incident.name if state.incident else None,
    )


def _place(checkpoint: Checkpoint | None) -> str:
    return f"step {checkpoint.reference.step}" if checkpoint else "the seed"


def _restore_in_new_world(state: RunState, observation: Observation, incident: Incident) -> Command:
    """The world was lost under a plan: the next one starts held on the plan's target."""
    if _restarts_spent(state, observation):
        return _restarts_failed(state, observation)
    directive = drafts.restore_directive(state, observation, incident, world=state.attempt + 1)
    reason = {"message": "the world was lost; the next one starts held on the plan's target"}
    return _start(state, observation, directive, reason, phase=_P.RESTORING)


def _counted(state: RunState) -> bool:
    """Whether the start of the next world counts as a restart: the last one was not evicted, suspended or edited."""
    lost_reason = state.world.lost_reason if state.world else ""
    return lost_reason not in {Reason.TERMINATED.value, SUSPENDED, EDITED, ""}


def _restarts_spent(state: RunState, observation: Observation) -> bool:
    return _counted(state) and state.restarts >= observation.limits.max_restarts


def _restarts_failed(state: RunState, observation: Observation) -> Command:
    lost_reason = state.world.lost_reason if state.world else ""
    message = f"{state.restarts} restarts are spent (budget.maxRestarts); the last world ended as {lost_reason}"
    return _fail(state, message, observation.limits.generation)


def _fail(state: RunState, message: str, generation: int) -> Command:
    return drafts.record(
        state,
        JournalAction.FAILED,
        _P.FAILED,
        reason={"message": message},
        after={"message": message, "generation": generation},
    )


def _start(
    state: RunState,
    observation: Observation,
    directive: Directive,
    reason: dict[str, Any],
    *,
    phase: RunPhase | None = None,
    evidence: tuple[Evidence, ...] = (),
    source: Source | None = None,
) -> Append:
    return drafts.intend(
        state,
        JournalAction.START_WORLD,
        directive,
        phase,
        reason,
        evidence=evidence,
        counted=_counted(state),
        generation=observation.limits.generation,
        **({"avoid": list(state.suspect_nodes)} if state.suspect_nodes else {}),
        **({"source": source} if source is not None else {}),
    )


def release_restored(state: RunState, observation: Observation) -> Command | None:
    """After a fault restart: let the world run once its restore was acknowledged."""
    command, directive = confirm_restore(state, observation), state.directive
    if command is not None or not _starts_held(state) or directive is None or directive.restore is None:
        return command
    if state.restored_attempt != state.attempt:
        return None
    run = drafts.instruct(state, observation, Action.RUN)
    return drafts.intend(
        state, JournalAction.DIRECTIVE, run, reason={"message": f"go on behind step {directive.restore.step}"}
    )


def _starts_held(state: RunState) -> bool:
    directive = state.directive
    return (
        state.world_lives
        and directive is not None
        and directive.action is Action.HOLD
        and directive.restore is not None
    )


def confirm_restore(state: RunState, observation: Observation) -> Command | None:
    """What became of the restore that a world starts with: written down, or tried again; the world stays held."""
    directive = state.directive
    if not _starts_held(state) or directive is None or directive.restore is None:
        return None
    restored, failed = observation.acks.restored, observation.acks.failed
    if restored is not None and restored.attempt == state.attempt:
        if state.restored_attempt == state.attempt:
            return None
        verified = bookkeeping.verified_while_restoring(state, directive.restore, restored.hosts)
        return verified or drafts.record(
            state,
            JournalAction.WORLD_RESTORED,
            after={"attempt": state.attempt, "checkpoint": directive.restore},
            reason={"message": restored.detail},
        )
    if failed is not None and failed.attempt == state.attempt:
        if failed.reason == Reason.STORE_UNAVAILABLE:
            again = drafts.instruct(state, observation, Action.HOLD, attempt=state.attempt + 1)
            return drafts.intend(state, JournalAction.DIRECTIVE, again, reason={"message": store_away(failed)})
        if failed.reason == Reason.CONFIG_MISMATCH and state.phase in _MAY_FAIL:
            return misfit(state, observation, failed)
        return _retry_restart(state, observation, failed)
    return None


def misfit(state: RunState, observation: Observation, failed: Ack) -> Command:
    """The run fails until it is edited: a sound checkpoint is not to blame for a configuration it does not fit."""
    generation = state.world.spec_generation if state.world is not None else observation.limits.generation
    meant = "spec.trainer.config, the data it names or the trainer's image is not what the checkpoints were saved under"
    message = f"{failed.reason}: {meant}: {failed.detail}; set it back, or start a new TrainingJob"
    return _fail(state, message, generation)


def store_away(failed: Ack) -> str:
    """Why the same checkpoint is tried again: a store that does not answer says nothing about what it holds."""
    return f"the checkpoint store does not answer, so the same checkpoint is tried again: {failed.detail}"


def _retry_restart(state: RunState, observation: Observation, failed: Ack) -> Command | None:
    """The restore of a fault restart failed: the same world tries the next older checkpoint as a new attempt."""
    why = f"{failed.reason}: {failed.detail}"
    directive = state.directive
    if directive is not None and directive.restore is not None:
        noted = _noted_failure(state, directive.restore, failed, why)
        if noted is not None:
            return noted
    checkpoint = select_restart(state)
    unproved = state.unproved
    if failed.reason == Reason.PROBE_FAILED and len(unproved) >= ENOUGH_UNPROVED and state.phase in _MAY_FAIL:
        return _fail(state, told_unproved(unproved, why), observation.limits.generation)
    if checkpoint is None and state.phase is _P.NEEDS_HUMAN:
        return None
    if checkpoint is None:
        message = f"no checkpoint can be restored; the last one failed: {why}"
        return _fail(state, message, observation.limits.generation)
    again = drafts.instruct(state, observation, Action.HOLD, attempt=state.attempt + 1, restore=checkpoint.reference)
    return drafts.intend(state, JournalAction.DIRECTIVE, again, reason={"message": why})


def _noted_failure(state: RunState, target: CheckpointReference, failed: Ack, why: str) -> Command | None:
    """What keeps the checkpoint from being tried again, unless it is written already.

    One whose bytes are those that were saved is passed over, not condemned: what runs it may be to blame.
    """
    if failed.reason != Reason.PROBE_FAILED:
        return checkpoint_records.quarantine(state, target, why)
    if target.key in state.restore_failures:
        return None
    after = {"key": target.key, "why": why}
    return drafts.record(state, JournalAction.RESTORE_FAILED, reason={"message": why}, after=after)
