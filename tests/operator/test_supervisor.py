"""What the supervisor ends and sweeps, with a real API server, Redis and S3 that operators of others share with it."""

import asyncio
import uuid
from typing import Any

import msgspec
import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ObjectStoreServer
from operator_objects import training_job
from operator_ports import IDENTITY
from trimtab_contract.journal import canonical_bytes, parse_record, record_hash
from trimtab_contract.keys import RunId, journal_record, redis_user, redis_user_namespace
from trimtab_operator.adapters.lease import LeaderLease
from trimtab_operator.errors import JournalBroken
from trimtab_operator.journal import RunJournal
from trimtab_operator.reconciler import LeaseLost, Ports, RunReconciler
from trimtab_operator.supervisor import Supervisor


def new_run(namespace: str) -> RunId:
    return RunId(namespace, "job", str(uuid.uuid4()))


async def open_journal(ports: Ports, run: RunId) -> None:
    await RunJournal(ports.journal, run, IDENTITY).take_over(0)


async def test_a_run_whose_job_went_away_unseen_is_ended_once_and_others_runs_are_left_alone(
    api: ControlPlane, ports: Ports
) -> None:
    (ours,) = ports.namespaces
    gone, foreign = new_run(ours), new_run(api.create_namespace("theirs"))
    api.apply(training_job("living", ours))
    living = RunId(ours, "living", (await ports.cluster.training_job(ours, "living"))["metadata"]["uid"])
    for run in (gone, foreign, living):
        await open_journal(ports, run)
    for _ in range(2):
        await Supervisor(ports).end_orphans()
    records = {run: len(await ports.journal.read(run)) for run in (gone, foreign, living)}
    assert records == {gone: 3, foreign: 1, living: 1}
    last = await ports.journal.last(gone)
    assert last is not None
    assert b'"RunEnded"' in last


async def test_an_operator_without_the_lease_takes_no_run_over(ports: Ports) -> None:
    (ours,) = ports.namespaces
    run = new_run(ours)
    await open_journal(ports, run)
    assert isinstance(ports.lease, LeaderLease)
    await ports.lease.release()
    with pytest.raises(LeaseLost):
        await RunReconciler(run, ports).open()
    assert len(await ports.journal.read(run)) == 1


async def test_a_damaged_journal_keeps_no_other_run_from_being_ended(ports: Ports) -> None:
    (ours,) = ports.namespaces
    damaged, gone = sorted((new_run(ours), new_run(ours)))
    await ports.journal.append(damaged, 1, b"no record")
    await open_journal(ports, gone)
    await Supervisor(ports).end_orphans()
    last = await ports.journal.last(gone)
    assert last is not None
    assert b'"RunEnded"' in last


async def test_a_run_whose_journal_was_altered_is_not_taken_and_says_so_until_it_is_whole_again(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer, audit_bucket: str
) -> None:
    (ours,) = ports.namespaces
    api.apply(training_job("demo", ours))
    body = await ports.cluster.training_job(ours, "demo")
    run = RunId(ours, "demo", body["metadata"]["uid"])
    for _ in range(3):
        await open_journal(ports, run)
    whole = dict(await ports.journal.read(run))
    key = journal_record(run, 2)
    altered = whole[2].replace(b'"pod":"pod"', b'"pod":"own"')
    object_store.client().put_object(Bucket=audit_bucket, Key=key, Body=altered)

    supervisor = Supervisor(ports)
    supervisor.see(body)
    try:
        broken = await _condition(ports, ours, "JournalBroken")
        assert "the journal is broken at record 3" in broken["message"]
        status = (await ports.cluster.training_job(ours, "demo"))["status"]
        (guarded,) = [one for one in status["conditions"] if one["type"] == "Guarded"]
        assert (status["phase"], guarded["status"], guarded["reason"]) == ("Unknown", "False", "JournalBroken")
        assert f"trimtab audit verify {run}" in broken["message"]
        assert dict(await ports.journal.read(run)) == {**whole, 2: altered}, "something was decided from it"
        events = api.kubectl("get", "events", f"--namespace={ours}", "-o=jsonpath={.items[*].reason}")
        assert events.split() == ["JournalBroken"]

        object_store.client().put_object(Bucket=audit_bucket, Key=key, Body=whole[2])
        await _condition(ports, ours, "JournalBroken", gone=True)
        assert (await ports.cluster.training_job(ours, "demo"))["status"]["phase"] == "Pending"
        assert len(await ports.journal.read(run)) > len(whole)
    finally:
        await supervisor.close()


async def _condition(ports: Ports, namespace: str, kind: str, *, gone: bool = False) -> dict[str, Any]:
    """Wait until the job shows a condition, or shows it no more."""
    while True:
        status: dict[str, Any] = (await ports.cluster.training_job(namespace, "demo")).get("status") or {}
        found = [one for one in status.get("conditions", []) if one["type"] == kind]
        if bool(found) is not gone:
            return found[0] if found else {}
        await asyncio.sleep(0.05)


async def test_the_sweep_removes_users_of_runs_that_are_gone_and_no_others(api: ControlPlane, ports: Ports) -> None:
    (ours,) = ports.namespaces
    gone, foreign = new_run(ours), new_run(api.create_namespace("theirs"))
    for run in (gone, foreign):
        await ports.bus.ensure_user(run, "password")
    sweep = asyncio.create_task(Supervisor(ports).resync())
    try:
        while redis_user(gone) in await ports.bus.users():
            assert not sweep.done()
            await asyncio.sleep(0.05)
    finally:
        sweep.cancel()
    assert redis_user(foreign) in await ports.bus.users()


async def test_only_watched_namespaces_are_listed(api: ControlPlane, ports: Ports) -> None:
    (ours,) = ports.namespaces
    api.apply(training_job("mine", ours), training_job("other", api.create_namespace("theirs")))
    names = [job["metadata"]["name"] for job in await ports.cluster.training_jobs()]
    assert names == ["mine"]


def test_a_users_namespace_is_in_its_name() -> None:
    assert redis_user_namespace(redis_user(new_run("team-a"))) == "team-a"
    assert redis_user_namespace("tt-administrator") is None
    assert redis_user_namespace("somebody.else") is None


async def test_a_job_whose_journal_a_newer_operator_wrote_stops_alone_and_says_so(
    api: ControlPlane, ports: Ports
) -> None:
    (ours,) = ports.namespaces
    runs: list[RunId] = []
    for name in ("newer", "other"):
        api.apply(training_job(name, ours))
        uid = (await ports.cluster.training_job(ours, name))["metadata"]["uid"]
        runs.append(RunId(ours, name, uid))
    newer, other = runs
    await open_journal(ports, newer)
    ((_, first),) = await ports.journal.read(newer)
    record = msgspec.structs.replace(parse_record(first), seq=2, prev=record_hash(first), action="Levitated")
    await ports.journal.append(newer, 2, canonical_bytes(record))
    stopped = RunReconciler(newer, ports)
    with pytest.raises(JournalBroken) as broken:
        await stopped.open()
    await stopped.refuse(broken.value)
    await RunReconciler(other, ports).open()
    body = await ports.cluster.training_job(ours, "newer")
    (shown,) = [one for one in body["status"]["conditions"] if one["type"] == "JournalBroken"]
    assert shown["status"] == "True"
    assert "record 2: Levitated cannot be understood by this version of the operator" in shown["message"]
    assert not stopped.gone
    assert len(await ports.journal.read(newer)) == 2
    assert len(await ports.journal.read(other)) == 1
