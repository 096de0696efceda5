"""Errors of the operator; adapters translate every foreign exception into one of these.

OperatorError
├── TemporaryError          try again later; nothing is known to be wrong
│   ├── BusUnavailable      Redis did not answer, or refused for want of memory or of its users
│   ├── StoreUnavailable    S3 did not answer in time; the outcome of a write may be unknown
│   │   └── StoreTroubled   S3 answered: it is full, or the clocks differ too much; says what to do
│   ├── WebhookUnavailable  the webhook did not take a notice now
│   ├── ClusterUnavailable  the API server did not answer in time; the outcome of a write may be unknown
│   └── Conflict            the object changed or belongs to another: read again, decide again
└── PermanentError          the same call cannot succeed
    ├── Fenced              another operator leads; stop acting
    ├── NotFound            the object does not exist
    ├── StoreRefused        wrong bucket, credentials or rights; says which field to correct
    │   ├── WrongRegion         the bucket lies in another region than the endpoint
    │   ├── CredentialsRefused  S3 does not take the credentials for what they are; says which half is wrong
    │   └── ObjectTooLarge      the object has more bytes than anything of its kind can have
    ├── AuditStoreUnfit     the audit bucket does not honour conditional writes
    ├── WebhookRefused      the webhook will not take a notice, however often it is sent
    ├── SourceRefused       what a run is to continue cannot be continued; says which field to correct
    ├── JournalBroken       a run's journal was altered or lost records; nothing may be decided from it
    ├── InvalidResource     an object the API server or the operator refuses; says which field to correct
    └── InvalidSettings     the operator's own environment is wrong; says which variables to correct
"""


class OperatorError(Exception):
    """Anything the operator can name; its text is one sentence fit for a person and holds no secret."""


class TemporaryError(OperatorError):
    """Trying again later may succeed."""


class BusUnavailable(TemporaryError):
    """Redis did not answer in time or cannot serve now."""


class StoreUnavailable(TemporaryError):
    """S3 did not answer in time; whether a write arrived is unknown."""


class StoreTroubled(StoreUnavailable):
    """S3 answered that it cannot now, for a reason that somebody must mend there: no room, or a wrong clock."""


class ClusterUnavailable(TemporaryError):
    """The API server did not answer in time; whether a write arrived is unknown."""


class WebhookUnavailable(TemporaryError):
    """The webhook did not take a notice now; `retry_after` are the seconds it asks for, 0 where it asks for none."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Conflict(TemporaryError):
    """The object was changed since it was read, or belongs to another owner."""


class PermanentError(OperatorError):
    """The same call cannot succeed until somebody changes something."""


class Fenced(PermanentError):
    """Another operator holds a higher epoch; this one must stop acting."""


class NotFound(PermanentError):
    """The object does not exist."""


class StoreRefused(PermanentError):
    """S3 answered and refused: bucket, credentials or rights."""


class WrongRegion(StoreRefused):
    """The bucket lies in another region than the one whose endpoint was asked."""


class CredentialsRefused(StoreRefused):
    """S3 does not know the access key, or the secret key is not the one that belongs to it."""


class ObjectTooLarge(StoreRefused):
    """The object has more bytes than anything of its kind can have."""


class AuditStoreUnfit(PermanentError):
    """The audit bucket cannot hold a journal."""


class SourceRefused(PermanentError):
    """The checkpoint of another run that `spec.resumeFrom` names cannot be continued as it stands."""


class JournalBroken(PermanentError):
    """A run's journal does not continue itself; says at which record, and what shows more."""


class WebhookRefused(PermanentError):
    """The webhook answered that it will not take a notice."""


class InvalidResource(PermanentError):
    """An object is refused as it stands."""


class InvalidSettings(PermanentError):
    """The operator's own environment is wrong."""
