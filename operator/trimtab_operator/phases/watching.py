"""Pending, Watching and Probation: a world that trains, until a rule fires or the run is complete."""

from trimtab_contract.directives import AckState, Action, OnNonFinite, Reason

from trimtab_operator import drafts, final_checkpoint, requests, worlds
from trimtab_operator import probation as probation_rules
from trimtab_operator.commands import Command
from trimtab_operator.incidents import DEGRADED, RECOVERED, Incident
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import JournalAction, RunPhase, RunState

_P = RunPhase


def pending(state: RunState, observation: Observation) -> Command | None:
    """The first word of a world that trains."""
    released = worlds.release_restored(state, observation)
    if released is not None:
        return released
    latest = observation.acks.latest
    if latest is None or latest.attempt != state.attempt:
        return None
    # The first words of a world may be read late: one that held by itself or finished has trained, too.
    self_held = latest.state is AckState.HOLDING and latest.reason == Reason.NON_FINITE
    return running(state) if self_held or latest.state in {AckState.RUNNING, AckState.FINISHED} else None


def running(state: RunState) -> Command:
    """The world trains: from now on it is watched."""
    number = state.world.number if state.world else 0
    return drafts.record(state, JournalAction.WORLD_RUNNING, _P.WATCHING, after={"world": number})


def watching(state: RunState, observation: Observation) -> Command | None:
    """End a run that is complete; else keep what the world was told in step with people and policies."""
    for decide in (requests.go_on, worlds.release_restored, _complete, release_self_hold, renew_on_nonfinite):
        command = decide(state, observation)
        if command is not None:
            return command
    return None


def probation(state: RunState, observation: Observation) -> Command | None:
    """Close the incident when its probation is over, green, and as good as what was before."""
    released = requests.go_on(state, observation) or worlds.release_restored(state, observation)
    if released is not None or state.incident is None:
        return released
    finished = final_checkpoint.finished_and_judged(state, observation)
    if observation.judged_step >= state.incident.probation_until or finished:
        return _judge_probation(state, observation, state.incident, finished=finished)
    return release_self_hold(state, observation) or renew_on_nonfinite(state, observation)


def _judge_probation(state: RunState, observation: Observation, incident: Incident, *, finished: bool) -> Command:
    """Close the incident; or extend its probation, for no rule fired and yet the run is not as it was."""
    until, after = incident.probation_until, observation.probation
    doubts = probation_rules.doubts(incident.baseline, after, incident.latch.remediation.min_throughput)
    told = "; ".join(doubt.message for doubt in doubts)
    if doubts and not finished and incident.extensions < probation_rules.MAX_EXTENSIONS:
        longer = until + incident.latch.remediation.probation_steps
        return drafts.record(
            state,
            JournalAction.PROBATION_EXTENDED,
            reason={"message": f"no rule fires, but {told}; the probation goes on to step {longer}"},
            after={"until": longer, "doubts": [doubt.message for doubt in doubts], "vitals": after},
        )
    judged = f"all rules green up to step {observation.judged_step}"
    message = f"{judged}, the end of the run" if finished else f"{judged}, behind the probation's last step {until}"
    message += f"; but {told}" if doubts else ""
    numbers = probation_rules.compared(incident.baseline, after)
    message += f"; {numbers}" if numbers and not doubts else ""
    return drafts.record(
        state,
        JournalAction.INCIDENT_CLOSED,
        _P.WATCHING,
        outcome=DEGRADED if any(doubt.harmful for doubt in doubts) else RECOVERED,
        reason={"message": message},
        after={"doubts": [doubt.message for doubt in doubts], "vitals": after} if after is not None else {},
    )


def needs_human(state: RunState, observation: Observation) -> Command | None:
    """A world that was started to hold for a human is brought to where it shall hold."""
    return worlds.confirm_restore(state, observation) if worlds.stuck_again(state) else None


def _complete(state: RunState, observation: Observation) -> Command | None:
    if not final_checkpoint.finished_and_judged(state, observation) or observation.firing is not None:
        return None
    if final_checkpoint.is_awaited(state, observation):
        return None
    finish = drafts.instruct(state, observation, Action.FINISH)
    message = f"all {observation.judged_step} steps are trained and judged; {final_checkpoint.told(state, observation)}"
    return drafts.intend(state, JournalAction.COMPLETED, finish, _P.COMPLETED, {"message": message})


def complete_without_world(state: RunState, observation: Observation) -> Command | None:
    """A world that went away after it had finished is not started again for nothing."""
    return _complete(state, observation) if state.phase is _P.WATCHING and not state.world_lives else None


def release_self_hold(state: RunState, observation: Observation) -> Command | None:
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


def renew_on_nonfinite(state: RunState, observation: Observation) -> Command | None:
    """Tell the world what policies now ask for on a non-finite step."""
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
