"""The learning rate as a pure function of the step: linear warm-up, then half a cosine."""

import math
from dataclasses import dataclass

from trimtab_trainer.fields import at_least, raise_if_any, within


@dataclass(frozen=True, slots=True)
class RateOverride:
    """A factor on the learning rate up to and including `until_step`, as after a rollback."""

    scale: float
    until_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Warm-up over `warmup_steps`, then a cosine that ends at `final_ratio` of the peak at `total_steps`.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    warmup_steps: int
    total_steps: int
    final_ratio: float = 0.1

    def __post_init__(self) -> None:
        too_long = self.warmup_steps >= self.total_steps
        raise_if_any(
            (
                at_least("warmup_steps", self.warmup_steps, 0),
                at_least("total_steps", self.total_steps, 1),
                within("final_ratio", self.final_ratio, 0.0, math.nextafter(1.0, 2.0)),
                f"warmup_steps: {self.warmup_steps} must be below total_steps ({self.total_steps})"
                if too_long
                else None,
            )
        )

    def factor(self, step: int, override: RateOverride | None = None) -> float:
        """Return the factor on the peak learning rate at `step`, counted from 1."""
        factor = self._undisturbed(step)
        if override is not None and step <= override.until_step:
            return factor * override.scale
        return factor

    def _undisturbed(self, step: int) -> float:
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        progress = min((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        return self.final_ratio + (1 - self.final_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
