"""Faults injected on purpose, so that drills and tests meet what hardware does by itself."""

import logging
import os
import signal
import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab_trainer.config import FaultConfig
from trimtab_trainer.fields import raise_if_any
from trimtab_trainer.tensors import change_next_gradient

logger = logging.getLogger(__name__)


class FaultInjector:
    """Fires each configured fault of this rank once, at its `(attempt, step)`.

    Raises:
        InvalidFields: a fault names a parameter or an element that does not exist.
    """

    def __init__(self, faults: tuple[FaultConfig, ...], rank: int, parameters: Mapping[str, Tensor]) -> None:
        raise_if_any(_problem(number, fault, parameters) for number, fault in enumerate(faults))
        self._pending = [fault for fault in faults if fault.rank == rank]
        # No other is kept: whole parameters are given back where they get sharded.
        named = {fault.tensor for fault in self._pending if fault.tensor is not None}
        self._parameters = {name: parameters[name] for name in named}

    def before_forward(self, attempt: int, step: int) -> None:
        """Fire what is due before the forward pass of `step`."""
        due = [fault for fault in self._pending if (fault.attempt, fault.step) == (attempt, step)]
        for fault in due:
            self._pending.remove(fault)
            logger.warning(
                "injected fault at attempt %d, step %d: %s %s", attempt, step, fault.kind, fault.tensor or ""
            )
            self._fire(fault)

    def _fire(self, fault: FaultConfig) -> None:
        if fault.kind == "flipBit":
            flip_bit(self._parameters[fault.tensor or ""], fault.index, fault.bit)
        elif fault.kind == "poisonGradient":
            _poison_next_gradient(self._parameters[fault.tensor or ""], fault.index)
        elif fault.kind in {"hang", "slow"}:
            threading.Event().wait(fault.seconds)
        else:
            os.kill(os.getpid(), signal.SIGKILL) if fault.kind == "kill" else os._exit(1)


@torch.no_grad()
def flip_bit(tensor: Tensor, index: int, bit: int) -> None:
    """Flip one bit of one 32-bit element in place."""
    words = tensor.view(torch.int32).view(-1)
    mask = (1 << bit) - (1 << 32 if bit == 31 else 0)
    words[index] = words[index] ^ mask


def _poison_next_gradient(parameter: Tensor, index: int) -> None:
    """Make one element of the next gradient of `parameter` NaN: a fault that the same batch does not repeat."""

    def poison(gradient: Tensor) -> Tensor:
        poisoned = gradient.clone()
        poisoned.view(-1)[index] = torch.nan
        return poisoned

    change_next_gradient(parameter, poison)


def _problem(number: int, fault: FaultConfig, parameters: Mapping[str, Tensor]) -> str | None:
    if fault.tensor is None:
        return None
    parameter = parameters.get(fault.tensor)
    if parameter is None:
        known = next(iter(parameters))
        return f"faults[{number}].tensor: there is no parameter {fault.tensor!r}; the first one is {known!r}"
    if fault.index >= parameter.numel():
        return f"faults[{number}].index: {fault.index} must be below {parameter.numel()}, the size of {fault.tensor}"
    return None
