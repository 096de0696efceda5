"""A world that was drained: known as such whether its pods' messages or only its last ack can still be read."""

import pytest
from run_states import ack, attempts, run_state
from trimtab_contract.directives import AckState, Action, Directive, TerminationMessage
from trimtab_contract.directives import Reason as Ending
from trimtab_operator.commands import Append
from trimtab_operator.observation import Acks, Limits, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import JournalAction, World

LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)
MESSAGE = TerminationMessage(reason=Ending.TERMINATED, world=2, attempt=2, step=80)


def reason_of(acks: Acks, messages: tuple[TerminationMessage, ...]) -> str:
    """How the operator says that the second world of a run ended."""
    state = run_state(
        attempts=attempts((None, 0), (1, 40)),
        world=World(number=2),
        directive=Directive(epoch=1, seq=9, world=2, attempt=2, action=Action.RUN),
    )
    pods = Pods(world=2, state=PodsState.GONE, failed=True, messages=messages)
    command = advance(
        state, Observation(job="demo", now="2026-01-01T00:00:00+00:00", limits=LIMITS, acks=acks, pods=pods)
    )
    assert isinstance(command, Append)
    assert command.draft.action is JournalAction.WORLD_LOST
    return str((command.draft.after or {})["reason"])


@pytest.mark.parametrize(
    ("acks", "messages", "reason"),
    [
        (Acks(), (MESSAGE,), "Terminated"),
        (Acks().fold("1-0", ack(AckState.TERMINATED, world=2, attempt=2)), (), "Terminated"),
        (Acks().fold("1-0", ack(AckState.TERMINATED, world=1)), (), "Crashed"),
        (Acks().fold("1-0", ack(AckState.RUNNING, world=2, attempt=2)), (), "Crashed"),
    ],
)
def test_a_drained_world_is_told_from_a_crashed_one(
    acks: Acks, messages: tuple[TerminationMessage, ...], reason: str
) -> None:
    assert reason_of(acks, messages) == reason
