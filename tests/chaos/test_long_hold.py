"""Holds that last three times as long as a collective may: with the operator looking on, and with nobody there."""

from collections.abc import Iterator

import pytest
from journal_tail import JournalTail
from node_processes import SYSTEM, leader, step_until
from sandbox_fixture import Cluster
from training_jobs import Namespace, guard_policy
from trimtab_contract.directives import Action
from trimtab_operator.run_state import RunPhase
from undisturbed_runs import commands, damaged_job, decisions

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

COLLECTIVE_SECONDS = 8
CONFIG = {"collectiveTimeoutSeconds": COLLECTIVE_SECONDS}


@pytest.fixture
def scaled(operator: Cluster) -> Iterator[Cluster]:
    """The system's namespace; the operator is there again at the end."""
    system = Cluster(operator.environment, SYSTEM)
    yield system
    _bring_back(system)


def test_a_hold_outlives_the_collective_timeout_with_and_without_the_operator(
    namespace: Namespace, undisturbed: Namespace, scaled: Cluster
) -> None:
    """One run waits for a person all the time; the other holds while the operator is away, and then goes on."""
    waiting = damaged_job("waiting", incidents=1, config=CONFIG)
    waiting["spec"]["budget"] = {**waiting["spec"]["budget"], "maxRollbacks": 0}
    namespace.apply(guard_policy(), waiting, damaged_job("left", incidents=1, config=CONFIG))
    left, operator = JournalTail(namespace, "left"), leader(namespace.cluster)
    pid = operator.only_pid
    left.wait("the incident", lambda tail: tail.count("IncidentOpened") == 1)
    step_until(pid, lambda: left.poll().phase is not RunPhase.HOLDING or _told_to_hold(left))
    scaled.kubectl("scale", "deployment/trimtab", "--replicas=0")
    operator.kill()
    namespace.wait_held("left", 3 * COLLECTIVE_SECONDS)
    assert left.poll().phase is RunPhase.HOLDING
    _bring_back(scaled)
    namespace.wait_phase("left", "Completed")
    namespace.wait_phase("waiting", "NeedsHuman")
    namespace.wait_held("waiting", 3 * COLLECTIVE_SECONDS)

    trail, expected = namespace.trail("left"), undisturbed.trail("damaged")
    assert decisions(trail) == decisions(expected)[:1]
    assert commands(trail) == commands(expected)[: len(commands(trail))]
    for job in ("left", "waiting"):
        assert not namespace.trail(job).of("WorldLost")
        assert {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods(job)} == {"1"}
    assert namespace.status("waiting")["phase"] == "NeedsHuman"


def _told_to_hold(tail: JournalTail) -> bool:
    return tail.directive is not None and tail.directive.action is Action.HOLD


def _bring_back(system: Cluster) -> None:
    system.kubectl("scale", "deployment/trimtab", "--replicas=1")
    system.kubectl("rollout", "status", "deployment/trimtab", "--timeout=120s")
