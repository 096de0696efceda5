"""Two jobs fail within a minute on the real node: the breaker holds both, people hear once, and both complete."""

import json
import re
import urllib.request
from collections.abc import Iterator
from datetime import datetime

import pytest
from node_processes import TORCHRUN, PodProcess, world_pod
from notice_receiver import SECRET, Receiver, served_beside
from sandbox_fixture import Cluster
from secret_search import assert_no_secret_shows
from surviving_history import worlds
from training_jobs import Json, Namespace, Trail, guard_policy, install_chart, prepare_data, training_job
from trimtab_sandbox.settings import BRIDGE_ADDRESS
from typed_commands import trimtab

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

JOBS = ("killed", "damaged")
STEPS = {"killed": 700, "damaged": 300}
DAMAGE = (250, 254)
SECONDS = 60
"""Within so many both must have failed; and so long nothing must fail until automation goes on by itself."""
BREAKER = {"enabled": True, "minRuns": 2, "windowSeconds": SECONDS, "quietSeconds": SECONDS}


@pytest.fixture
def webhook(operator: Cluster) -> Iterator[Receiver]:
    """What an operator with a narrow breaker posts its notices to; that of the other tests is back at the end."""
    system = Cluster(operator.environment, "trimtab-system")
    with served_beside(BRIDGE_ADDRESS) as receiver:
        address = f"http://{BRIDGE_ADDRESS}:{receiver.port}/services/{SECRET}"
        system.kubectl("create", "secret", "generic", "trouble", f"--from-literal=url={address}")
        try:
            install_chart(operator, webhook={"existingSecret": "trouble"}, breaker=BREAKER)
            yield receiver
        finally:
            install_chart(operator)
            system.kubectl("delete", "secret", "trouble")


def test_two_runs_that_fail_at_once_hold_until_a_person_or_the_quiet_lets_them_go(
    namespace: Namespace, webhook: Receiver
) -> None:
    """The first failure is one run's own affair; with the second, and while it lasts, rollback and restart wait."""
    data = {"killed": prepare_data(), "damaged": prepare_data(damage=[DAMAGE])}
    namespace.apply(guard_policy(), *(training_job(name, data[name], steps=STEPS[name]) for name in JOBS))
    # Near enough to the damage to reach it soon after it goes on, and far enough to hold before.
    namespace.wait_step("damaged", 120)
    _answer(namespace, "hold", "damaged", "until the other one has failed")
    namespace.wait_action("damaged", "Held")
    namespace.wait_step("killed", 20)
    _kill(namespace, attempt=1)
    namespace.wait_action("killed", "WorldRestored")
    _answer(namespace, "resume", "damaged", "its data are known to be bad")

    _wait_for_automation(namespace, "damaged")
    _kill(namespace, attempt=2)
    _wait_for_automation(namespace, "killed")
    namespace.wait_held("damaged", 2)
    metrics = _metrics(namespace.cluster)
    assert "\ntrimtab_breaker_open 1.0\n" in metrics
    for job in JOBS:
        assert f'trimtab_job_automation_held{{job_name="{job}",job_namespace="{namespace.name}"}} 1.0\n' in metrics
    assert not namespace.trail("damaged").of("TargetSelected")
    assert worlds(namespace, "killed") == {"1", "2"}

    _answer(namespace, "resume", "killed", "the rack has power again")
    for job in JOBS:
        namespace.wait_phase(job, "Completed")
    trails = {job: namespace.trail(job) for job in JOBS}
    assert [one.outcome for one in trails["damaged"].of("IncidentClosed")] == ["Recovered"]
    assert worlds(namespace, "damaged") == {"1"}
    assert worlds(namespace, "killed") == {"1", "2", "3"}
    _assert_let_go(trails)
    _assert_told_once(trails, webhook)
    assert "\ntrimtab_breaker_open 0.0\n" in _metrics(namespace.cluster)
    assert_no_secret_shows(namespace, *JOBS)


def _answer(namespace: Namespace, action: str, job: str, reason: str) -> None:
    done = trimtab(namespace, "job", action, job, "--reason", reason)
    assert done.returncode == 0, done.stderr


def _kill(namespace: Namespace, attempt: int) -> None:
    PodProcess.of(world_pod(namespace.pods("killed"), attempt, index=0), TORCHRUN).kill()


def _wait_for_automation(namespace: Namespace, job: str) -> None:
    """Until the run waits for the breaker and says so, in its status and in its journal."""
    namespace.wait(job, "AutomationHeld", lambda status: "AutomationHeld" in _true(status))
    (held,) = namespace.wait_action(job, "AutomationHeld").of("AutomationHeld")
    assert f"2 runs failed within {SECONDS} s" in (held.reason or {})["message"]


def _assert_let_go(trails: dict[str, Trail]) -> None:
    """One by a person while automation was held, the other when no run had failed for long enough."""
    request = trails["killed"].of("RunRequested")[-1]
    third = trails["killed"].of("StartWorld")[-1]
    (released,) = trails["damaged"].of("AutomationReleased")
    (selected,) = trails["damaged"].of("TargetSelected")
    assert request.seq < third.seq
    assert third.time < released.time
    assert released.seq < selected.seq
    failed = trails["killed"].of("WorldLost")[-1].time
    quiet = datetime.fromisoformat(released.time) - datetime.fromisoformat(failed)
    assert quiet.total_seconds() > SECONDS - 1


def _assert_told_once(trails: dict[str, Trail], webhook: Receiver) -> None:
    """One notice about all runs, known to both journals as delivered, with the fields that are promised."""
    (at,) = (index for index, one in enumerate(webhook.received) if one["kind"] == "AutomationHeld")
    notice = webhook.received[at]
    assert {notice[name] for name in ("namespace", "job", "uid", "incident", "rule")} == {None}
    assert notice["text"].startswith("*trimtab*: automation is held for all runs: 2 runs failed")
    assert webhook.headers[at]["Idempotency-Key"] == notice["id"]
    for trail in trails.values():
        sent = [one for one in trail.of("NoticeSent") if (one.after or {})["kind"] == "AutomationHeld"]
        assert [one.outcome for one in sent] == ["Delivered"]


def _true(status: Json) -> set[str]:
    return {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}


def _metrics(cluster: Cluster) -> str:
    """What the leader, the one pod that is ready, answers a scrape."""
    system = Cluster(cluster.environment, "trimtab-system")
    pods = json.loads(system.kubectl("get", "pods", "-l=app.kubernetes.io/name=trimtab", "-o=json"))["items"]
    (address,) = (pod["status"]["podIP"] for pod in pods if "deletionTimestamp" not in pod["metadata"])
    with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=10) as answer:
        return re.sub(r"^#.*\n", "", answer.read().decode(), flags=re.MULTILINE)
