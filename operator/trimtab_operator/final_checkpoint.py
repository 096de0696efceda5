"""The checkpoint of the last step, which the run was made for: read back and certified before the run completes. Pure.

The finished world reads it back while it waits for its Finish. That is waited for, but only for so long: a run whose
last checkpoint nobody could read back completes, too, and says so.
"""

from trimtab_contract.directives import Ack

from trimtab_operator.observation import Acks, Observation
from trimtab_operator.run_state import RESTORABLE, Checkpoint, CheckpointState, RunState


def finished_word(state: RunState, acks: Acks, last_step: int | None) -> Ack | None:
    """What the newest attempt says of its end; a trainer that says so before the run's last step is not believed."""
    finished = acks.finished
    if finished is None or finished.attempt != state.attempt:
        return None
    return finished if last_step is None or finished.step >= last_step else None


def finished_and_judged(state: RunState, observation: Observation) -> bool:
    """Whether the newest attempt has trained its last step, and every record up to it is judged without a gap."""
    finished = finished_word(state, observation.acks, observation.last_step)
    return finished is not None and observation.judged_step >= finished.step


def is_final(state: RunState, checkpoint: Checkpoint, observation: Observation) -> bool:
    """Whether a checkpoint holds what the run has led to."""
    finished = finished_word(state, observation.acks, observation.last_step)
    if finished is None or not finished_and_judged(state, observation):
        return False
    return checkpoint.reference.step == finished.step and state.surviving(checkpoint)


def is_awaited(state: RunState, observation: Observation) -> bool:
    """Whether the last checkpoint of a finished run may still be looked at, by its world or by the operator."""
    finished = finished_word(state, observation.acks, observation.last_step)
    if observation.final_check_over or not state.world_lives or finished is None:
        return False
    known = _newest(state, observation)
    if known is not None:
        return known.state is CheckpointState.COMMITTED
    return any(one.step == finished.step and state.checkpoint(one.key) is None for one in observation.acks.saved)


def told(state: RunState, observation: Observation) -> str:
    """How far the last checkpoint can be trusted, in words."""
    known = _newest(state, observation)
    if known is None:
        return "no checkpoint of the last step can be used"
    if known.state is CheckpointState.COMMITTED:
        return "the last checkpoint is Committed only: nobody has read it back in time"
    return f"the last checkpoint is {known.state.value}"


def _newest(state: RunState, observation: Observation) -> Checkpoint | None:
    final = [one for one in state.checkpoints if is_final(state, one, observation) and one.state in RESTORABLE]
    return final[-1] if final else None
