"""Two ranks and a real S3 server: what comes back is what went in, and a save waits for what ranks measure of it."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future

import torch
from checkpoint_ranks import RUN, Ranks, all_tensors, image, new_state
from opened_worlds import equal_states, root, store, world
from stored_slices import manifest_of, prefix_of
from trimtab_contract import keys
from trimtab_contract.checkpoints import sha256_hex
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import CheckpointLimits, Saved, SaveFailed, ShareMeasurement
from trimtab_trainer.errors import StoreUnavailable

__all__ = ["root", "store", "world"]


def test_a_restored_state_is_bit_identical_on_every_rank(world: Callable[..., Ranks]) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    states = equal_states(8)
    manifests = ranks.restore(reference, states)
    assert [image(state) for state in states] == [image(new_state(7))] * 2
    assert manifests[0] == manifests[1]
    assert (manifests[0].step, manifests[0].optimizer_steps, manifests[0].run) == (30, 7, str(RUN))
    assert min(ranks.progress) > 0


def test_nothing_is_committed_before_every_rank_has_stored_how_it_got_there(
    world: Callable[..., Ranks], store: ObjectStore, root: str
) -> None:
    def prove(rank: int) -> None:
        if rank == 1:
            raise StoreUnavailable("the batch log cannot be written now")

    ranks = world(limits=CheckpointLimits(save_deadline_seconds=1), prove=prove)
    ranks.save(equal_states(7), 30)
    assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
    assert isinstance(ranks.drain(0)[0], SaveFailed)
    assert not [key for key in store.list(root) if key.endswith(keys.MANIFEST_NAME)]


def test_training_after_the_call_does_not_reach_the_copy(world: Callable[..., Ranks]) -> None:
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


def test_another_world_size_restores_the_same_state(world: Callable[..., Ranks]) -> None:
    reference = world().saved(equal_states(7), 30)
    alone = world(world_size=1)
    states = equal_states(8, 1)
    alone.restore(reference, states)
    assert image(states[0]) == image(new_state(7))


def test_the_second_save_reuses_the_layout_and_never_the_prefix(world: Callable[..., Ranks]) -> None:
    ranks = world()
    first = ranks.saved(equal_states(7), 30)
    second = ranks.saved(equal_states(9), 30)
    assert prefix_of(first) != prefix_of(second)
    states = equal_states(8)
    ranks.restore(second, states)
    assert image(states[1]) == image(new_state(9))


def test_the_manifest_lists_every_object_of_its_prefix(
    world: Callable[..., Ranks], store: ObjectStore, root: str
) -> None:
    reference = world().saved(equal_states(7), 30)
    manifest = manifest_of(store, reference)
    listed = store.list(prefix_of(reference))
    sizes = {f"{prefix_of(reference)}{name}": stored.size for name, stored in manifest.objects.items()}
    assert {key: size for key, size in listed.items() if key != reference.key} == sizes
    assert reference.key.startswith(keys.checkpoints_prefix(root, RUN))
    assert sha256_hex(store.get(reference.key)) == reference.sha256


def test_every_rank_gets_its_own_random_state_back(world: Callable[..., Ranks]) -> None:
    ranks = world(world_size=1)
    states = equal_states(7, 1)
    torch.manual_seed(1234)
    reference = ranks.saved(states, 30)
    torch.manual_seed(1234)
    expected = torch.rand(4)
    torch.manual_seed(5)
    ranks.restore(reference, states)
    assert torch.equal(torch.rand(4), expected)


def test_a_save_waits_for_what_each_rank_measures_however_long_that_takes(
    world: Callable[..., Ranks], store: ObjectStore
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
    world: Callable[..., Ranks], store: ObjectStore, root: str
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
