"""Typed doors to the parts of PyTorch that its type stubs leave open."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]
from torch.utils.hooks import RemovableHandle

from trimtab_trainer import tensor_lists

Result = TypeVar("Result")

IGNORED_TARGET = -100
"""A target that no loss counts; what `torch.nn.functional.cross_entropy` ignores by default."""

PIECE_ELEMENTS: Final = 1 << 16
"""How much of a matrix is taken through several passes at once: a few such pieces in float32 fit a core's cache."""


def frobenius_norms(matrices: Tensor) -> Tensor:
    """Return the Frobenius norm [..., 1, 1] of each of `matrices` [..., rows, columns], in float32 at least."""
    kind = torch.promote_types(matrices.dtype, torch.float32)
    return cast(
        "Tensor",
        torch.linalg.vector_norm(  # pyright: ignore[reportUnknownMemberType]
            matrices, dim=(-2, -1), keepdim=True, dtype=kind
        ),
    )


def joined_norm(norms: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm [1, 1] of something whose parts have these norms [1, 1]."""
    return norms[0] if len(norms) == 1 else frobenius_norms(torch.cat(list(norms)))


def row_pieces(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut matrices of one shape [rows, columns] between the same rows; yield the pieces [some rows, columns] of each.

    A piece stays in a core's cache from one pass over it to the next. On an accelerator, where every pass has to be
    launched, the only piece is all of it. The cuts follow from the shape alone.
    """
    rows, columns = matrices[0].shape
    most = max(PIECE_ELEMENTS // columns, 1) if matrices[0].device.type == "cpu" else rows
    for start in range(0, rows, most):
        yield tuple(matrix[start : start + most] for matrix in matrices)


def global_norm(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all elements of `tensors`, accumulated in float64."""
    return tensor_lists.norms(tensors, torch.float64).square().sum().sqrt().item()


def singular_value_decomposition(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [rows, rank], S [rank] and V^T [rank, columns] of `matrix`."""
    return cast(
        "tuple[Tensor, Tensor, Tensor]",
        torch.linalg.svd(matrix, full_matrices=False),  # pyright: ignore[reportUnknownMemberType]
    )


def transposed(matrices: Tensor) -> Tensor:
    """Return `matrices` [..., rows, columns] as [..., columns, rows], without a copy."""
    return torch.transpose(matrices, -2, -1)


def stretches(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return consecutive views of `flat`, which has one dimension, of the given lengths."""
    return list(cast("tuple[Tensor, ...]", flat.split(list(sizes))))  # pyright: ignore[reportUnknownMemberType]


def integers(tensor: Tensor) -> list[int]:
    """Return the elements of a one-dimensional integer tensor."""
    return [int(element) for element in floats(tensor)]


def floats(tensor: Tensor) -> list[float]:
    """Return all elements of `tensor` in row-major order."""
    return cast("list[float]", tensor.cpu().flatten().tolist())  # pyright: ignore[reportUnknownMemberType]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor`, which is on the CPU, on `device`; the host waits for nothing that the device has yet to do.

    From memory that may be paged out PyTorch copies only when the device has done all that it was given before.
    """
    if device.type == "cpu":
        return tensor
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor).to(device, non_blocking=True)


def backpropagate(loss: Tensor) -> None:
    """Add the gradient of `loss` to every parameter's `grad`."""
    loss.backward()  # pyright: ignore[reportUnknownMemberType]


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Inside, products are computed in the type of their factors; an autocast around it would round them."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


def as_autocast_casts(tensor: Tensor) -> Tensor:
    """Return `tensor` in the type in which an autocast around computes products of it."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype not in {torch.float32, torch.float16, torch.bfloat16}:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def withdraw_mode(mode: TorchFunctionMode) -> None:
    """Take `mode` off this thread's stack of modes, wherever in it, as if it had been left; nothing if it is not."""
    binding = cast("Any", torch._C)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    above: list[object] = []
    while binding._len_torch_function_stack() and (top := binding._pop_torch_function_stack()) is not mode:  # noqa: SLF001
        above.append(top)
    for one in reversed(above):
        binding._push_on_torch_function_stack(one)  # noqa: SLF001


def saved_tensors_are_hooked() -> bool:
    """Whether what operators save for the backward pass goes through hooks, as activation checkpointing has them."""
    binding = cast("Any", torch._C)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return binding._autograd._top_saved_tensors_default_hooks(False) is not None  # noqa: SLF001


def in_backward_pass() -> bool:
    """Whether this thread is computing a backward pass: a forward pass inside it repeats an earlier one."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def checkpointed(
    function: Callable[..., Result],
    *arguments: object,
    contexts: Callable[[], tuple[AbstractContextManager[object], AbstractContextManager[object]]],
) -> Result:
    """Call `function` so that it keeps no activations and is called again in the backward pass.

    `contexts` makes what surrounds the first call and the second one. Random numbers of PyTorch's own are not repeated.
    """
    return checkpoint(  # pyright: ignore[reportUnknownMemberType]
        function, *arguments, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )


def change_next_gradient(parameter: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Pass the next gradient of `parameter` through `change`, once."""

    def changed_once(gradient: Tensor) -> Tensor:
        handle.remove()
        return change(gradient)

    handle = cast("RemovableHandle", parameter.register_hook(changed_once))  # pyright: ignore[reportUnknownMemberType]


def first_index(mask: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first true element of `mask`, or None."""
    return next(iter(true_indices(mask)), None)


def true_indices(mask: Tensor) -> list[tuple[int, ...]]:
    """Return the indices of all true elements of `mask`, in row-major order."""
    # The way to the host is taken once, and not for each index.
    found = mask.cpu().nonzero()
    return [tuple(integers(index)) for index in found]


@contextmanager
def evaluating(model: nn.Module, *, training: bool = False) -> Generator[None]:
    """Evaluation mode inside, or training mode, and the former one again afterwards."""
    was_training = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(was_training)
