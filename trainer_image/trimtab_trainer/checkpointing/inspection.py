"""Whether a copy may be committed: equal on every rank, and finite. Done on the very copy that is saved."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor
from trimtab_contract.checkpoints import FiniteScan

from trimtab_trainer.checkpointing.reasons import SaveRefusal
from trimtab_trainer.checkpointing.state import FlatState, tensors_of
from trimtab_trainer.optim.checksum import parameter_checksum


class Inspection(msgspec.Struct, frozen=True):
    """One rank's findings: checksum of the whole and of each tensor in name order, and non-finite tensors."""

    checksum: str
    tensors: tuple[str, ...]
    finite: FiniteScan


def inspect(flat: FlatState) -> Inspection:
    """Checksum and finite scan of every tensor."""
    tensors = tensors_of(flat)
    found = parameter_checksum(tensors.items())
    return Inspection(f"{found.total:016x}", tuple(f"{value:x}" for _, value in found.tensors), finite_scan(tensors))


def finite_scan(tensors: Mapping[str, Tensor]) -> FiniteScan:
    """Count elements that are NaN or infinite.

    A sum over finite elements may overflow, but one over a non-finite element is never finite: only tensors whose sum
    is not finite are looked at twice.
    """
    count, names = 0, list[str]()
    for name, tensor in tensors.items():
        if bool(torch.isfinite(tensor.sum())):
            continue
        found = int((~torch.isfinite(tensor)).sum())
        if found:
            count += found
            names.append(name)
    return FiniteScan(nonfinite=count, tensors=tuple(names))


def refusal(inspections: Sequence[Inspection], names: Sequence[str]) -> tuple[SaveRefusal, str] | None:
    """Why a copy must not be committed, given what every rank found; all ranks conclude the same.

    Ranks outside the majority are named with the first tensor that differs; without a majority all are compared with
    rank 0.
    """
    for rank, inspection in enumerate(inspections):
        if inspection.finite.nonfinite:
            detail = f"rank {rank}: {inspection.finite.tensors[0]}: {inspection.finite.nonfinite} elements"
            return SaveRefusal.NON_FINITE, detail
    rows = [inspection.tensors for inspection in inspections]
    majority, votes = Counter(rows).most_common(1)[0]
    if votes == len(rows):
        return None
    expected = majority if votes * 2 > len(rows) else rows[0]
    differing = [
        f"rank {rank}: {next(name for name, mine, other in zip(names, row, expected, strict=True) if mine != other)}"
        for rank, row in enumerate(rows)
        if row != expected
    ]
    return SaveRefusal.REPLICA_MISMATCH, "; ".join(differing)
