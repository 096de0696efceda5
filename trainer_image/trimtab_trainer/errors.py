"""Errors of the trainer.

TrainerError
├── BadConfig             one or more fields of the configuration are wrong
├── DataUnreadable        the data, open already, cannot be read any more or are not what their kind says
├── StoreError
│   ├── StoreUnavailable  the object store does not answer: temporary, try again
│   ├── StoreRefused      the object store said no: permanent until somebody mends it
│   └── ObjectMissing     there is no such object
├── SaveBroken            a checkpoint's shards could not be written on this machine
├── RestoreFailed         a checkpoint cannot be restored; the live state is untouched
├── OutOfMemory           memory was asked for and refused; the message says what to lower
├── BusUnavailable        Redis does not answer or refuses this run's user: records wait
├── PeerLost              another rank does not answer: nothing that needs all ranks can be done any more
└── WorldEnded            the world ends here, for a reason of the contract
"""

from collections.abc import Iterable

from trimtab_contract.directives import CheckpointReference, Reason


class TrainerError(Exception):
    """Anything the trainer raises itself."""


class BadConfig(TrainerError):
    """One or more fields of the configuration are wrong.

    `problems` holds one sentence per wrong field, each naming the field and what to do.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class DataUnreadable(TrainerError):
    """The data were readable at the start and are not any more, or are not what their kind says."""


class StoreError(TrainerError):
    """The object store did not do what it was asked."""


class StoreUnavailable(StoreError):
    """No answer, or a 5xx or throttling answer: temporary."""


class StoreRefused(StoreError):
    """The bucket does not exist or the credentials may not do this: permanent until mended."""


class ObjectMissing(StoreError):
    """There is no object under this key."""


class SaveBroken(TrainerError):
    """A checkpoint's shards could not be written locally, or not completely."""


class RestoreFailed(TrainerError):
    """A checkpoint cannot be restored. The state in memory is what it was before.

    `reason` is one of `trimtab_trainer.checkpointing.reasons`; `object_name` names the object or tensor at fault.
    """

    def __init__(self, reason: str, object_name: str, detail: str) -> None:
        self.reason = reason
        self.object_name = object_name
        self.detail = detail
        super().__init__(f"{reason}: {object_name}: {detail}")


class OutOfMemory(TrainerError):
    """Memory was asked for and refused; the message says which settings make the run need less."""


class BusUnavailable(TrainerError):
    """Redis does not answer, or refuses this run's user: temporary."""


class PeerLost(TrainerError):
    """A collective operation failed: another rank is gone or does not answer."""


class WorldEnded(TrainerError):
    """The world ends at this point on every rank; `saved` is the checkpoint it left behind, if any."""

    def __init__(self, reason: Reason, detail: str = "", saved: CheckpointReference | None = None) -> None:
        self.reason = reason
        self.detail = detail
        self.saved = saved
        super().__init__(f"{reason}: {detail}" if detail else str(reason))

    @classmethod
    def superseded(cls) -> "WorldEnded":
        """A directive of a later world was seen."""
        return cls(Reason.SUPERSEDED, "a directive for a later world exists")
