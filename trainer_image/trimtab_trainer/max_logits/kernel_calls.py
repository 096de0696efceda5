"""What the kernels of attention are given, and the log-sum-exp that they return: seen, and left as it is.

`scaled_dot_product_attention` chooses a kernel, calls it and returns its output alone. The rest is kept by the graph
for the backward pass, or seen by whoever watches the calls of kernels underneath. Nothing is computed otherwise.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab_trainer.max_logits.operators import CPU_FLASH, CUDA_EFFICIENT, CUDA_FLASH, known_operator
from trimtab_trainer.tensors import saved_tensors_are_hooked

_CPU_NODE: Final = "ScaledDotProductFlashAttentionForCpuBackward0"
_PLAIN: Final = (Tensor, nn.Parameter)
_OPERATORS: Final = (CPU_FLASH, CUDA_FLASH, CUDA_EFFICIENT)


@dataclass(frozen=True, slots=True)
class KernelCall:
    """The logits of one call: [batch, heads, queries, dimension] and [batch, key heads, keys, dimension], and masks.

    The tensors are those that the kernel got, behind autocast, projections and rotations.
    """

    query: Tensor
    key: Tensor
    attn_mask: Tensor | None
    """Of any shape that can be broadcast; added to the logits."""

    is_causal: bool
    scale: float | None
    log_sum_exp: Tensor
    """[batch, heads, queries], in float32 at least; 0 or anything else of a row that sees nothing."""


def seen_call(func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, KernelCall | None]:
    """Call `func`; return what it returns, and the call of a kernel that it made, if that was one and a known one."""
    if func is F.scaled_dot_product_attention and _is_kept_by_graph((*args, *given.values())):
        output = func(*args, **given)
        return output, _call_of_node(output.grad_fn)
    with KernelCalls() as calls:
        output = func(*args, **given)
    return output, calls.only


class KernelCalls(TorchDispatchMode):
    """While entered, keeps the calls of kernels that return a log-sum-exp, of plain tensors only."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] untyped
        self._seen: list[KernelCall] = []

    @property
    def only(self) -> KernelCall | None:
        """The call, where there was exactly one."""
        return self._seen[0] if len(self._seen) == 1 else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass everything on, and keep a kernel's call."""
        given = kwargs or {}
        result = func(*args, **given)
        if (names := _watched().get(func)) is not None:
            call = _call(dict(zip(names, args, strict=False)) | given, result[1])
            self._seen += [] if call is None else [call]
        return result


def _is_kept_by_graph(arguments: tuple[Any, ...]) -> bool:
    """Whether the output of attention on the CPU will be that of a node which holds what the kernel got and returned.

    Much cheaper than a watch. Hooks on saved tensors might compute the forward pass again when one is read.
    """
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    needed = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    return needed and tensors[0].device.type == "cpu" and not saved_tensors_are_hooked()


def _call_of_node(node: Any) -> KernelCall | None:
    if type(node).__name__ != _CPU_NODE or known_operator(CPU_FLASH) not in _watched():
        return None
    kept = ("query", "key", "attn_mask", "is_causal", "scale")
    return _call({name: getattr(node, f"_saved_{name}") for name in kept}, node._saved_logsumexp)  # noqa: SLF001


def _call(given: dict[str, Any], log_sum_exp: Tensor) -> KernelCall | None:
    query, key = cast("Tensor", given["query"]), cast("Tensor", given["key"])
    # Tensors of another kind (parts of one, descriptions of one) may mean something else by a row.
    if type(query) not in _PLAIN or type(key) not in _PLAIN or type(log_sum_exp) not in _PLAIN:
        return None
    # Without gradients some kernels return none; some fill the last block of rows up.
    if log_sum_exp.ndim != 3 or log_sum_exp.shape[-1] < query.shape[-2]:
        return None
    if log_sum_exp.shape[-1] > query.shape[-2]:
        log_sum_exp = log_sum_exp[..., : query.shape[-2]]
    return KernelCall(
        query,
        key,
        given.get("attn_mask", given.get("attn_bias")),
        bool(given.get("is_causal", False)),
        given.get("scale"),
        log_sum_exp,
    )


@cache
def _watched() -> dict[Any, list[str]]:
    """The operators that this PyTorch has, and the names of what each is given, in order."""
    known = [one for name in _OPERATORS if (one := known_operator(name)) is not None]
    return {one: [argument.name for argument in one._schema.arguments] for one in known}  # noqa: SLF001
