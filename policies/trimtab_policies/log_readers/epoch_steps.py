"""Steps that a log counts anew in every epoch -> steps of the run."""

from dataclasses import dataclass


@dataclass(slots=True)
class EpochSteps:
    """The steps of one log, taken in its order.

    Without this every epoch would look like a run begun again, and no rule would ever have a baseline.
    """

    _first_epoch: int | None = None
    _epoch: int = 0
    _step: int = -1
    _before: int = 0

    def of_known_length(self, epoch: int, step: int, steps: int) -> int:
        """The step of the run, where the log says how many steps an epoch has."""
        if self._first_epoch is None or epoch < self._first_epoch:
            self._first_epoch = epoch
        return (epoch - self._first_epoch) * steps + step

    def of_unknown_length(self, epoch: int, step: int) -> int:
        """The step of the run, where an epoch ends when the next begins with a step that is not higher."""
        if epoch < self._epoch:
            self._before = 0
        elif epoch > self._epoch and step <= self._step:
            self._before += self._step + (step == 0)
        self._epoch, self._step = epoch, step
        return self._before + step
