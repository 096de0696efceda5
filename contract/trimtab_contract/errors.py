"""Errors of the contract.

ContractError
├── MalformedRecord     a metric record that cannot be what a trainer meant
├── MalformedDirective  a directive or acknowledgement that cannot be read
├── MalformedManifest   a checkpoint manifest that cannot be read
│   └── NewerManifest   one that a newer version wrote
├── MalformedIndex      a slice index that cannot be read, or is not that of its object
├── MalformedJournal    a journal record that cannot be read
└── InvalidPosition     a data position, order or skip range outside its bounds
"""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Every way in which decoding can fail: bytes of a stranger may also nest deeper than can be followed."""


class ContractError(ValueError):
    """Anything on the wire that breaks the contract."""


class MalformedRecord(ContractError):
    """A metric record is unreadable, too large or its shapes and lengths disagree."""


class MalformedDirective(ContractError):
    """A directive or an acknowledgement is unreadable."""


class MalformedManifest(ContractError):
    """A checkpoint manifest is unreadable."""


class NewerManifest(MalformedManifest):
    """A checkpoint manifest of a newer schema: what it describes may be sound, and is not to be touched."""


class MalformedIndex(ContractError):
    """The slices of a checkpoint's object are unreadable, are those of another one, or do not cover it."""


class MalformedJournal(ContractError):
    """A journal record is unreadable."""


class InvalidPosition(ContractError):
    """A data order, window or skip range is outside its bounds."""
