"""Whether all ranks hold the same parameters (most flipped bits show nowhere else), and whether all is finite."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from trimtab_contract.directives import ReplicaReport

from trimtab_trainer.checkpointing.inspection import finite_scan
from trimtab_trainer.checkpointing.state import TrainingState, tensors_of
from trimtab_trainer.collectives import World
from trimtab_trainer.optim import parameter_checksum
from trimtab_trainer.tensors import integers

MOST_NAMED = 16
"""So many tensors of a rank, and so many ranks, are named."""

_SIGN = 1 << 63


def compare_replicas(named_parameters: Iterable[tuple[str, Tensor]], world: World) -> ReplicaReport:
    """Compare parameter checksums over all ranks, before an update can make NaN replicas look alike.

    `differing` names, for each rank outside the majority, the first tensor that differs. Without a majority (two
    ranks) every rank is compared with rank 0.
    """
    own = parameter_checksum(named_parameters)
    gathered = world.gather(torch.tensor([_signed(value) for _, value in own.tensors], dtype=torch.int64))
    rows = [tuple(integers(row)) for row in gathered]
    if len(set(rows)) == 1:
        return ReplicaReport(agree=True)
    majority, votes = Counter(rows).most_common(1)[0]
    reference = majority if votes * 2 > len(rows) else rows[0]
    names = [name for name, _ in own.tensors]
    return ReplicaReport(agree=False, differing=_shortened(list(_differing(rows, reference, names)), "ranks"))


def nonfinite_tensors(state: TrainingState, world: World) -> tuple[str, ...]:
    """For each rank whose weights or optimizer state hold an element that is not finite, how many and where."""
    found = finite_scan(tensors_of(state.flat()))
    named = _shortened(found.tensors, "tensors")
    own = f"{found.nonfinite} elements of {', '.join(named)}" if found.nonfinite else ""
    return _shortened([f"rank {rank}: {text}" for rank, text in enumerate(world.gather_text(own)) if text], "ranks")


def _shortened(found: Sequence[str], what: str) -> tuple[str, ...]:
    """The first few, and how many more there are: an acknowledgement must stay small, however much is broken."""
    more = len(found) - MOST_NAMED
    return (*found[:MOST_NAMED], f"{more} more {what}") if more > 0 else tuple(found)


def _differing(rows: list[tuple[int, ...]], reference: tuple[int, ...], names: list[str]) -> Iterable[str]:
    for rank, row in enumerate(rows):
        for name, mine, theirs in zip(names, row, reference, strict=True):
            if mine != theirs:
                yield f"rank {rank}: {name}"
                break


def _signed(value: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits."""
    return value - 2 * _SIGN if value >= _SIGN else value
