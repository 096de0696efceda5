"""Whose word it is that a checkpoint can be read back, and where a node's word about itself counts."""

from typing import Any

from run_states import ack, checkpoint, reference, run_state
from trimtab_contract.directives import VERIFIED_BY_SELF, AckState
from trimtab_operator.commands import Append
from trimtab_operator.observation import Acks, Limits, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import JournalAction

LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)


def answered(by: str, *hosts: str) -> dict[str, Any] | None:
    """What is written of a committed checkpoint when a world of these hosts, a rank each, says who read it back."""
    running = ack(AckState.RUNNING, hosts=hosts, ranks=len(hosts))
    read = ack(AckState.VERIFIED, hosts=hosts, ranks=len(hosts), checkpoint=reference(80), by=by)
    acks = Acks().fold("1-0", running).fold("2-0", read)
    observation = Observation(
        job="demo",
        now="2026-01-01T00:00:00+00:00",
        limits=LIMITS,
        acks=acks,
        pods=Pods(world=1, state=PodsState.LIVE),
    )
    command = advance(run_state(checkpoints=(checkpoint(80, state="Committed"),)), observation)
    if not isinstance(command, Append) or command.draft.action is not JournalAction.VERIFIED:
        return None
    return command.draft.after


def test_the_hosts_that_read_a_checkpoint_back_are_its_evidence() -> None:
    after = answered("a,b", "a", "b")
    assert after is not None
    assert after["why"] == "read back and hashed whole by a,b"


def test_with_one_node_the_evidence_says_that_it_is_its_own_word() -> None:
    for hosts in (("a",), ("a", "a")):
        after = answered(VERIFIED_BY_SELF, *hosts)
        assert after is not None
        assert after["why"] == "read back and hashed whole by self, the one node there is"


def test_the_word_of_a_node_about_itself_counts_for_nothing_where_there_are_others() -> None:
    assert answered(VERIFIED_BY_SELF, "a", "b") is None
