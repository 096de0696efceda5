"""SliceIndex: which slices an object of a checkpoint consists of; it is an object itself, beside the one it indexes.

A reader trusts it as it trusts any object: its bytes have the SHA-256 that the manifest says, before it is decoded.
"""

from collections.abc import Sequence

import msgspec

from trimtab_contract.checkpoints import StoredObject, StoredSlice
from trimtab_contract.errors import UNREADABLE, MalformedIndex


class SliceIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The slices of the object `name`, whose bytes have this SHA-256: in order, from the first byte to the last."""

    name: str
    sha256: str
    slices: tuple[StoredSlice, ...]


def index_name(name: str) -> str:
    """What the index of an object is called."""
    return f"{name}.index.json"


def encode_index(index: SliceIndex) -> bytes:
    """JSON with sorted keys."""
    return msgspec.json.encode(index, order="sorted")


def decode_index(body: bytes | memoryview, name: str, stored: StoredObject) -> tuple[StoredSlice, ...]:
    """The slices of the object `name`; raises MalformedIndex where this is no index of it.

    `body` must be known to be what was saved.
    """
    try:
        index = msgspec.json.decode(body, type=SliceIndex)
    except UNREADABLE as error:
        message = f"the index of {name} cannot be decoded: {error}"
        raise MalformedIndex(message) from error
    if (index.name, index.sha256) != (name, stored.sha256):
        message = f"it indexes {index.name} of SHA-256 {index.sha256}, not {name} of {stored.sha256}"
        raise MalformedIndex(message)
    return covering(name, stored, index.slices)


def covering(name: str, stored: StoredObject, slices: Sequence[StoredSlice]) -> tuple[StoredSlice, ...]:
    """The slices, which cover the object from its first byte to its last; raises MalformedIndex where they do not."""
    end = 0
    for part in slices:
        if part.offset != end or part.length < 1:
            message = f"{name}: the {part.length} bytes of {part.name} from {part.offset} on do not go on at byte {end}"
            raise MalformedIndex(message)
        end += part.length
    if end != stored.size:
        message = f"{name}: its slices end at byte {end}, it has {stored.size}"
        raise MalformedIndex(message)
    return tuple(slices)
