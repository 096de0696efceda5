"""One run's journal as an operator writes it, on a real S3 server: lost replies, takeovers, fenced writers."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import msgspec
import pytest
from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_contract.directives import Action, Directive
from trimtab_contract.journal import JournalRecord, Phase, canonical_bytes, parse_record, verify_chain
from trimtab_contract.keys import RunId, journal_record
from trimtab_operator.adapters.ports import Appended
from trimtab_operator.adapters.s3 import S3Credentials, S3JournalStore, S3Location
from trimtab_operator.commands import Draft
from trimtab_operator.errors import Conflict, Fenced, JournalBroken, StoreUnavailable
from trimtab_operator.journal import Identity, RunJournal, Voucher
from trimtab_operator.run_state import JournalAction, RunPhase, RunState

FIRST = Directive(epoch=1, seq=2, world=1, attempt=1, action=Action.RUN)


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("journal")


@pytest.fixture
async def store(object_store: ObjectStoreServer, bucket: str) -> AsyncIterator[S3JournalStore]:
    made = S3JournalStore(S3Location(bucket, object_store.endpoint), S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    yield made
    await made.close()


@pytest.fixture
def run() -> RunId:
    return RunId("lab", "job", str(uuid.uuid4()))


class Unreliable:
    """The store behind a network that loses the request or the reply of chosen appends."""

    def __init__(self, store: S3JournalStore) -> None:
        self.store = store
        self.loses = ""

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        loses, self.loses = self.loses, ""
        if loses == "request":
            raise StoreUnavailable("the object store did not answer")
        appended = await self.store.append(run, seq, body)
        if loses == "reply":
            raise StoreUnavailable("the object store did not answer")
        return appended

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)


def journal(store: object, run: RunId, pod: str = "operator-0") -> RunJournal:
    identity = Identity(service_account="operator", pod=pod, pod_uid="u", image="i")
    return RunJournal(store, run, identity)  # pyright: ignore[reportArgumentType] the unreliable store passes calls on


def started() -> Draft:
    after = {"directive": FIRST, "generation": 1, "counted": False}
    return Draft(action=JournalAction.START_WORLD, phase=Phase.INTENT, id="run#1", after=after)


def fact(action: JournalAction = JournalAction.WORLD_RUNNING, phase: RunPhase | None = RunPhase.WATCHING) -> Draft:
    return Draft(action=action, id=f"run/{action}", after={"phase": phase.value, "world": 1} if phase else {"world": 1})


async def stored(store: S3JournalStore, run: RunId) -> list[str]:
    bodies = await store.read(run)
    report = verify_chain(bodies)
    assert report.intact, report.problems
    return [parse_record(body).action for _, body in bodies]


async def test_a_new_operator_folds_to_the_same_state_under_a_higher_epoch(store: S3JournalStore, run: RunId) -> None:
    first = journal(store, run)
    await first.take_over(0)
    await first.append(started())
    await first.append(fact())
    second = journal(store, run, "operator-1")
    await second.take_over(0)
    assert second.epoch == second.state.epoch == 2
    assert second.state.phase is first.state.phase is RunPhase.WATCHING
    assert second.state.attempts == first.state.attempts
    assert second.state.pending == first.state.pending
    assert second.state.effects == first.state.effects
    assert await stored(store, run) == ["Takeover", "StartWorld", "WorldRunning", "Takeover"]


async def test_a_takeover_puts_the_directive_in_force_under_the_new_epoch(store: S3JournalStore, run: RunId) -> None:
    first = journal(store, run)
    await first.take_over(0)
    await first.append(started())
    second = journal(store, run)
    await second.take_over(7)
    directive = second.state.directive
    assert directive is not None
    assert directive.order == (8, 3)
    assert directive.reaffirms(FIRST)
    assert msgspec.structs.replace(directive, epoch=1, seq=2) == FIRST


async def test_the_epoch_rises_above_the_lease_and_above_the_journal(store: S3JournalStore, run: RunId) -> None:
    for lease_epoch, expected in ((0, 1), (0, 2), (5, 6), (3, 7)):
        one = journal(store, run)
        await one.take_over(lease_epoch)
        assert one.epoch == expected


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_an_append_that_nobody_heard_of_is_settled_before_anything_else(
    store: S3JournalStore, run: RunId, lost: str
) -> None:
    unreliable = Unreliable(store)
    one = journal(unreliable, run)
    await one.take_over(0)
    unreliable.loses = lost
    with pytest.raises(StoreUnavailable):
        await one.append(started())
    assert one.state.attempt == 0
    # Whatever was decided without that record must be decided again.
    with pytest.raises(Conflict, match="settled only now"):
        await one.append(started())
    assert one.state.attempt == 1
    await one.append(fact())
    assert await stored(store, run) == ["Takeover", "StartWorld", "WorldRunning"]


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_settling_by_itself_folds_the_record_once(store: S3JournalStore, run: RunId, lost: str) -> None:
    unreliable = Unreliable(store)
    one = journal(unreliable, run)
    await one.take_over(0)
    unreliable.loses = lost
    with pytest.raises(StoreUnavailable):
        await one.append(started())
    await one.read()
    await one.settle()
    await one.settle()
    assert one.state.seq == 2
    assert one.state.effects == {"run": 1}
    assert len(one.state.attempts) == 1


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_a_takeover_that_nobody_heard_of_can_be_tried_again(store: S3JournalStore, run: RunId, lost: str) -> None:
    unreliable = Unreliable(store)
    one = journal(unreliable, run)
    unreliable.loses = lost
    with pytest.raises(StoreUnavailable):
        await one.take_over(0)
    await one.take_over(0)
    await one.append(fact())
    assert (await stored(store, run))[-1] == "WorldRunning"
    assert one.state.epoch == one.epoch


async def test_of_operators_that_take_over_at_once_each_epoch_has_one(store: S3JournalStore, run: RunId) -> None:
    racing = [journal(store, run, f"operator-{number}") for number in range(5)]
    results = await asyncio.gather(*(one.take_over(0) for one in racing), return_exceptions=True)
    lost = [one for one, result in zip(racing, results, strict=True) if isinstance(result, BaseException)]
    assert all(isinstance(result, Conflict | Fenced) for result in results if isinstance(result, BaseException))
    won = [one.epoch for one in racing if one not in lost]
    assert won
    assert len(set(won)) == len(won)
    assert await stored(store, run) == ["Takeover"] * len(won)
    again = lost[0] if lost else racing[0]
    await again.take_over(max(won))
    assert again.epoch > max(won)
    for one in racing:
        if one is not again and one not in lost:
            with pytest.raises(Fenced):
                await one.append(fact())


async def test_a_stale_leader_is_fenced_at_its_next_append(store: S3JournalStore, run: RunId) -> None:
    old = journal(store, run, "old")
    await old.take_over(0)
    await old.append(started())
    new = journal(store, run, "new")
    await new.take_over(0)
    with pytest.raises(Fenced, match=r"epoch 2 leads run .*; this operator has 1"):
        await old.append(fact())
    with pytest.raises(Fenced):
        await old.read()
    assert await stored(store, run) == ["Takeover", "StartWorld", "Takeover"]


async def test_what_a_fenced_operator_appended_all_the_same_counts_for_nothing(
    store: S3JournalStore, run: RunId
) -> None:
    """S3 compares no epochs: a stale leader that finds the right number can append behind the new one."""
    old = journal(store, run, "old")
    await old.take_over(0)
    await old.append(started())
    new = journal(store, run, "new")
    await new.take_over(0)
    forger = journal(store, run, "old")
    await forger.read()
    forger.epoch = 1
    await forger.append(fact(JournalAction.WORLD_RUNNING, RunPhase.WATCHING))
    with pytest.raises(Conflict):
        await new.append(fact(JournalAction.WORLD_LOST, None))
    assert new.state.phase is RunPhase.PENDING
    await new.append(fact())
    bodies = await store.read(run)
    report = verify_chain(bodies)
    assert report.intact
    assert report.ignored == (4,)
    reader = journal(store, run, "reader")
    await reader.read()
    assert reader.state == new.state


async def test_an_append_returns_the_record_as_its_readers_see_it(store: S3JournalStore, run: RunId) -> None:
    one = journal(store, run)
    await one.take_over(0)
    draft = Draft(
        action=JournalAction.RULE_FIRED,
        id="x",
        after={"rule": "r", "attempt": 1, "step": 2},
        reason={"observed": float("nan")},
    )
    record = await one.append(draft)
    assert record.reason == {"observed": "NaN"}
    assert record == parse_record((await store.read(run))[-1][1])


def rewrite(object_store: ObjectStoreServer, bucket: str, run: RunId, seq: int, body: bytes | None) -> None:
    """What somebody with rights on the audit bucket can do to a record."""
    client, key = object_store.client(), journal_record(run, seq)
    if body is None:
        client.delete_object(Bucket=bucket, Key=key)
    else:
        client.put_object(Bucket=bucket, Key=key, Body=body)


@pytest.mark.parametrize(
    ("seq", "damage", "message"),
    [
        (2, "altered", r"broken at record 3: it does not continue the hash of the record before it"),
        (2, "missing", r"broken at record 2: it is missing; the next one found is 3"),
        (2, "unreadable", r"broken at record 2: .*cannot be decoded"),
        (1, "missing", r"broken at record 1: it is missing; the next one found is 2"),
        (2, "moved", r"broken at record 2: its content says sequence number 1"),
    ],
)
async def test_nobody_takes_a_run_over_whose_journal_does_not_continue_itself(
    store: S3JournalStore,
    object_store: ObjectStoreServer,
    bucket: str,
    run: RunId,
    seq: int,
    damage: str,
    message: str,
) -> None:
    first = journal(store, run)
    await first.take_over(0)
    await first.append(started())
    await first.append(fact())
    bodies = dict(await store.read(run))
    altered = bodies[2].replace(b'"counted":false', b'"counted":true')
    assert altered != bodies[2]
    damaged = {"altered": altered, "missing": None, "unreadable": b"no record", "moved": bodies[1]}[damage]
    rewrite(object_store, bucket, run, seq, damaged)
    before = await store.read(run)
    second = journal(store, run)
    with pytest.raises(JournalBroken, match=message) as refused:
        await second.take_over(5)
    assert f"trimtab audit verify {run}" in str(refused.value)
    assert await store.read(run) == before, "a broken journal got another record"
    assert second.epoch == 0

    rewrite(object_store, bucket, run, seq, bodies[seq])
    await second.take_over(5)
    assert second.epoch == 6
    assert await stored(store, run) == ["Takeover", "StartWorld", "WorldRunning", "Takeover"]


async def test_a_leader_that_finds_a_forged_record_in_its_place_believes_nothing_and_takes_the_run_over_anew(
    store: S3JournalStore, object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    one = journal(store, run)
    await one.take_over(0)
    await one.append(started())
    forged = (await store.read(run))[1][1].replace(b'"seq":2', b'"seq":3', 1)
    rewrite(object_store, bucket, run, 3, forged)
    with pytest.raises(JournalBroken, match="broken at record 3"):
        await one.append(fact())
    assert one.state == RunState(), "what was folded is still believed"
    with pytest.raises(JournalBroken, match="broken at record 3"):
        await one.take_over(0)
    rewrite(object_store, bucket, run, 3, None)
    await one.take_over(0)
    assert await stored(store, run) == ["Takeover", "StartWorld", "Takeover"]


@pytest.mark.parametrize("cut", ["shortened", "written anew"])
async def test_a_chain_that_is_whole_in_itself_is_not_taken_when_somebody_knows_better(
    store: S3JournalStore, object_store: ObjectStoreServer, bucket: str, run: RunId, cut: str
) -> None:
    first = journal(store, run)
    await first.take_over(0)
    await first.append(started())
    await first.append(fact())
    vouched = Voucher(first.state.seq, first.state.head, "the TrainingJob's status")
    last = dict(await store.read(run))[3]
    other = last.replace(b'"time":"20', b'"time":"19')
    assert other != last
    rewrite(object_store, bucket, run, 3, None if cut == "shortened" else other)
    second = journal(store, run)
    with pytest.raises(JournalBroken, match="broken at record 3"):
        await second.take_over(0, vouched)
    assert second.state == RunState(), "what was folded is still believed"
    assert len(await store.read(run)) == (2 if cut == "shortened" else 3)
    rewrite(object_store, bucket, run, 3, last)
    await second.take_over(0, vouched)


def newer(change: str, record: JournalRecord) -> bytes:
    """A record as a stranger or a newer operator might write it."""
    if change == "action":
        return canonical_bytes(msgspec.structs.replace(record, action="Levitated"))
    if change == "nested field":
        after = {"directive": {**msgspec.to_builtins(FIRST), "gravity": 2}, "generation": 1, "counted": False}
        return canonical_bytes(msgspec.structs.replace(record, action="StartWorld", after=after))
    document = json.loads(canonical_bytes(record))
    more = {"schema": {"schema": 2}, "field": {"witness": "w"}, "phase": {"phase": "Rehearsal"}}[change]
    return json.dumps({**document, **more}, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("action", r"broken at record 2: Levitated cannot be understood by this version of the operator"),
        ("schema", r"broken at record 2: .*unknown field `schema`"),
        ("field", r"broken at record 2: .*unknown field `witness`"),
        ("phase", r"broken at record 2: .*Invalid enum value 'Rehearsal'"),
        (
            "nested field",
            r"broken at record 2: StartWorld cannot .*directive has unknown fields: gravity",
        ),
    ],
)
async def test_a_record_of_a_stranger_or_a_newer_operator_is_not_guessed_at(
    store: S3JournalStore, run: RunId, change: str, says: str
) -> None:
    first = journal(store, run)
    record = await first.take_over(0)
    stranger = msgspec.structs.replace(record, seq=2, prev=first.state.head, id="x")
    await store.append(run, 2, newer(change, stranger))
    second = journal(store, run)
    with pytest.raises(JournalBroken, match=says):
        await second.take_over(0)
    assert second.state == RunState()
    assert len(await store.read(run)) == 2
    with pytest.raises(JournalBroken, match="broken at record 2"):
        await first.append(fact())
