"""Why a checkpoint was not saved or could not be restored: one constant per reason."""

from enum import StrEnum


class SaveRefusal(StrEnum):
    """Why a state was not committed."""

    REPLICA_MISMATCH = "ReplicaMismatch"
    NON_FINITE = "NonFinite"


class RestoreFailure(StrEnum):
    """Why a checkpoint was not restored."""

    STORE_UNAVAILABLE = "StoreUnavailable"
    STORE_REFUSED = "StoreRefused"
    OBJECT_MISSING = "ObjectMissing"
    OBJECT_DAMAGED = "ObjectDamaged"
    MANIFEST_DAMAGED = "ManifestDamaged"
    NEWER_SCHEMA = "NewerSchema"
    MANIFEST_INCONSISTENT = "ManifestInconsistent"
    OTHER_RUN = "OtherRun"
    STRUCTURE_MISMATCH = "StructureMismatch"
    SKIP_LEDGER_MISMATCH = "SkipLedgerMismatch"
    STATE_NOT_VALID = "StateNotValid"
    UNREADABLE = "Unreadable"
    CONTENT_MISMATCH = "ContentMismatch"
