"""Checkpoints against a real S3 server, two ranks.

We test that what comes back is what went in, that nothing damaged, foreign or half written is ever put into the live
state, and that the store may be away meanwhile.
"""

import math
import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from checkpoint_ranks import FAST, RUN, TINY, Ranks, all_tensors, image, new_state
from object_store_fixture import ADMIN, READER, ObjectStoreServer
from trimtab_contract import keys
from trimtab_contract.checkpoints import CheckpointManifest, decode_manifest, encode_manifest, sha256_hex
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.keys import RunId
from trimtab_trainer.adapters.s3 import ObjectStore, StoreTimeouts
from trimtab_trainer.checkpointing import (
    CheckpointBehind,
    CheckpointLimits,
    RestoreFailure,
    Saved,
    SaveFailed,
    SaveRefusal,
    SaveRefused,
    ShareMeasurement,
    TrainingState,
    Verified,
    VerifyFailed,
    saving,
)
from trimtab_trainer.checkpointing.inspection import inspect
from trimtab_trainer.errors import RestoreFailed, StoreUnavailable

TIMEOUTS = StoreTimeouts(connect_seconds=1, read_seconds=1, attempts=1)


@pytest.fixture(scope="module")
def store(object_store: ObjectStoreServer) -> ObjectStore:
    return store_in(object_store, object_store.new_bucket())


@pytest.fixture
def root() -> str:
    """No two tests share one."""
    return f"tests/{uuid.uuid4().hex}"


def store_in(server: ObjectStoreServer, bucket: str, credentials: Any = ADMIN) -> ObjectStore:
    return ObjectStore(
        bucket,
        endpoint=server.endpoint,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        timeouts=TIMEOUTS,
    )


@pytest.fixture
def world(store: ObjectStore, root: str, tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    opened: list[Ranks] = []

    def open_world(**options: Any) -> Ranks:
        ranks = Ranks(options.pop("store", store), tmp_path / f"world-{len(opened)}", root=root, **options)
        opened.append(ranks)
        return ranks

    yield open_world
    for ranks in opened:
        ranks.close()


def equal_states(seed: int, world_size: int = 2) -> list[TrainingState]:
    return [new_state(seed) for _ in range(world_size)]


def manifest_of(store: ObjectStore, reference: CheckpointReference) -> CheckpointManifest:
    return decode_manifest(store.get(reference.key))


def prefix_of(reference: CheckpointReference) -> str:
    return reference.key.removesuffix(keys.MANIFEST_NAME)


def expect_failure(ranks: Ranks, reference: CheckpointReference, reason: RestoreFailure, **options: Any) -> str:
    """Restore over other states; every rank must fail alike and keep what it had. Returns the object named."""
    states = equal_states(99, ranks.world_size)
    before = [image(state) for state in states]
    outcomes = ranks.restore(reference, states, **options)
    assert all(isinstance(outcome, RestoreFailed) for outcome in outcomes), outcomes
    assert {(outcome.reason, outcome.object_name) for outcome in outcomes} == {(reason, outcomes[0].object_name)}
    assert [image(state) for state in states] == before
    return outcomes[0].object_name


class TestSaveAndRestore:
    def test_a_restored_state_is_bit_identical_on_every_rank(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        states = equal_states(8)
        manifests = ranks.restore(reference, states)
        assert [image(state) for state in states] == [image(new_state(7))] * 2
        assert manifests[0] == manifests[1]
        assert (manifests[0].step, manifests[0].optimizer_steps, manifests[0].run) == (30, 7, str(RUN))
        assert min(ranks.progress) > 0

    def test_nothing_is_committed_before_every_rank_has_stored_how_it_got_there(
        self, world: Callable[..., Ranks], store: ObjectStore, root: str
    ) -> None:
        def prove(rank: int) -> None:
            if rank == 1:
                raise StoreUnavailable("the batch log cannot be written now")

        ranks = world(limits=CheckpointLimits(save_deadline_seconds=1), prove=prove)
        ranks.save(equal_states(7), 30)
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
        assert isinstance(ranks.drain(0)[0], SaveFailed)
        assert not [key for key in store.list(root) if key.endswith(keys.MANIFEST_NAME)]

    def test_training_after_the_call_does_not_reach_the_copy(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        saved, expected = equal_states(7), image(new_state(7))
        ranks.save(saved, 30)
        with torch.no_grad():
            for state in saved:
                for tensor in all_tensors(state).values():
                    tensor.zero_()
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [True, True]
        states = equal_states(8)
        ranks.restore(ranks.drain(0)[0].reference, states)
        assert [image(state) for state in states] == [expected] * 2

    def test_another_world_size_restores_the_same_state(self, world: Callable[..., Ranks]) -> None:
        reference = world().saved(equal_states(7), 30)
        alone = world(world_size=1)
        states = equal_states(8, 1)
        alone.restore(reference, states)
        assert image(states[0]) == image(new_state(7))

    def test_the_second_save_reuses_the_layout_and_never_the_prefix(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        first = ranks.saved(equal_states(7), 30)
        second = ranks.saved(equal_states(9), 30)
        assert prefix_of(first) != prefix_of(second)
        states = equal_states(8)
        ranks.restore(second, states)
        assert image(states[1]) == image(new_state(9))

    def test_the_manifest_lists_every_object_of_its_prefix(
        self, world: Callable[..., Ranks], store: ObjectStore, root: str
    ) -> None:
        reference = world().saved(equal_states(7), 30)
        manifest = manifest_of(store, reference)
        listed = store.list(prefix_of(reference))
        sizes = {f"{prefix_of(reference)}{name}": stored.size for name, stored in manifest.objects.items()}
        assert {key: size for key, size in listed.items() if key != reference.key} == sizes
        assert reference.key.startswith(keys.checkpoints_prefix(root, RUN))
        assert sha256_hex(store.get(reference.key)) == reference.sha256

    def test_every_rank_gets_its_own_random_state_back(self, world: Callable[..., Ranks]) -> None:
        ranks = world(world_size=1)
        states = equal_states(7, 1)
        torch.manual_seed(1234)
        reference = ranks.saved(states, 30)
        torch.manual_seed(1234)
        expected = torch.rand(4)
        torch.manual_seed(5)
        ranks.restore(reference, states)
        assert torch.equal(torch.rand(4), expected)


class TestRefusedSaves:
    def test_replicas_that_differ_are_never_stored(
        self, world: Callable[..., Ranks], store: ObjectStore, root: str
    ) -> None:
        ranks = world()
        states = equal_states(7)
        flip(all_tensors(states[1])["optimizer.adamw_first_moment.head.weight"], 3, 12)
        ranks.save(states, 30)
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
        detail = "rank 1: optimizer.adamw_first_moment.head.weight"
        for rank in range(2):
            assert ranks.drain(rank) == [SaveRefused(30, SaveRefusal.REPLICA_MISMATCH, detail, "Periodic")]
        assert store.list(root) == {}

    def test_a_manifest_that_nobody_would_read_makes_no_checkpoint(
        self, world: Callable[..., Ranks], store: ObjectStore, root: str
    ) -> None:
        ranks = world()
        with patch.object(saving, "MAX_MANIFEST_BYTES", 1000):
            ranks.save(equal_states(7), 30)
            assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
        (failed,) = ranks.drain(0)
        assert isinstance(failed, SaveFailed)
        assert "more than 1000 are not read: it names every object of every rank, and every tensor" in failed.detail
        assert not [key for key in store.list(root) if key.endswith(keys.MANIFEST_NAME)]

    def test_a_state_that_is_not_finite_is_never_stored(
        self, world: Callable[..., Ranks], store: ObjectStore, root: str
    ) -> None:
        ranks = world()
        states = equal_states(7)
        for state in states:
            all_tensors(state)["model.head.weight"].view(-1)[5] = torch.nan
        ranks.save(states, 30)
        ranks.run(lambda rank: ranks.checkpointers[rank].flush(60))
        detail = "rank 0: model.head.weight: 1 elements"
        assert ranks.drain(1) == [SaveRefused(30, SaveRefusal.NON_FINITE, detail, "Periodic")]
        assert store.list(root) == {}

    def test_large_finite_values_are_not_taken_for_infinite_ones(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        states = equal_states(7)
        for state in states:
            all_tensors(state)["model.head.weight"].fill_(torch.finfo(torch.float32).max)
        assert ranks.saved(states, 30).step == 30

    def test_a_flip_in_any_tensor_changes_the_checksum(self) -> None:
        state = new_state(7)
        healthy = inspect(state.flat()).checksum
        for name, tensor in all_tensors(state).items():
            for bit in (0, 22, 30, 31):
                flip(tensor, tensor.numel() - 1, bit)
                assert inspect(state.flat()).checksum != healthy, (name, bit)
                flip(tensor, tensor.numel() - 1, bit)
        assert inspect(state.flat()).checksum == healthy


def flip(tensor: torch.Tensor, index: int, bit: int) -> None:
    with torch.no_grad():
        words = tensor.view(-1)[index : index + 1].view(torch.int32)
        words.bitwise_xor_(torch.tensor([1 << bit if bit < 31 else -(1 << 31)], dtype=torch.int32))


def flipped_bit(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            pytest.param(flipped_bit, id="flipped bit"),
            pytest.param(lambda body: body[:-1], id="truncated"),
            pytest.param(lambda body: body[: len(body) // 2] + bytes(64) + body[len(body) // 2 + 64 :], id="zeroed"),
            pytest.param(lambda body: body + b"\0", id="longer"),
        ],
    )
    @pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "__1_0.distcp.index.json", "rank-000001.json"])
    def test_a_damaged_object_is_never_loaded(
        self, world: Callable[..., Ranks], store: ObjectStore, damage: Callable[[bytes], bytes], name: str
    ) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        key = f"{prefix_of(reference)}{name}"
        store.put(key, damage(store.get(key)))
        assert expect_failure(ranks, reference, RestoreFailure.OBJECT_DAMAGED) == key

    def test_two_shards_that_changed_places_are_never_loaded(
        self, world: Callable[..., Ranks], store: ObjectStore
    ) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        first, second = (f"{prefix_of(reference)}__{rank}_0.distcp" for rank in range(2))
        bodies = store.get(first), store.get(second)
        store.put(first, bodies[1])
        store.put(second, bodies[0])
        expect_failure(ranks, reference, RestoreFailure.OBJECT_DAMAGED)

    def test_shards_of_another_checkpoint_are_found_by_their_content(
        self, world: Callable[..., Ranks], store: ObjectStore
    ) -> None:
        ranks = world()
        reference, other = ranks.saved(equal_states(7), 30), ranks.saved(equal_states(9), 40)
        objects, theirs = (dict(manifest_of(store, one).objects) for one in (reference, other))
        for name in ("__0_0.distcp", "__0_0.distcp.index.json"):
            store.put(f"{prefix_of(reference)}{name}", store.get(f"{prefix_of(other)}{name}"))
            objects[name] = theirs[name]
        forged = rewritten(store, reference, objects=objects)
        expect_failure(ranks, forged, RestoreFailure.CONTENT_MISMATCH)

    def test_a_missing_object_is_named(
        self, world: Callable[..., Ranks], store: ObjectStore, object_store: ObjectStoreServer
    ) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        key = f"{prefix_of(reference)}__1_0.distcp"
        object_store.client().delete_object(Bucket=store.bucket, Key=key)
        assert expect_failure(ranks, reference, RestoreFailure.OBJECT_MISSING) == key

    def test_a_manifest_of_another_hash_is_refused(self, world: Callable[..., Ranks], store: ObjectStore) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        store.put(reference.key, store.get(reference.key).replace(b"0.01", b"0.02"))
        expect_failure(ranks, reference, RestoreFailure.MANIFEST_DAMAGED)

    def test_a_missing_manifest_is_refused(self, world: Callable[..., Ranks], root: str) -> None:
        ranks = world()
        key = keys.checkpoint_prefix(root, RUN, 30, 1, "abc") + keys.MANIFEST_NAME
        reference = CheckpointReference(key=key, sha256="0" * 64, step=30)
        expect_failure(ranks, reference, RestoreFailure.OBJECT_MISSING)

    def test_damage_on_one_rank_only_stops_every_rank(self, world: Callable[..., Ranks], store: ObjectStore) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        states = [new_state(8), new_state(8)]
        odd = [states[0], TrainingState(torch.nn.Linear(2, 2), states[1].optimizer)]
        before = [image(state) for state in odd]
        outcomes = ranks.restore(reference, odd)
        assert [type(outcome) for outcome in outcomes] == [RestoreFailed, RestoreFailed]
        assert outcomes[0].reason == RestoreFailure.STRUCTURE_MISMATCH
        assert [image(state) for state in odd] == before

    def test_a_model_of_another_shape_is_told_tensor_by_tensor(
        self, world: Callable[..., Ranks], store: ObjectStore
    ) -> None:
        ranks = world(world_size=1)
        reference = ranks.saved([new_state(7)], 30)
        (outcome,) = ranks.restore(reference, [new_state(8, replace(TINY, vocab_size=64, bias=True))])
        assert isinstance(outcome, RestoreFailed)
        assert "model.blocks.0.attention.key.bias: saved is none, this run has float32 [16]" in outcome.detail
        assert re.search(r"; and [0-9]+ more$", outcome.detail)
        (outcome,) = ranks.restore(reference, [new_state(8, replace(TINY, vocab_size=64))])
        for name in ("model.embedding.weight", "model.head.weight"):
            assert f"{name}: saved is float32 [256, 16], this run has float32 [64, 16]" in outcome.detail


def rewritten(store: ObjectStore, reference: CheckpointReference, **changes: Any) -> CheckpointReference:
    """The same checkpoint with another manifest, and the reference that fits it."""
    manifest = manifest_of(store, reference)
    fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    body = encode_manifest(CheckpointManifest(**{**fields, **changes}))
    store.put(reference.key, body)
    return CheckpointReference(key=reference.key, sha256=sha256_hex(body), step=reference.step)


class TestForeignCheckpoints:
    def test_a_manifest_under_another_runs_prefix_is_refused(self, world: Callable[..., Ranks]) -> None:
        reference = world(run_id=RunId("team", "run", "ffff")).saved(equal_states(7), 30)
        expect_failure(world(), reference, RestoreFailure.OTHER_RUN)

    def test_a_manifest_that_names_another_run_is_refused(
        self, world: Callable[..., Ranks], store: ObjectStore
    ) -> None:
        ranks = world()
        forged = rewritten(store, ranks.saved(equal_states(7), 30), run="team/run/ffff")
        expect_failure(ranks, forged, RestoreFailure.OTHER_RUN)

    def test_an_object_name_cannot_leave_the_folder(self, world: Callable[..., Ranks], store: ObjectStore) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        objects = manifest_of(store, reference).objects
        forged = rewritten(store, reference, objects={**objects, "../outside": objects[".metadata"]})
        expect_failure(ranks, forged, RestoreFailure.MANIFEST_INCONSISTENT)

    def test_a_suspect_state_is_stored_and_never_restored(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        expect_failure(ranks, ranks.saved(equal_states(7), 30, trigger="Suspect"), RestoreFailure.STATE_NOT_VALID)

    def test_a_state_marked_not_finite_is_refused(self, world: Callable[..., Ranks], store: ObjectStore) -> None:
        ranks = world()
        forged = rewritten(store, ranks.saved(equal_states(7), 30), replicas_agree=False)
        expect_failure(ranks, forged, RestoreFailure.STATE_NOT_VALID)

    def test_ledgers_that_map_an_earlier_step_differently_are_refused(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        expect_failure(ranks, reference, RestoreFailure.SKIP_LEDGER_MISMATCH, skip=SkipLedger(((10, 12),)))

    def test_a_ledger_that_skips_later_windows_is_fine(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        states = equal_states(8)
        manifests = ranks.restore(reference, states, SkipLedger(((30, 41),)))
        assert manifests[0].next_window == 30
        assert image(states[0]) == image(new_state(7))


class TestVerification:
    def test_two_hosts_verify_each_others_objects(self, world: Callable[..., Ranks]) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        assert ranks.verdict() == Verified(reference, "host-0,host-1")

    def test_one_node_only_has_its_own_word(self, world: Callable[..., Ranks]) -> None:
        ranks = world(processes_per_node=2)
        reference = ranks.saved(equal_states(7), 30)
        assert ranks.verdict() == Verified(reference, "self")

    def test_an_object_changed_in_the_store_is_named(
        self, world: Callable[..., Ranks], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stored = ObjectStore.put

        def bit_rot(self: ObjectStore, key: str, body: bytes | Path) -> None:
            if key.endswith("__1_0.distcp") and isinstance(body, bytes):
                body = flipped_bit(body)
            stored(self, key, body)

        monkeypatch.setattr(ObjectStore, "put", bit_rot)
        ranks = world()
        ranks.saved(equal_states(7), 30)
        verdict = ranks.verdict()
        assert isinstance(verdict, VerifyFailed)
        assert verdict.object_name == "__1_0.distcp"


class TestMeasuring:
    def test_a_save_waits_for_what_each_rank_measures_however_long_that_takes(
        self, world: Callable[..., Ranks], store: ObjectStore
    ) -> None:
        ranks = world(limits=CheckpointLimits(save_deadline_seconds=2))
        measured: list[Future[ShareMeasurement]] = [Future(), Future()]
        ranks.save(equal_states(7), 30, measured=measured)
        measured[1].set_result(ShareMeasurement(loss=math.nan, samples=("cd" * 32,)))
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(3)) == [False, False]
        assert ranks.drain(0) == []
        measured[0].set_result(ShareMeasurement(loss=1.5, samples=("ab" * 32, "ef" * 32)))
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [True, True]
        (saved,) = ranks.drain(0)
        assert isinstance(saved, Saved)
        evaluation = manifest_of(store, saved.reference).evaluation
        assert evaluation.losses == (1.5, None)
        assert evaluation.samples_sha256 == sha256_hex(bytes.fromhex("ab" * 32 + "ef" * 32 + "cd" * 32))

    def test_a_world_that_ends_before_anything_was_measured_leaves_nothing_that_could_be_chosen(
        self, world: Callable[..., Ranks], store: ObjectStore, root: str
    ) -> None:
        ranks = world()
        ranks.save(equal_states(7), 30, measured=[Future(), Future()])
        time.sleep(1)
        ranks.close()
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
        (event,) = ranks.drain(0)
        assert isinstance(event, SaveFailed)
        assert "the world ended before" in event.detail
        assert not [key for key in store.list(root) if key.endswith(keys.MANIFEST_NAME)]


class TestOutages:
    def test_a_save_waits_for_a_store_that_comes_back(
        self, world: Callable[..., Ranks], object_store: ObjectStoreServer
    ) -> None:
        ranks = world()
        object_store.freeze()
        try:
            ranks.save(equal_states(7), 30)
            assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(1.5)) == [False, False]
        finally:
            object_store.thaw()
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [True, True]

    @pytest.mark.parametrize("allowed", [1, 2])
    def test_periodic_saves_are_left_out_while_as_many_as_allowed_are_pending_and_final_ones_are_not(
        self, world: Callable[..., Ranks], object_store: ObjectStoreServer, allowed: int
    ) -> None:
        ranks = world(limits=replace(FAST, max_pending=allowed))
        states, steps = equal_states(7), [30, 40, 50]
        object_store.freeze()
        try:
            for step in steps:
                ranks.save(states, step)
            ranks.save(states, 60, trigger="Final")
            behind = [CheckpointBehind(step, allowed, "Periodic") for step in steps[allowed:]]
            assert [ranks.drain(rank) for rank in range(2)] == [behind] * 2
        finally:
            object_store.thaw()
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [True, True]
        assert [event.reference.step for event in ranks.drain(1)[len(behind) :]] == [*steps[:allowed], 60]

    def test_a_save_that_misses_its_deadline_leaves_nothing_that_could_be_chosen(
        self, world: Callable[..., Ranks], store: ObjectStore, object_store: ObjectStoreServer, root: str
    ) -> None:
        broken = store_in(object_store, store.bucket, READER)
        ranks = world(store=broken, limits=CheckpointLimits(save_deadline_seconds=1))
        ranks.save(equal_states(7), 30)
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
        for rank in range(2):
            (event,) = ranks.drain(rank)
            assert isinstance(event, SaveFailed)
            assert "checkpoint.uri" in event.detail
        assert not [key for key in store.list(root) if key.endswith(keys.MANIFEST_NAME)]

    def test_a_restore_waits_for_a_store_that_comes_back(
        self, world: Callable[..., Ranks], object_store: ObjectStoreServer
    ) -> None:
        ranks = world()
        reference = ranks.saved(equal_states(7), 30)
        ranks.verdict()
        states = equal_states(8)
        object_store.freeze()
        # The first sign of progress of a restore from a store that does not answer is a failed attempt.
        ranks.on_progress = object_store.thaw
        try:
            ranks.restore(reference, states)
        finally:
            object_store.thaw()
        assert [image(state) for state in states] == [image(new_state(7))] * 2

    def test_a_store_that_stays_away_fails_the_restore_and_nothing_else(
        self, world: Callable[..., Ranks], object_store: ObjectStoreServer
    ) -> None:
        reference = world().saved(equal_states(7), 30)
        impatient = world(limits=CheckpointLimits(restore_patience_seconds=1))
        object_store.freeze()
        try:
            expect_failure(impatient, reference, RestoreFailure.STORE_UNAVAILABLE)
        finally:
            object_store.thaw()
