"""Which parameters of a plain PyTorch model route tokens to experts, and which are stacks of experts' matrices."""

import re
from collections.abc import Iterator
from typing import Final, cast

from torch import Tensor, nn

from trimtab_trainer.optim.config import ParameterGroup

_ROUTING: Final = re.compile(r"(^|_)(gate|router)$")
"""What a mixture of experts calls the part that scores them, where the part's type does not say so."""

_ROUTERS: Final = ("Router", "Gate")
"""End the names of such types."""


def mixture_groups(model: nn.Module) -> Iterator[ParameterGroup]:
    """Yield groups that send routers to AdamW, and stacks of experts' matrices to Muon, each orthogonalised alone.

    Known are modules with `experts`: a list of modules, or one with the stacks `gate_up_proj` [experts, 2 hidden,
    width] and `down_proj` [experts, width, hidden], as most models of Hugging Face have them. Stacks of another layout
    are left to AdamW: where gate and up lie side by side, or their columns alternate, no rows part them.
    """
    modules = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())
    for name, module in modules:
        experts = getattr(module, "experts", None)
        if isinstance(experts, nn.Module):
            prefix = f"{name}." if name else ""
            yield from _stacks(f"{prefix}experts.", experts)
            yield from _routers(prefix, module, _count(experts))


def _stacks(prefix: str, experts: nn.Module) -> Iterator[ParameterGroup]:
    gate_up, down = _stack(experts, "gate_up_proj"), _stack(experts, "down_proj")
    if gate_up is None or down is None:
        return
    hidden, width = down.shape[2], down.shape[1]
    if gate_up.shape == (len(down), 2 * hidden, width):
        yield ParameterGroup(pattern=f"{prefix}gate_up_proj", optimizer="muon", split=(hidden, hidden))
        yield ParameterGroup(pattern=f"{prefix}down_proj", optimizer="muon")


def _routers(prefix: str, mixture: nn.Module, count: int) -> Iterator[ParameterGroup]:
    for own, child in mixture.named_children():
        if own == "experts" or not (_ROUTING.search(own) or type(child).__name__.endswith(_ROUTERS)):
            continue
        for name, parameter in child.named_parameters():
            if parameter.ndim == 2 and len(parameter) == count:
                yield ParameterGroup(pattern=f"{prefix}{own}.{name}", optimizer="adamw")


def _count(experts: nn.Module) -> int:
    """How many experts there are; 0 where that is not known."""
    if isinstance(experts, nn.ModuleList):
        return len(experts)
    stack = _stack(experts, "down_proj")
    return 0 if stack is None else len(stack)


def _stack(module: nn.Module, name: str) -> Tensor | None:
    found = getattr(module, name, None)
    return found if isinstance(found, Tensor) and found.ndim == 3 else None
