"""Skip: windows that are known to be bad are taken out before the run comes to them."""

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Action

from trimtab_operator import drafts
from trimtab_operator.commands import Append, Command
from trimtab_operator.observation import Observation, Request
from trimtab_operator.requests.ranges import trained_step, why_no_skip
from trimtab_operator.requests.records import accept as accepted
from trimtab_operator.run_state import AnsweredRequest, JournalAction, RunState


def why_not(state: RunState, observation: Observation, request: Request) -> str:
    """Why the windows cannot be skipped from where the run is."""
    skip = request.wishes.skip
    if skip is None:
        return "it names no windows"
    return why_no_skip(state, observation, skip, trained_step(state, observation))


def must_wait(state: RunState, _request: Request) -> bool:
    """One at a time: what the trainer refuses is then known to be the one that it was told last."""
    return any(_is_told(state, one) for one in state.requests)


def accept(state: RunState, _observation: Observation, request: Request) -> Append:
    """From now on the windows are in every ledger; a world that trains is told at once, one that holds when it runs."""
    first, last = request.wishes.skip or (0, 0)
    return accepted(state, request, f"windows {first} to {last} are skipped, whatever the run goes back to")


def carry_out(state: RunState, observation: Observation) -> Command | None:
    """Tell a world that trains, and write down that it has taken the skip up."""
    directive = state.directive
    waiting = [one for one in state.requests if one.open_skip is not None]
    if not waiting or directive is None or not state.world_lives or directive.action is not Action.RUN:
        return None
    if directive.skip != state.ledger.ranges:
        words = ", ".join(f"{first} to {last}" for first, last in (one.open_skip for one in waiting if one.open_skip))
        run = drafts.instruct(state, observation, Action.RUN, release=directive.release, incident=directive.incident)
        reason = {"message": f"windows {words} are skipped, as {waiting[-1].by} asks"}
        return drafts.intend(state, JournalAction.DIRECTIVE, run, reason=reason)
    return _taken_up(state, observation, waiting)


def _taken_up(state: RunState, observation: Observation, waiting: list[AnsweredRequest]) -> Command | None:
    latest, directive = observation.acks.latest, state.directive
    if latest is None or directive is None or latest.attempt != state.attempt or state.refused is not None:
        return None
    if (latest.epoch, latest.seq) < directive.order:
        return None
    words = ", ".join(f"{first} to {last}" for first, last in (one.open_skip for one in waiting if one.open_skip))
    return drafts.record(
        state,
        JournalAction.SKIPPED,
        incident=None,
        reason={"message": f"the trainer has taken windows {words} out, from behind step {latest.step} on"},
        after={"requests": [one.uid for one in waiting]},
    )


def _is_told(state: RunState, request: AnsweredRequest) -> bool:
    """Whether the directive in force has the windows of a Skip that no world has confirmed."""
    skip, directive = request.open_skip, state.directive
    if skip is None or directive is None or directive.action is not Action.RUN:
        return False
    return SkipLedger(directive.skip).covers(*skip)
