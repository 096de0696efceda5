"""The learning rate as a pure function of the step: a linear warm-up, then one of the shapes that have a name."""

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from trimtab_trainer.fields import at_least, one_of, raise_if_any, within

Shape = Literal["cosine", "cosine_restarts", "linear", "wsd", "k2", "moonlight"]

K2_STABLE_SHARE: Final = 10.0 / 15.5
"""Kimi K2 (arXiv 2507.20534, section 2.5): constant for 10 of 15.5 trillion tokens, then a cosine."""

MOONLIGHT_COSINE_SHARE: Final = 5.2 / 5.7
"""Moonlight (arXiv 2502.16982, section 3.3): a cosine over 5.2 of 5.7 trillion tokens, then a cool-down."""

MOONLIGHT_COOL_DOWN_PEAK: Final = 1.0e-4 / 4.2e-4
"""The rate rises to this once more before the cool-down."""

MOONLIGHT_COOL_DOWN_WARM_UP: Final = 100
"""Steps of that rise; in a short run a tenth of the cool-down, if that is less."""


@dataclass(frozen=True, slots=True)
class RateOverride:
    """A factor on the learning rate up to and including `until_step`, as after a rollback."""

    scale: float
    until_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A factor on the peak learning rate: a linear warm-up over `warmup_steps`, then a shape up to `total_steps`.

    * `cosine`: half a cosine from the peak down to `final_ratio`.
    * `cosine_restarts`: `cycles` such half cosines of equal length, each from the peak (arXiv 1608.03983). They are
      counted, not measured in steps, so that the run ends where a cycle does.
    * `linear`: a straight line down to `final_ratio`.
    * `wsd`: warm-up, stable, decay: constant until the last `decay_share` of the steps behind the warm-up, then a
      straight line to `final_ratio` (arXiv 2404.06395).
    * `k2`: the same with the shares of Kimi K2 and half a cosine for a decay.
    * `moonlight`: a cosine to `final_ratio`, a short second rise to about a quarter of the peak, a straight line to 0.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    warmup_steps: int
    total_steps: int
    final_ratio: float = 0.1
    shape: Shape = "cosine"
    cycles: int = 1
    decay_share: float = 0.2

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
                one_of("shape", self.shape, get_args(Shape)),
                self._cycles_problem(),
                None if 0 < self.decay_share <= 1 else f"decay_share: {self.decay_share} must be above 0 and at most 1",
            )
        )

    def factor(self, step: int, override: RateOverride | None = None) -> float:
        """Return the factor on the peak learning rate at `step`, counted from 1."""
        factor = self._undisturbed(step)
        if override is not None and step <= override.until_step:
            return factor * override.scale
        return factor

    def _cycles_problem(self) -> str | None:
        if self.cycles != 1 and self.shape != "cosine_restarts":
            return f"cycles: only cosine_restarts has them, not {self.shape}"
        if self.cycles < 1 or self.cycles > max(self.total_steps - self.warmup_steps, 1):
            return f"cycles: {self.cycles} must be at least 1 and leave each cycle a step"
        return None

    def _undisturbed(self, step: int) -> float:
        if step <= self.warmup_steps:
            # Schedulers of PyTorch ask for step 0 too, which is never trained.
            return step / max(self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        match self.shape:
            case "cosine":
                return self._cosine(progress)
            case "cosine_restarts":
                return self._cosine(self._within_cycle(progress))
            case "linear":
                return _line(1.0, self.final_ratio, progress)
            case "wsd":
                return _line(1.0, self.final_ratio, _behind(1 - self.decay_share, progress))
            case "k2":
                return self._cosine(_behind(K2_STABLE_SHARE, progress))
            case "moonlight":
                return self._moonlight(progress)

    def _cosine(self, progress: float) -> float:
        return self.final_ratio + (1 - self.final_ratio) * 0.5 * (1 + math.cos(math.pi * progress))

    def _within_cycle(self, progress: float) -> float:
        """The end of a cycle belongs to it: the rate comes down before it goes up again."""
        cycles = progress * self.cycles
        return cycles - max(math.ceil(cycles - 1e-9) - 1, 0)

    def _moonlight(self, progress: float) -> float:
        if progress <= MOONLIGHT_COSINE_SHARE:
            return self._cosine(progress / MOONLIGHT_COSINE_SHARE)
        steps = (1 - MOONLIGHT_COSINE_SHARE) * (self.total_steps - self.warmup_steps)
        rise = min(MOONLIGHT_COOL_DOWN_WARM_UP / steps, 0.1)
        cooling = _behind(MOONLIGHT_COSINE_SHARE, progress)
        if cooling < rise:
            return _line(self.final_ratio, MOONLIGHT_COOL_DOWN_PEAK, cooling / rise)
        return _line(MOONLIGHT_COOL_DOWN_PEAK, 0.0, _behind(rise, cooling))


def _line(start: float, end: float, progress: float) -> float:
    return start + (end - start) * progress


def _behind(share: float, progress: float) -> float:
    """How much of what lies behind the first `share` is done."""
    return max(progress - share, 0.0) / (1 - share)
