"""Which steps measure the largest attention logit of every head exactly, not only where QK-Clip needs it.

One in so many, and the steps from an event on. Which steps these are changes no number of the training.
"""

import torch
from torch import Tensor


class ExactSteps:
    """Every `every`-th step is exact, and as many steps from an event on.

    Events are a new attempt (a start, a restart or a rollback), a step whose update was not made, and a head that is
    clipped after a while without.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._attempt = 0
        self._last = 0
        self._clipped: Tensor | None = None

    def due(self, attempt: int, step: int) -> bool:
        """Whether the step about to be computed is exact."""
        if attempt != self._attempt:
            self._attempt, self._clipped = attempt, None
            self._note(step)
        return step % self._every == 0 or step < self._last

    def done(self, step: int, gamma: Tensor | None) -> None:
        """Take what the step did: QK-Clip's factors [layers, heads], or None where its update was not made."""
        if gamma is None:
            self._note(step + 1)
            return
        if self._clipped is None:
            self._clipped = torch.full(gamma.shape, step - self._every - 1, dtype=torch.int64)
        clipped = (gamma < 1).to("cpu")
        # A head near the threshold is clipped now and then for a long time: only the first time is an event.
        if bool((clipped & (self._clipped < step - self._every)).any()):
            self._note(step + 1)
        self._clipped = torch.where(clipped, step, self._clipped)

    def _note(self, step: int) -> None:
        """An event that is seen from `step` on; an attempt may begin at an earlier one than the last reached."""
        self._last = step + self._every
