"""Whether windows can still be taken out of a run's data."""

from trimtab_operator.observation import Observation
from trimtab_operator.run_state import RunState


def trained_step(state: RunState, observation: Observation) -> int:
    """The last step that the newest attempt is known to have trained."""
    latest = observation.acks.latest
    said = latest.step if latest is not None and latest.attempt == state.attempt else 0
    continued = observation.source.checkpoint.step if observation.source is not None else 0
    begun = state.attempts[-1].branch_step if state.attempts else continued
    return max(observation.judged_step, said, begun)


def why_no_skip(state: RunState, observation: Observation, skip: tuple[int, int], step: int) -> str:
    """Why a run that goes on behind `step` cannot skip these windows (inclusive); empty when it can.

    The trainer applies the same rule again at the boundary where it takes the skip up.
    """
    first, last = skip
    ledger = state.ledger
    inside = next((pair for pair in ledger.ranges if pair[0] <= first and last <= pair[1]), None)
    if inside is not None:
        return f"windows {first} to {last} are skipped already, as part of {inside[0]} to {inside[1]}"
    if not ledger.including(first, last).agrees_up_to(ledger, step):
        following = ledger.window_of_step(step + 1)
        return (
            f"RangeAlreadyTrained: behind step {step} the run goes on with window {following}, so windows {first} to "
            f"{last} begin in what is trained; go back behind them with Rollback"
        )
    end = ledger.window_of_step(observation.last_step) if observation.last_step else None
    if end is not None and first > end:
        return f"the run ends with window {end}, so windows {first} to {last} are none of its"
    count = last - first + 1
    if observation.last_step and count > observation.last_step:
        return (
            f"windows {first} to {last} are {count}, and the whole run trains on {observation.last_step}: what is "
            "skipped cannot be taken back, so name no more than are damaged"
        )
    return ""
