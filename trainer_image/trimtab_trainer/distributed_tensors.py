"""Tensors of which each rank has some rows, and the others have the rest; any other tensor is whole on every rank.

Rows are dealt out in order, so what a rank has is one stretch of the tensor's elements. Nothing here asks another rank.
"""

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def is_sharded(tensor: Tensor) -> bool:
    """Whether other ranks have other elements of it."""
    return isinstance(tensor, DTensor)


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
        part, whole.device_mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )
