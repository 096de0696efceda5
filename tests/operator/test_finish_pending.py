"""A finished world that is not told so is shown with what it waits for, until it may end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from judged_runs import record
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, training_job
from redis_fixture import RedisServer
from run_states import ack, attempts, incident, run_state
from trimtab_contract.directives import ACK_FIELD, AckState, Action, encode
from trimtab_contract.keys import RunId, ack_stream, metrics_stream
from trimtab_contract.metrics import STREAM_FIELD, encode_record
from trimtab_operator.adapters.ports import Appended, JournalStore
from trimtab_operator.errors import StoreUnavailable
from trimtab_operator.finish_watch import FINISH_SECONDS, FinishWatch, waits_for
from trimtab_operator.observation import Acks
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import JournalAction, PendingEffect, RunPhase, RunState, World
from trimtab_operator.supervisor import Supervisor

FINISHED = ack(AckState.FINISHED)
TOLD = Acks().fold("1-0", FINISHED)
STEPS = 3


def overdue(state: RunState, acks: Acks = TOLD, *, after: float = FINISH_SECONDS) -> bool:
    watch = FinishWatch()
    assert watch.observe(100.0, state, acks) is None
    return watch.observe(100.0 + after, state, acks) is not None


def test_a_finished_world_waits_ten_minutes_before_people_are_told() -> None:
    assert not overdue(run_state(), after=599.0)
    assert overdue(run_state(), after=600.0)


@pytest.mark.parametrize("phase", [RunPhase.WATCHING, RunPhase.PROBATION, RunPhase.NEEDS_HUMAN, RunPhase.SELECTING])
def test_whatever_keeps_the_finish_back_is_a_wait(phase: RunPhase) -> None:
    assert overdue(run_state(phase=phase))


@pytest.mark.parametrize(
    "state",
    [
        run_state(phase=RunPhase.COMPLETED),
        run_state(phase=RunPhase.STOPPED),
        run_state(phase=RunPhase.FAILED),
        run_state(world=World(number=1, live=False)),
        run_state(world=World(number=2)),
        run_state(world=None),
    ],
)
def test_nobody_waits_in_a_run_that_has_ended_or_a_world_that_is_gone(state: RunState) -> None:
    assert not overdue(state)


def test_a_completed_run_waits_until_its_finish_is_published() -> None:
    effect = PendingEffect(id="run#9", action=JournalAction.COMPLETED, incident=None, after={})
    assert overdue(run_state(phase=RunPhase.COMPLETED, pending=effect))


def test_a_world_that_trains_waits_for_nothing() -> None:
    assert not overdue(run_state(), Acks().fold("1-0", ack(AckState.RUNNING)))


def test_every_attempt_and_every_operator_counts_anew() -> None:
    watch = FinishWatch()
    watch.observe(0.0, run_state(), TOLD)
    rolled_back = run_state(attempts=attempts((None, 0), (1, 40)))
    assert watch.observe(599.0, rolled_back, TOLD) is None
    again = TOLD.fold("2-0", ack(AckState.FINISHED, attempt=2))
    assert watch.observe(600.0, rolled_back, again) is None
    assert watch.observe(1199.0, rolled_back, again) is None
    assert watch.observe(1200.0, rolled_back, again) is not None


@pytest.mark.parametrize(
    ("state", "judged", "trouble", "says"),
    [
        (run_state(), 80, "the object store did not answer", "waits: the object store did not answer"),
        (run_state(), 77, "", "judged up to step 77 only, for the record of step 78 is neither in Redis nor"),
        (run_state(phase=RunPhase.NEEDS_HUMAN, question="2 rollbacks are spent"), 77, "", "a human is asked: 2 rollb"),
        (
            run_state(phase=RunPhase.HOLDING, incident=incident()),
            80,
            "",
            "incident demo-a1-s181 is open, in phase",
        ),
        (run_state(), 80, "", "Finish is about to be sent"),
    ],
)
def test_the_sentence_says_what_is_waited_for(state: RunState, judged: int, trouble: str, says: str) -> None:
    sentence = waits_for(FINISHED, state, judged, trouble)
    assert sentence.startswith("the world has finished step 80 and waits: ")
    assert says in sentence


def test_a_world_that_says_too_early_that_it_has_finished_is_held_against_the_runs_steps() -> None:
    says = waits_for(FINISHED, run_state(), 80, "", 600)
    assert says == "the world has finished step 80 and waits: the run has 600 steps"


# With real parts ------------------------------------------------------------------------------------------------------


class Unreliable:
    """An audit store that can be away for everybody who appends to it."""

    def __init__(self, store: JournalStore) -> None:
        self.store, self.away = store, False

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        if self.away:
            raise StoreUnavailable("the audit store does not answer")
        return await self.store.append(run, seq, body)

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)


@pytest.fixture
def audit(ports: Ports) -> Unreliable:
    return Unreliable(ports.journal)


@pytest.fixture
async def job(
    api: ControlPlane,
    ports: Ports,
    audit: Unreliable,
    object_store: ObjectStoreServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """A job whose operator tells of a wait at once; its world's pods are played by the test."""
    monkeypatch.setattr("trimtab_operator.finish_watch.FINISH_SECONDS", 0.0)
    (namespace,) = ports.namespaces
    body = training_job("demo", namespace, guard={"policies": [{"name": "demo"}]})
    place = {"uri": f"s3://{object_store.new_bucket('training')}/prefix", "endpoint": object_store.endpoint}
    body["spec"]["checkpoint"] |= place
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    metadata = {"name": "s3", "namespace": namespace}
    policy = guard_policy("demo", namespace, remediation={"margin": 50})
    api.apply(body, policy, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret})
    stored = await ports.cluster.training_job(namespace, "demo")
    supervisor = Supervisor(replace(ports, journal=audit))  # pyright: ignore[reportArgumentType] it passes calls on
    supervisor.see(stored)
    resync = asyncio.create_task(supervisor.resync())
    yield RunId(namespace, "demo", stored["metadata"]["uid"])
    resync.cancel()
    await asyncio.gather(resync, return_exceptions=True)
    await supervisor.close()


async def test_a_finished_world_whose_records_are_missing_is_shown_until_they_are_there(
    ports: Ports, redis_server: RedisServer, job: RunId
) -> None:
    await _finish(ports, redis_server, job)
    waiting = await _status(ports, job, lambda status: _finish_pending(status) is not None)
    assert "the record of step 1 is neither in Redis nor in the archive" in str(_finish_pending(waiting))
    _publish(redis_server, job)
    ended = await _status(ports, job, lambda status: status["phase"] == "Completed" and not _finish_pending(status))
    assert ended["step"] == STEPS
    directive = await ports.bus.directive(job)
    assert directive is not None
    assert directive.action is Action.FINISH


async def test_a_finished_world_whose_end_cannot_be_journaled_is_shown_until_it_can(
    ports: Ports, redis_server: RedisServer, job: RunId, audit: Unreliable
) -> None:
    _publish(redis_server, job)
    await _status(ports, job, lambda status: status["world"] == 1)
    audit.away = True
    await _finish(ports, redis_server, job)
    waiting = await _status(ports, job, lambda status: _finish_pending(status) is not None)
    assert "the audit store does not answer" in str(_finish_pending(waiting))
    audit.away = False
    await _status(ports, job, lambda status: status["phase"] == "Completed" and not _finish_pending(status))


async def _finish(ports: Ports, redis_server: RedisServer, run: RunId) -> None:
    """The world's only words: it runs, and then it has trained to the end."""
    directive = None
    while directive is None:
        directive = await ports.bus.directive(run)
        await asyncio.sleep(0.05)
    with redis_server.client() as client:
        for state in (AckState.RUNNING, AckState.FINISHED):
            said = ack(state, epoch=directive.epoch, seq=directive.seq, step=STEPS)
            client.xadd(ack_stream(run), {ACK_FIELD: encode(said)})


def _publish(redis_server: RedisServer, run: RunId) -> None:
    with redis_server.client() as client:
        for step in range(1, STEPS + 1):
            client.xadd(metrics_stream(run, 1), {STREAM_FIELD: encode_record(record(step, loss=2.0))}, id=f"{step}-0")


def _finish_pending(status: dict[str, Any]) -> str | None:
    found = [one for one in status.get("conditions", []) if one["type"] == "FinishPending"]
    assert all((one["status"], one["reason"]) == ("True", "FinishPending") for one in found)
    return found[0]["message"] if found else None


async def _status(ports: Ports, run: RunId, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while True:
        body = await ports.cluster.training_job(run.namespace, run.name)
        status: dict[str, Any] = body.get("status") or {}
        if "phase" in status and holds(status):
            return status
        await asyncio.sleep(0.05)
