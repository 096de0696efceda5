"""Snapshots of the fold, on a real S3 server: a shortcut that makes nobody believe another state than the records'."""

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from object_store_fixture import ADMIN, ObjectStoreServer
from played_trainer import Scenario
from rollback_trail import rollback_trail
from scripted_operator import play
from trimtab_cli.trail import examine
from trimtab_contract.journal import canonical_bytes, parse_record, record_hash
from trimtab_contract.keys import RunId, journal_record
from trimtab_operator import journal as journal_module
from trimtab_operator import snapshots
from trimtab_operator.adapters.s3 import S3Credentials, S3JournalStore, S3Location
from trimtab_operator.commands import Draft
from trimtab_operator.errors import JournalBroken
from trimtab_operator.journal import Identity, RunJournal, Voucher
from trimtab_operator.journal_fold import fold
from trimtab_operator.run_state import JournalAction, RunState
from trimtab_operator.snapshots import UnusableSnapshot, encode_snapshot, fold_sources, read_snapshot

EVERY = 4
RECORDS = 13
IDENTITY = Identity(service_account="operator", pod="operator-0", pod_uid="u", image="i")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (snapshots, journal_module):
        monkeypatch.setattr(module, "SNAPSHOT_EVERY", EVERY)


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("snapshots")


class CountingStore(S3JournalStore):
    """Counts the records that are read."""

    records = 0

    async def read(self, run: RunId, after: int = 0) -> tuple[tuple[int, bytes], ...]:
        found = await super().read(run, after)
        self.records += len(found)
        return found


@pytest.fixture
async def store(object_store: ObjectStoreServer, bucket: str) -> AsyncIterator[CountingStore]:
    made = CountingStore(S3Location(bucket, object_store.endpoint), S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    yield made
    await made.close()


async def long_journal(store: CountingStore, run: RunId) -> RunJournal:
    """A journal of rules that fired, with every snapshot that was due."""
    written = RunJournal(store, run, IDENTITY)
    await written.take_over(0)
    while written.state.seq < RECORDS:
        if await written.keep_snapshot() is None:
            after = {"rule": "guards/loss-spike", "attempt": 1, "step": written.state.seq}
            await written.append(Draft(action=JournalAction.RULE_FIRED, id=f"rule/{written.state.seq}", after=after))
    return written


@pytest.fixture
async def run(store: CountingStore) -> RunId:
    return RunId("lab", "job", str(uuid.uuid4()))


def anchor(state: RunState) -> Voucher:
    return Voucher(state.seq, state.head, "the JournalAnchor", anchor=True)


async def taken_over(store: CountingStore, run: RunId, *vouchers: Voucher) -> tuple[RunState, int]:
    """The state of a new operator before its own first record, and how many records it read for it."""
    store.records = 0
    reader = RunJournal(store, run, IDENTITY)
    await reader.read_vouched(vouchers)
    return reader.state, store.records


async def test_a_snapshot_leads_each_thousand_and_a_takeover_reads_only_what_follows_the_newest(
    store: CountingStore, run: RunId
) -> None:
    written = await long_journal(store, run)
    bodies = await store.read(run)
    assert [seq for seq, body in bodies if parse_record(body).action == "Snapshot"] == [4, 8, 12]
    state, records = await taken_over(store, run, anchor(written.state))
    assert state == written.state
    assert records == RECORDS - 12 + 1
    whole, records = await taken_over(store, run)
    assert (whole, records) == (written.state, RECORDS)


async def test_what_nobody_outside_the_bucket_vouches_for_is_folded_from_its_first_record(
    store: CountingStore, run: RunId
) -> None:
    written = await long_journal(store, run)
    told = replace(anchor(written.state), anchor=False)
    assert await taken_over(store, run, told) == (written.state, RECORDS)
    bodies = dict(await store.read(run))
    before = Voucher(7, record_hash(bodies[7]), "the JournalAnchor", anchor=True)
    state, _ = await taken_over(store, run, before)
    assert state == written.state
    assert state.snapshot == 12


@pytest.mark.parametrize("damage", ["altered", "gone", "of another version"])
async def test_a_snapshot_that_cannot_be_used_is_passed_over_for_an_older_one_or_the_whole_journal(
    store: CountingStore,
    object_store: ObjectStoreServer,
    bucket: str,
    run: RunId,
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = await long_journal(store, run)
    bodies, client = dict(await store.read(run)), object_store.client()
    if damage == "of another version":
        monkeypatch.setattr(snapshots, "fold_schema", lambda: "newer")
    for seq in (12, 8):
        (evidence,) = parse_record(bodies[seq]).evidence
        if damage == "altered":
            document = json.loads(client.get_object(Bucket=bucket, Key=evidence.key)["Body"].read())
            document["state"]["phase"] = "Completed"
            client.put_object(Bucket=bucket, Key=evidence.key, Body=json.dumps(document).encode())
        elif damage == "gone":
            client.delete_object(Bucket=bucket, Key=evidence.key)
        state, _ = await taken_over(store, run, anchor(written.state))
        assert state == written.state


async def test_a_forged_snapshot_with_all_records_behind_it_written_anew_is_betrayed_by_the_anchor(
    store: CountingStore, object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    written = await long_journal(store, run)
    bodies, client = dict(await store.read(run)), object_store.client()
    snapshot = parse_record(bodies[12])
    (evidence,) = snapshot.evidence
    honest = read_snapshot(run, snapshot, await store.get_object(evidence.key))
    body = encode_snapshot(run, replace(honest, restarts=99))
    draft = snapshots.snapshot_draft(run, honest, body)
    client.put_object(Bucket=bucket, Key=draft.evidence[0].key, Body=body)
    head = snapshot.prev
    for seq in range(12, RECORDS + 1):
        record = parse_record(bodies[seq])
        fields = {"evidence": draft.evidence} if seq == 12 else {}
        forged = canonical_bytes(type(record)(**{**_fields(record), **fields, "prev": head}))
        client.put_object(Bucket=bucket, Key=journal_record(run, seq), Body=forged)
        head = record_hash(forged)
    with pytest.raises(JournalBroken, match=f"broken at record {RECORDS}: it is not the one whose hash"):
        await taken_over(store, run, anchor(written.state))
    report = examine(await store.read(run), run=run)
    assert "record 12: its snapshot is not the state that records 1 to 11 lead to" in report.problems


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__struct_fields__}  # pyright: ignore[reportAttributeAccessIssue]


def test_every_state_of_a_run_reads_back_as_it_was_written() -> None:
    played = play(Scenario(steps=30, damaged=frozenset(range(14, 18)))).store.bodies
    run, seen = RunId("lab", "job", "u"), 0
    for bodies in (list(played.items()), rollback_trail()):
        state = RunState()
        for _, body in bodies:
            state = fold(state, parse_record(body), record_hash(body))
            assert encode_snapshot(run, state) == encode_snapshot(run, replace(state))
            seen += 1
    assert seen > 50


def test_a_state_that_would_not_read_back_the_same_is_not_kept() -> None:
    with pytest.raises(UnusableSnapshot):
        encode_snapshot(RunId("lab", "job", "u"), RunState(failed_generation=float("nan")))  # pyright: ignore[reportArgumentType]


def test_the_version_of_the_fold_follows_from_all_code_it_is_made_of() -> None:
    sources = fold_sources()
    for name in ("journal_fold", "folds.checkpoints", "folds.worlds", "folds.values", "run_state", "incidents"):
        assert f"trimtab_operator.{name}" in sources
    assert "trimtab_contract.directives" in sources
