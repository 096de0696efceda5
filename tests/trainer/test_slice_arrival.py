"""Slices are whole and hashed however their bytes come, and what was whole once is not asked for again."""

import hashlib
from collections.abc import Iterable

import pytest
from trimtab_contract.checkpoints import StoredSlice
from trimtab_trainer.checkpointing.arrival import Arriving

BODY = hashlib.shake_256(b"object").digest(1000)
LENGTHS = (1, 300, 7, 492, 100)
FIRST = 100


def parts() -> list[StoredSlice]:
    """Slices side by side, from byte 100 of an object on."""
    found: list[StoredSlice] = []
    offset = FIRST
    for number, length in enumerate(LENGTHS):
        sha256 = hashlib.sha256(BODY[offset : offset + length]).hexdigest()
        found.append(StoredSlice(name=str(number), offset=offset, length=length, sha256=sha256))
        offset += length
    return found


def arriving() -> Arriving:
    return Arriving(parts(), memoryview(bytearray(max(LENGTHS))))


def taken(slices: Arriving, begin: int, end: int, size: int) -> list[str]:
    """The names of those that became whole, after checking what they were made of."""
    names: list[str] = []
    for at in range(begin, end, size):
        for part, body, sha256 in slices.completed_by(BODY[at : min(at + size, end)]):
            assert bytes(body) == BODY[part.offset : part.offset + part.length]
            assert sha256 == part.sha256
            names.append(part.name)
    return names


def names(numbers: Iterable[int]) -> list[str]:
    return [str(number) for number in numbers]


@pytest.mark.parametrize("size", [1, 8, 300, 301, 900])
def test_slices_are_whole_whatever_the_chunks_are(size: int) -> None:
    slices = arriving()
    assert slices.resume() == (FIRST, sum(LENGTHS))
    assert taken(slices, FIRST, FIRST + sum(LENGTHS), size) == names(range(len(LENGTHS)))
    assert slices.complete


def test_after_an_interruption_the_slice_that_was_not_whole_is_asked_for_from_its_first_byte() -> None:
    slices = arriving()
    assert taken(slices, FIRST, 405, 64) == names([0, 1])
    assert not slices.complete
    assert slices.resume() == (401, 599)
    assert taken(slices, 401, 1000, 64) == names([2, 3, 4])
    assert slices.complete


def test_bytes_that_nobody_asked_for_are_not_looked_at() -> None:
    slices = arriving()
    assert len(taken(slices, FIRST, 1000, 900)) == len(LENGTHS)
    assert list(slices.completed_by(b"more")) == []
