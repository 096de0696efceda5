"""Two replicas: the leader is frozen in the middle of an incident, the standby finishes it, the frozen one wakes."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_tail import JournalTail
from node_processes import PodProcess, leader, step_until
from sandbox_fixture import Cluster
from training_jobs import Namespace, Trail, guard_policy, install_chart
from trimtab_contract.directives import Action
from trimtab_operator.run_state import RunPhase
from trimtab_sandbox.commands import wait_until
from undisturbed_runs import commands, damaged_job, decisions

pytestmark = pytest.mark.node


@pytest.fixture
def two_operators(operator: Cluster) -> Iterator[Cluster]:
    """A leader and a standby."""
    install_chart(operator, replicas=2)
    yield operator
    install_chart(operator)


@pytest.mark.usefixtures("two_operators")
def test_a_frozen_leader_that_wakes_changes_nothing(namespace: Namespace, undisturbed: Namespace) -> None:
    """Once it wakes long after its successor has finished, once while the successor is at work."""
    namespace.apply(guard_policy(), damaged_job("damaged", incidents=2))
    tail = JournalTail(namespace, "damaged")

    first = _freeze_with_an_intent(tail, incident=1)
    _wait_for_successor(tail, first)
    tail.wait("the end of the incident", lambda seen: seen.count("IncidentClosed") == 1)
    second = _freeze_with_an_intent(tail, incident=2)
    _wake_to_its_end(tail, first)
    _wait_for_successor(tail, second)
    _wake_to_its_end(tail, second)
    namespace.wait_phase("damaged", "Completed")

    trail = namespace.trail("damaged")
    _assert_no_stale_word(trail)
    assert decisions(trail) == decisions(undisturbed.trail("damaged"))[:2]
    expected = commands(undisturbed.trail("damaged"))
    assert commands(trail) == expected[: len(commands(trail))]
    assert tail.directive == trail.state.directive


def _freeze_with_an_intent(tail: JournalTail, incident: int) -> PodProcess:
    """Stop the leader between an intent of the incident and its result: the most it can have left to do.

    The Hold is in Redis then: without it the run would train on, and through the next damaged stretch.
    """
    frozen = leader(tail.namespace.cluster)
    pid = frozen.only_pid
    tail.wait(f"incident {incident}", lambda seen: seen.count("IncidentOpened") == incident)
    step_until(pid, lambda: tail.poll().phase is RunPhase.PROBATION or (tail.state.pending is not None and _held(tail)))
    return frozen


def _held(tail: JournalTail) -> bool:
    return tail.directive is not None and tail.directive.action is Action.HOLD


def _wait_for_successor(tail: JournalTail, frozen: PodProcess) -> None:
    """Wait until another operator has written."""
    tail.wait("a Takeover", lambda seen: seen.records[-1].actor.pod_uid != frozen.uid)


def _wake_to_its_end(tail: JournalTail, frozen: PodProcess) -> None:
    """Wake a process and wait until it has ended by itself: its container starts again, as a standby."""
    before, woken = tail.directive, time.monotonic()
    pids = frozen.wake()
    wait_until("The end of the fenced operator", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    print(f"the woken leader ended {time.monotonic() - woken:.1f} s later")
    after = tail.directive
    assert before is not None
    assert after is not None
    assert after.order >= before.order


def _assert_no_stale_word(trail: Trail) -> None:
    """Epochs only rise: after each Takeover nobody but its author wrote."""
    authors: list[tuple[int, str]] = []
    for record in trail.records:
        author = (record.actor.epoch, record.actor.pod_uid)
        if record.action == "Takeover":
            assert not authors or author[0] > authors[-1][0]
            authors.append(author)
        assert author == authors[-1]
    assert len(authors) >= 3
