"""No more Jobs read back at once than may, whatever happens to runs and operators; and nobody waits for ever."""

import asyncio
from dataclasses import replace

import pytest
from control_plane_fixture import ControlPlane
from ended_jobs import JOBS, end_job
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import training_job
from rollback_trail import TrailWriter
from run_states import reference, run_state
from trimtab_contract.directives import Action, Directive
from trimtab_contract.journal import JournalRecord, Phase, parse_record
from trimtab_contract.keys import RunId
from trimtab_contract.read_back import ReadBack, ReadBackAnswer, ReadBackReport, encode_report
from trimtab_operator.adapters.api_server import ApiServer
from trimtab_operator.oversight import READING_SECONDS, Oversight
from trimtab_operator.read_back_places import ReadBackPlaces
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import JournalAction, ReadBackOrder, RunState
from trimtab_operator.supervisor import Supervisor

VERIFIED = (ReadBackAnswer(sha256=reference(60).sha256, found=ReadBack.VERIFIED),)
FIRST, SECOND, THIRD = (RunId("lab", name, f"uid-{name}") for name in ("a", "b", "c"))


def reading(number: int = 31) -> RunState:
    order = ReadBackOrder(
        id=f"run/ReadBack/{number}", number=number, checkpoints=(reference(60),), seconds=1800, avoid=(), since=0.0
    )
    return run_state(read_back=order)


def test_a_place_is_taken_before_the_intent_and_free_when_the_job_is_over() -> None:
    places = ReadBackPlaces(2)
    places.take(FIRST)
    places.know(SECOND, reading())
    assert not places.free(THIRD)
    places.know(FIRST, reading())
    assert not places.free(THIRD)
    places.know(SECOND, run_state())
    assert places.free(THIRD)


def test_the_place_of_an_intent_that_was_not_written_after_all_is_free_again() -> None:
    places = ReadBackPlaces(1)
    places.take(FIRST)
    assert places.free(FIRST), "whoever tries again has it already"
    assert not places.free(SECOND)
    places.know(FIRST, run_state())
    assert places.free(SECOND)


def test_a_job_that_does_not_begin_to_read_keeps_nobody_waiting() -> None:
    places = ReadBackPlaces(1)
    places.know(FIRST, reading(31))
    places.stall(FIRST, 31)
    places.know(FIRST, reading(31))
    assert places.free(SECOND)
    places.stall(FIRST, 0)
    places.know(FIRST, reading(31))
    assert not places.free(SECOND)
    places.know(FIRST, run_state())
    places.stall(FIRST, 31)
    places.know(FIRST, reading(77))
    assert not places.free(SECOND), "its next Job is another one"


def test_a_run_that_is_gone_has_no_place() -> None:
    places = ReadBackPlaces(1)
    places.know(FIRST, reading())
    places.leave(FIRST)
    assert places.free(SECOND)


@pytest.mark.parametrize("ends", ["gone", "broken"])
def test_a_new_leader_starts_nothing_before_it_knows_what_others_read(ends: str) -> None:
    now = 1000.0
    watch = Oversight(now=lambda: now, read_backs_at_once=1)
    assert not watch.may_read_back(FIRST)
    watch.seen(FIRST)
    watch.seen(SECOND)
    watch.listed()
    watch.known(FIRST, run_state())
    assert not watch.may_read_back(FIRST)
    watch.known(SECOND, reading())
    assert not watch.may_read_back(FIRST)
    if ends == "gone":
        watch.gone(SECOND)
    else:
        watch.broken(SECOND, "record 3 is missing")
    assert watch.may_read_back(FIRST)


def test_a_journal_that_cannot_be_read_keeps_nobody_waiting_for_ever() -> None:
    now = 1000.0
    watch = Oversight(now=lambda: now)
    watch.seen(FIRST)
    watch.listed()
    assert not watch.may_read_back(SECOND)
    now += READING_SECONDS
    assert watch.may_read_back(SECOND)


async def test_the_checkpoints_of_many_runs_are_read_back_one_job_after_the_other(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer
) -> None:
    runs = [await _completed(api, ports, object_store, name) for name in ("a", "b", "c")]
    (namespace,) = ports.namespaces
    oversight = Oversight(read_backs_at_once=1)
    supervisor = Supervisor(replace(ports, oversight=oversight, read_back_jobs=True))
    resync = asyncio.create_task(supervisor.resync())
    server = await ApiServer.connect(api.kubeconfig)
    try:
        while len(answered := await _read_backs(ports, runs)) < 2 * len(runs):
            jobs = await server.list(JOBS, namespace)
            unfinished = [one["metadata"]["name"] for one in jobs if not one["status"].get("conditions")]
            assert len(unfinished) <= 1
            for name in unfinished:
                await end_job(server, namespace, name, encode_report(ReadBackReport(job=name, answers=VERIFIED)))
            await asyncio.sleep(0.05)
    finally:
        resync.cancel()
        await asyncio.gather(resync, return_exceptions=True)
        await supervisor.close()
        await server.close()
    in_time = sorted(answered, key=lambda one: one.time)
    assert [one.phase for one in in_time] == [Phase.INTENT, Phase.RESULT] * len(runs)


async def _completed(api: ControlPlane, ports: Ports, object_store: ObjectStoreServer, name: str) -> RunId:
    """A run that has completed, with checkpoints that nobody has read back."""
    (namespace,) = ports.namespaces
    body = training_job(name, namespace)
    body["spec"]["checkpoint"] |= {"endpoint": object_store.endpoint}
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    metadata = {"name": "s3", "namespace": namespace}
    api.apply(body, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret})
    run = RunId(namespace, name, (await ports.cluster.training_job(namespace, name))["metadata"]["uid"])
    for seq, record in _trail().bodies:
        await ports.journal.append(run, seq, record)
    return run


def _trail() -> TrailWriter:
    trail = TrailWriter()
    trail.add("Takeover", after={"epoch": 1})
    start = Directive(epoch=1, seq=trail.seq, world=1, attempt=1, action=Action.RUN)
    trail.effect("StartWorld", "Job made", after={"directive": start, "generation": 1})
    trail.add("WorldRunning", after={"world": 1, "phase": "Watching"})
    trail.add("Committed", after={"checkpoint": reference(60), "attempt": 1, "why": "manifest hash agrees"})
    finish = Directive(epoch=1, seq=trail.seq, world=1, attempt=1, action=Action.FINISH)
    trail.effect("Completed", "directive written", after={"directive": finish, "phase": "Completed"})
    return trail


async def _read_backs(ports: Ports, runs: list[RunId]) -> list[JournalRecord]:
    """What the journals say of Jobs that read back, each intent and each result."""
    records = [parse_record(body) for run in runs for _, body in await ports.journal.read(run)]
    return [one for one in records if one.action == JournalAction.READ_BACK]
