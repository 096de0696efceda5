"""How many Jobs read checkpoints back at once, over all runs of this operator.

After an upgrade of the operator, or where many runs end, each would start one at the same moment, and all of them would
pull one image and read from the same stores. Nothing waits for such a Job, so a run may well wait for its turn.
"""

from trimtab_contract.keys import RunId

from trimtab_operator.run_state import RunState

_ANNOUNCED = 0
"""In place of an order's number while its intent is being written."""


class ReadBackPlaces:
    """A run has a place from before its intent until its journal says that the Job is over.

    A Job that does not begin to read, for want of an image or of room, gives its place up to others, and is back on it
    when it does: so nobody's namespace keeps everybody else waiting.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[RunId, int] = {}
        self._stalled: dict[RunId, int] = {}

    def __len__(self) -> int:
        """How many are taken."""
        return len(self._taken)

    def free(self, run: RunId) -> bool:
        """Whether one more Job may be started, of this run."""
        return run in self._taken or len(self._taken) < self._most

    def take(self, run: RunId) -> None:
        """The intent is about to be written: nobody else may take the place meanwhile."""
        self._taken[run] = _ANNOUNCED

    def stall(self, run: RunId, order: int) -> None:
        """The Job of this order, 0 for none, does not begin to read."""
        self._stalled[run] = order

    def know(self, run: RunId, state: RunState) -> None:
        """What the run's journal says, as far as it is known whether an intent was written."""
        order = state.read_back
        if order is None or self._stalled.get(run) == order.number:
            self._taken.pop(run, None)
        else:
            self._taken[run] = order.number

    def leave(self, run: RunId) -> None:
        """Nobody looks after the run any more, or its journal cannot be believed."""
        self._taken.pop(run, None)
        self._stalled.pop(run, None)
