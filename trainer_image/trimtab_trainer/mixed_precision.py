"""Mixed precision: products in bfloat16 or float16, everything that adds up over time in float32.

Parameters, gradients and moments stay float32 (the master copy). float16 has so few exponents that small gradients
vanish, so there the loss is scaled up before the backward pass and the gradient down again afterwards (Micikevicius et
al., Mixed Precision Training, arXiv 1710.03740). The scale is a power of two, which changes no other bit.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from trimtab_trainer import tensor_lists
from trimtab_trainer.fields import at_least, raise_if_any

Precision = Literal["float32", "bfloat16", "float16"]

COMPUTE_TYPES: Final[Mapping[Precision, torch.dtype]] = {"bfloat16": torch.bfloat16, "float16": torch.float16}

SMALLEST_SCALE: Final = 1.0
"""At this scale there is nothing left to blame on scaling: a gradient that is not finite is a fault."""

LARGEST_SCALE: Final = 2.0**24
"""A gradient of zeros never overflows, and must not let the scale grow out of float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScaleConfig:
    """Dynamic loss scaling, which only float16 has."""

    initial: float = 65_536.0
    """Scale of the first step; it halves until the gradient is finite."""

    growth_interval: int = 2_000
    """Steps in a row without an overflow after which the scale doubles."""

    def __post_init__(self) -> None:
        power = SMALLEST_SCALE <= self.initial <= LARGEST_SCALE and math.frexp(self.initial)[0] == 0.5
        raise_if_any(
            (
                None if power else f"initial: {self.initial} must be a power of two from 1 to {LARGEST_SCALE:.0f}",
                at_least("growth_interval", self.growth_interval, 1),
            )
        )


def computing_in(precision: Precision, device_type: str) -> AbstractContextManager[object]:
    """Inside, products are computed in `precision`; what needs more stays in float32."""
    dtype = COMPUTE_TYPES.get(precision)
    return torch.autocast(device_type, dtype=dtype, enabled=dtype is not None)


class LossScaler:
    """The scale of the loss, for float16 dynamic: halved at an overflow, doubled after a while without one.

    A step whose gradient overflows is not lost: it is computed again at half the scale, until the gradient is finite or
    the scale is at its smallest. So every window that was drawn is trained on, and a gradient that is not finite even
    then is a fault of the weights or the data, known as one within its own step.
    """

    def __init__(self, precision: Precision, config: LossScaleConfig) -> None:
        self.active = precision == "float16"
        self._interval = config.growth_interval
        self._scale = torch.tensor([config.initial if self.active else 1.0])
        self._good_steps = torch.zeros(1, dtype=torch.int64)
        self._before = (self.scale, 0)

    @property
    def scale(self) -> float:
        """What the loss is multiplied by before the backward pass."""
        return float(self._scale)

    def begin(self) -> None:
        """A step begins: what it does to the scale counts only if its update happens."""
        self._before = (self.scale, int(self._good_steps))

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor]) -> None:
        """Divide `gradients` by the scale, in place and exactly."""
        if self.active:
            tensor_lists.scale(list(gradients), 1 / self.scale)

    def back_off(self) -> bool:
        """After an overflow: halve the scale and say that the step is to be computed again; False when it cannot."""
        if not self.active or self.scale <= SMALLEST_SCALE:
            return False
        self._scale.div_(2)
        self._good_steps.zero_()
        return True

    def scalars(self) -> dict[str, float]:
        """What the metric record says of it: the scale of the gradient just computed, where one is used."""
        return {"loss_scale": self.scale} if self.active else {}

    def settle(self, *, updated: bool) -> None:
        """The step is over. One that was withheld leaves the scale as it found it: no scale would have helped."""
        if not self.active:
            return
        if not updated:
            scale, good_steps = self._before
            self._scale.fill_(scale)
            self._good_steps.fill_(good_steps)
            return
        self._good_steps.add_(1)
        if int(self._good_steps) >= self._interval:
            self._good_steps.zero_()
            self._scale.mul_(2).clamp_(max=LARGEST_SCALE)

    def state_dict(self) -> dict[str, Tensor]:
        """The live tensors, under keys that never change; none where nothing is scaled."""
        return {"scale": self._scale, "good_steps": self._good_steps} if self.active else {}
