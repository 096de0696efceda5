"""Whether a copy may be committed: equal on every rank, and finite. Done on the very copy that is saved."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor
from trimtab_contract.checkpoints import FiniteScan

from trimtab_trainer.checkpointing.reasons import SaveRefusal
from trimtab_trainer.checkpointing.state import FlatState, tensors_of
from trimtab_trainer.distributed_tensors import is_sharded, own_part
from trimtab_trainer.optim import parameter_checksum, whole_checksum


class Inspection(msgspec.Struct, frozen=True):
    """One rank's findings: checksum of all it has, and of each tensor in name order, and non-finite tensors.

    `sharded` is what sharded tensors add to the checksum. No two ranks have the same of them, so there is nothing to
    compare, and their own checksums are left empty.
    """

    checksum: str
    tensors: tuple[str, ...]
    finite: FiniteScan
    sharded: str = "0"


def inspect(flat: FlatState) -> Inspection:
    """Checksum and finite scan of every tensor."""
    tensors = tensors_of(flat)
    found = parameter_checksum(tensors.items())
    compared = ("" if is_sharded(tensors[name]) else f"{value:x}" for name, value in found.tensors)
    return Inspection(f"{found.total:016x}", tuple(compared), finite_scan(tensors), f"{found.sharded:x}")


def checksum_of_all(inspections: Sequence[Inspection]) -> str:
    """The checksum of the whole state, however many ranks it is on."""
    own = inspections[0]
    parts = [int(one.sharded, 16) for one in inspections]
    return f"{whole_checksum(int(own.checksum, 16), int(own.sharded, 16), parts):016x}"


def finite_scan(tensors: Mapping[str, Tensor]) -> FiniteScan:
    """Count elements that are NaN or infinite.

    A sum over finite elements may overflow, but one over a non-finite element is never finite: only tensors whose sum
    is not finite are looked at twice.
    """
    count, names = 0, list[str]()
    for name, part in tensors.items():
        tensor = own_part(part)
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
