"""The attention kernels of PyTorch that also say how large the logits were, and which one a device has.

Some return the log-sum-exp of every row, which brackets its largest logit; one returns the largest logit itself.
"""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, cast

import torch
from torch import Tensor

from trimtab_trainer.max_logits.operators import CPU_FLASH, CUDA_FLASH, known_operator
from trimtab_trainer.model.visibility import Visibility

logger = logging.getLogger(__name__)

_CUDA_LARGEST_HEAD: Final = 256
CUDA_HEAD_MULTIPLE: Final = 8
"""PyTorch's kernels on CUDA that never hold the whole matrix take heads of such dimensions."""

_CUDA_FLASH_CAPABILITY: Final = (8, 0)
_FLEX_SMALLEST_HEAD: Final = 16


class Kernel(StrEnum):
    """Where the largest logits come from."""

    CPU_FLASH = "cpuFlash"
    """The CPU's flash kernel, any mask: log-sum-exp."""

    CUDA_FLASH = "cudaFlash"
    """The flash kernel for half-precision types on CUDA, without a mask: log-sum-exp."""

    FLEX = "flex"
    """Compiled flex_attention on CUDA, any mask: the largest logit of every row."""

    PLAIN = "plain"
    """Attention that reports nothing, on any device; the largest logits cost a product of their own."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """What the choice of a kernel depends on."""

    device: str
    dtype: torch.dtype
    dimension: int
    """Of a head, the larger one where keys and values differ."""

    masked: bool
    """Whether a query does not see all of its past."""

    sink: bool

    smaller_dimension: int | None = None
    """The other one where keys and values differ."""


def choose_kernel(case: AttentionCase, available: frozenset[Kernel]) -> Kernel:
    """The cheapest of the available kernels that computes this case."""
    if case.device == "cpu" and Kernel.CPU_FLASH in available:
        return Kernel.CPU_FLASH
    if case.device != "cuda" or case.sink:
        return Kernel.PLAIN
    half = case.dtype in {torch.float16, torch.bfloat16}
    flash = half and case.dimension <= _CUDA_LARGEST_HEAD and case.dimension % CUDA_HEAD_MULTIPLE == 0
    if flash and not case.masked and Kernel.CUDA_FLASH in available:
        return Kernel.CUDA_FLASH
    smallest = case.dimension if case.smaller_dimension is None else case.smaller_dimension
    flex = case.dtype != torch.float64 and smallest >= _FLEX_SMALLEST_HEAD
    return Kernel.FLEX if flex and Kernel.FLEX in available else Kernel.PLAIN


@cache
def available_kernels() -> frozenset[Kernel]:
    """The kernels that this PyTorch has, and of those of CUDA what the current device can run, where there is one."""
    found, cuda = {Kernel.PLAIN}, torch.cuda.is_available()
    if known_operator(CPU_FLASH) is not None:
        found.add(Kernel.CPU_FLASH)
    if known_operator(CUDA_FLASH) is not None and not (
        cuda and torch.cuda.get_device_capability() < _CUDA_FLASH_CAPABILITY
    ):
        found.add(Kernel.CUDA_FLASH)
    if cuda and hasattr(_flex_module(), "AuxRequest"):
        if _has_compiler():
            found.add(Kernel.FLEX)
        else:
            logger.warning(
                "there is no C compiler (gcc, clang or $CC), which flex_attention is compiled by: attention that needs "
                "it takes an operator that does not return the largest logits, and they cost a product of their own"
            )
    return frozenset(found)


def _has_compiler() -> bool:
    """Whether Triton can build what loads its kernels: images often have no compiler, as nothing else needs one."""
    own = os.environ.get("CC")
    return any(shutil.which(name) for name in ((own,) if own else ("gcc", "clang")))


def cpu_flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp [batch, heads, tokens]; causal without `mask`, an additive one otherwise.

    Keys may have fewer heads than queries. A row that sees nothing has output and log-sum-exp 0.
    """
    output, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale
    )
    return output, log_sum_exp


def cuda_flash(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the causal output and the log-sum-exp [batch, heads, tokens] in float32.

    Keys may have fewer heads than queries: the kernel reads each once for all the queries that share it.
    """
    result = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        query, key, value, 0.0, True, False, scale=scale
    )
    differentiated_reproducibly(result[0])
    return result[0], result[1]


def differentiated_reproducibly(output: Tensor) -> None:
    """Have the kernel that made `output` add up its gradients in one order, if the process wants reproducible bits.

    Kernels of attention can, and do so only where an operator that cannot is an error. It is a warning for the process,
    as there are such; so it becomes an error for as long as this kernel's backward pass takes.
    """
    node = output.grad_fn
    if node is None or not torch.is_deterministic_algorithms_warn_only_enabled():
        return

    def ask(_: object) -> None:
        torch.use_deterministic_algorithms(True)

    def ask_no_more(*_: object) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)

    node.register_prehook(ask)
    node.register_hook(ask_no_more)


def flex_with_max_scores(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return output and the largest logit of every row [batch, heads, tokens] in float32."""
    output, auxiliary = _compiled_flex()(
        query,
        key,
        value,
        block_mask=_block_mask(query, visibility),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=_flex_module().AuxRequest(max_scores=True),
    )
    return output, auxiliary.max_scores.detach()


def _block_mask(query: Tensor, visibility: Visibility) -> Any:
    """Which blocks flex_attention may leave out: made once for all layers of a forward pass."""
    batch, _, tokens, _ = query.shape
    samples = batch if visibility.documents is not None or visibility.present is not None else None

    def made() -> Any:
        sees = _mask_function(visibility)
        return _flex_module().create_block_mask(sees, samples, None, tokens, tokens, device=query.device)

    return visibility.made_once(("blocks", samples, tokens, query.device), made)


def _mask_function(visibility: Visibility) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The mask of flex_attention: of four indices, whether the query sees the key."""
    window, documents, present = visibility.window, visibility.documents, visibility.present

    def sees(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        del head
        seen = row >= column
        if window is not None:
            seen = seen & (row - column < window)
        if documents is not None:
            seen = seen & (documents[batch, row] == documents[batch, column])
        if present is not None:
            seen = seen & present[batch, row] & present[batch, column]
        return seen

    return sees


@cache
def _flex_module() -> Any:
    """Imported late: it pulls in the compiler, which the CPU needs for nothing."""
    from torch.nn.attention import flex_attention  # noqa: PLC0415

    return flex_attention


@cache
def _compiled_flex() -> Callable[..., tuple[Tensor, Any]]:
    compiled = torch.compile(_flex_module().flex_attention)  # pyright: ignore[reportUnknownMemberType]
    return cast("Callable[..., tuple[Tensor, Any]]", compiled)
