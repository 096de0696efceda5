"""Tensors of which each rank has some rows, and the others have the rest; any other tensor is whole on every rank.

Rows are dealt out in order, so what a rank has is one stretch of the tensor's elements. Nothing here asks another rank.
"""

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def is_sharded(tensor: Tensor) -> bool:
    """Whether other ranks have other elements of it."""
    return isinstance(tensor, DTensor)


def shard_problem(name: str, tensor: Tensor, ranks: int, rank: int) -> str | None:
    """Why the rows of a tensor are not dealt out over `ranks`, of which this is number `rank`; None if they are.

    Where each shard has replicas (HSDP), the ranks are those of one replica.
    """
    if not isinstance(tensor, DTensor):
        return f"{name}: every rank has the whole of it; fully_shard must deal out all parameters before this is built"
    mesh = tensor.device_mesh
    cut = [(axis, one) for axis, one in enumerate(tensor.placements) if not one.is_replicate()]
    if len(cut) != 1:
        return (
            f"{name}: cut along {len(cut)} dimensions of its mesh and must be along one, by fully_shard alone: tensor "
            "parallelism beside it is not supported"
        )
    ((axis, placement),) = cut
    if placement != Shard(0):
        return f"{name}: {placement!r} must be Shard(dim=0), rows: leave shard_placement_fn out and tensor parallelism"
    if (mesh.size(axis), mesh.get_local_rank(axis)) != (ranks, rank):
        return (
            f"{name}: its rows are shared by {mesh.size(axis)} ranks, this being {mesh.get_local_rank(axis)}, and "
            f"this is {rank} of {ranks} peers; make them of the group of that dimension of the mesh"
        )
    return None


def own_part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, in the same memory: some of its rows, or all where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor) -> int:
    """The number of the first row that this rank has."""
    if not isinstance(tensor, DTensor):
        return 0
    # As `torch.chunk` deals them out: as many to each rank, and what is left to the last ones.
    mesh = tensor.device_mesh
    return min(-(-tensor.shape[0] // mesh.size()) * mesh.get_local_rank(), tensor.shape[0])


def first_element(tensor: Tensor) -> int:
    """The number, in row-major order, of the first element that this rank has."""
    return first_row(tensor) * (tensor.numel() // tensor.shape[0]) if is_sharded(tensor) else 0


def with_part(part: Tensor, whole: Tensor) -> Tensor:
    """A tensor sharded like `whole`, of which this rank has `part`, in the same memory."""
    if not isinstance(whole, DTensor):
        return part
    return DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
