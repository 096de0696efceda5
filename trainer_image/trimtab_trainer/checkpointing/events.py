"""What the background threads report; drained by the main thread with `Checkpointer.events`."""

from dataclasses import dataclass

from trimtab_contract.checkpoints import Trigger
from trimtab_contract.directives import CheckpointReference

from trimtab_trainer.checkpointing.reasons import SaveRefusal


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete in the store. Every rank reports it."""

    reference: CheckpointReference
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class SaveRefused:
    """The state after `step` must never be restored, so nothing of it was stored. Every rank reports it."""

    step: int
    reason: SaveRefusal
    detail: str
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A save did not become durable before its deadline. What lies in the store has no manifest."""

    step: int
    detail: str
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class CheckpointBehind:
    """A periodic or suspect save was left out: as many as allowed still wait for the store."""

    step: int
    pending: int
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Verified:
    """Every object was read back whole and hashes as its manifest says. Rank 0 reports it.

    `by` names the hosts that read, or is "self" where one node has only its own word.
    """

    reference: CheckpointReference
    by: str


@dataclass(frozen=True, slots=True)
class VerifyFailed:
    """An object read back is not what was saved. Rank 0 reports it."""

    reference: CheckpointReference
    by: str
    object_name: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerificationAbandoned:
    """The store or a rank did not answer in time: nothing is known. Rank 0 reports it."""

    reference: CheckpointReference
    detail: str


CheckpointEvent = Saved | SaveRefused | SaveFailed | CheckpointBehind | Verified | VerifyFailed | VerificationAbandoned
