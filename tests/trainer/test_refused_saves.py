"""A state whose replicas differ or that is not finite is never stored, nor a manifest that nobody would read."""

from collections.abc import Callable
from unittest.mock import patch

import torch
from checkpoint_ranks import Ranks, all_tensors, new_state
from opened_worlds import equal_states, root, store, world
from trimtab_contract import keys
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import SaveFailed, SaveRefusal, SaveRefused, saving
from trimtab_trainer.checkpointing.inspection import inspect

__all__ = ["root", "store", "world"]


def test_replicas_that_differ_are_never_stored(world: Callable[..., Ranks], store: ObjectStore, root: str) -> None:
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
    world: Callable[..., Ranks], store: ObjectStore, root: str
) -> None:
    ranks = world()
    with patch.object(saving, "MAX_MANIFEST_BYTES", 1000):
        ranks.save(equal_states(7), 30)
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
    (failed,) = ranks.drain(0)
    assert isinstance(failed, SaveFailed)
    assert "more than 1000 are not read: it names every object of every rank, and every tensor" in failed.detail
    assert not [key for key in store.list(root) if key.endswith(keys.MANIFEST_NAME)]


def test_a_state_that_is_not_finite_is_never_stored(world: Callable[..., Ranks], store: ObjectStore, root: str) -> None:
    ranks = world()
    states = equal_states(7)
    for state in states:
        all_tensors(state)["model.head.weight"].view(-1)[5] = torch.nan
    ranks.save(states, 30)
    ranks.run(lambda rank: ranks.checkpointers[rank].flush(60))
    detail = "rank 0: model.head.weight: 1 elements"
    assert ranks.drain(1) == [SaveRefused(30, SaveRefusal.NON_FINITE, detail, "Periodic")]
    assert store.list(root) == {}


def test_large_finite_values_are_not_taken_for_infinite_ones(world: Callable[..., Ranks]) -> None:
    ranks = world()
    states = equal_states(7)
    for state in states:
        all_tensors(state)["model.head.weight"].fill_(torch.finfo(torch.float32).max)
    assert ranks.saved(states, 30).step == 30


def test_a_flip_in_any_tensor_changes_the_checksum() -> None:
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
