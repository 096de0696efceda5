"""Directive (operator to trainer) and Ack (trainer to operator), and their JSON form."""

from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from trimtab_contract.errors import UNREADABLE, MalformedDirective

ACK_FIELD = b"a"
"""The one field of an ack stream entry that carries the JSON."""

RECENT_SAVED = 8
"""How many of the latest saved checkpoints every ack repeats."""


class Action(StrEnum):
    """What a world is told to do."""

    RUN = "Run"
    HOLD = "Hold"
    STOP = "Stop"
    FINISH = "Finish"


class OnNonFinite(StrEnum):
    """What a world does by itself when a step is truly non-finite; the update is withheld in both cases."""

    HOLD = "Hold"
    CONTINUE = "Continue"


class CheckpointReference(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint: the key of its manifest, the SHA-256 of the manifest's bytes, the step it was taken after."""

    key: str
    sha256: str
    step: int


class LearningRateOverride(msgspec.Struct, frozen=True, kw_only=True):
    """Multiply the scheduled learning rate by `scale` up to and including `until_step`."""

    scale: float
    until_step: int


class Diagnose(msgspec.Struct, frozen=True, kw_only=True):
    """Measure forward-only losses: every window of `windows` (inclusive) and each window of `control`."""

    windows: tuple[int, int]
    control: tuple[int, ...]


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """The one instruction in force for a run; ordered by `(epoch, seq)`, the highest wins.

    `seq` is the journal sequence number of its intent. `skip` is the whole ledger as inclusive absolute windows.
    A world executes `restore` once per attempt. `Run` is refused until that attempt's restore was acknowledged.
    A directive whose content equals the one obeyed, but for `(epoch, seq)` and `issued_at`, re-affirms it: the world
    takes over the new order and changes nothing. So a world that holds by itself after a non-finite step goes on only
    when a `Run` names that step in `release`, never because a new leader repeated the old `Run`.
    """

    epoch: int
    seq: int
    world: int
    attempt: int
    action: Action
    restore: CheckpointReference | None = None
    skip: tuple[tuple[int, int], ...] = ()
    lr: LearningRateOverride | None = None
    diagnose: Diagnose | None = None
    on_nonfinite: OnNonFinite = OnNonFinite.CONTINUE
    release: int | None = None
    incident: str | None = None
    issued_at: float = 0.0

    def reaffirms(self, other: "Directive") -> bool:
        """Whether this says nothing that `other` did not say."""
        return msgspec.structs.replace(self, epoch=other.epoch, seq=other.seq, issued_at=other.issued_at) == other

    @property
    def order(self) -> tuple[int, int]:
        """What decides between two directives."""
        return (self.epoch, self.seq)


class AckState(StrEnum):
    """What a world says of itself."""

    WAITING = "Waiting"
    RUNNING = "Running"
    HOLDING = "Holding"
    DIAGNOSED = "Diagnosed"
    RESTORING = "Restoring"
    RESTORED = "Restored"
    SAVED = "Saved"
    VERIFIED = "Verified"
    VERIFY_FAILED = "VerifyFailed"
    FINISHED = "Finished"
    TERMINATED = "Terminated"
    STOPPED = "Stopped"
    REFUSED = "Refused"
    FAILED = "Failed"


class EvidenceReference(msgspec.Struct, frozen=True, kw_only=True):
    """An object in the checkpoint bucket and the SHA-256 of its bytes."""

    key: str
    sha256: str


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of parameter checksums over all replicas; `differing` names rank and tensor."""

    agree: bool
    differing: tuple[str, ...] = ()


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """A world's answer. `step` is the last completed step; `progress` rises whenever a main thread got on.

    `checkpoint` names what Saved, Verified, VerifyFailed, Restoring, Restored, Diagnosed and Failed speak of; `by` the
    host that verified; `replicas` is sent with Holding, and so is `nonfinite`: what of each rank's weights and
    optimizer state is not finite, empty if all is; `recent` repeats the latest saved checkpoints with every ack, and
    `checkpoints_behind` says in a sentence that newer ones do not get stored, until one is.
    """

    state: AckState
    epoch: int
    seq: int
    world: int
    attempt: int
    ranks: int
    hosts: tuple[str, ...]
    step: int
    progress: int
    time: float
    detail: str = ""
    reason: str = ""
    checkpoint: CheckpointReference | None = None
    by: str = ""
    replicas: ReplicaReport | None = None
    nonfinite: tuple[str, ...] | None = None
    evidence: EvidenceReference | None = None
    recent: tuple[CheckpointReference, ...] = ()
    checkpoints_behind: str = ""


VERIFIED_BY_SELF: Final = "self"
"""`by` of a Verified where the one node there is has read back what it saved itself: its word counts only there."""


class Reason(StrEnum):
    """Why a world or one of its processes ended, refused or failed: constant words of the contract."""

    TERMINATED = "Terminated"
    STOPPED = "Stopped"
    FINISHED = "Finished"
    BAD_CONFIG = "BadConfig"
    STUCK_NON_FINITE = "StuckNonFinite"
    PEER_LOST = "PeerLost"
    SUPERSEDED = "Superseded"
    RANGE_ALREADY_TRAINED = "RangeAlreadyTrained"
    RESTORE_REQUIRED = "RestoreRequired"
    RESTORE_FAILED = "RestoreFailed"
    STORE_UNAVAILABLE = "StoreUnavailable"
    PROBE_FAILED = "ProbeFailed"
    CONFIG_MISMATCH = "ConfigMismatch"
    """The checkpoint is sound, and this run is configured otherwise than the one that saved it."""
    NON_FINITE = "NonFinite"
    CRASHED = "Crashed"


class TerminationMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The one JSON line a dying process leaves in its container's termination message."""

    reason: Reason
    world: int
    attempt: int
    step: int
    detail: str = ""
    saved: CheckpointReference | None = None


_Wire = TypeVar("_Wire", Directive, Ack, TerminationMessage)


def encode(message: Directive | Ack | TerminationMessage) -> bytes:
    """JSON with sorted keys: the same value is always the same bytes."""
    return msgspec.json.encode(message, order="sorted")


def decode(kind: type[_Wire], wire: bytes | str) -> _Wire:
    """Read a Directive, Ack or TerminationMessage; raises MalformedDirective."""
    try:
        return msgspec.json.decode(wire, type=kind)
    except UNREADABLE as error:
        message = f"{kind.__name__} cannot be decoded: {error}"
        raise MalformedDirective(message) from error
