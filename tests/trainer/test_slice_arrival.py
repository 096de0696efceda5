"""Slices are whole and hashed however their bytes come, and what was whole once is not asked for again."""

import hashlib
from collections.abc import Iterable

import pytest
from trimtab_contract.checkpoints import StoredSlice
from trimtab_trainer.checkpointing.arrival import HEAD_BYTES, PIECE_BYTES, Apart, Arrived, Arriving, Room

BODY = hashlib.shake_256(b"object").digest(1000)
LENGTHS = (1, 300, 7, 492, 100)
FIRST = 100
LARGE = hashlib.shake_256(b"large").digest(2 * PIECE_BYTES + 3 * HEAD_BYTES)


def slices_of(body: bytes, lengths: Iterable[int], offset: int) -> list[StoredSlice]:
    """Slices side by side, from byte `offset` of an object on."""
    found: list[StoredSlice] = []
    for number, length in enumerate(lengths):
        sha256 = hashlib.sha256(body[offset : offset + length]).hexdigest()
        found.append(StoredSlice(name=str(number), offset=offset, length=length, sha256=sha256))
        offset += length
    return found


class Taken:
    """What became whole, after checking what it was made of."""

    def __init__(self, body: bytes) -> None:
        self.names: list[str] = []
        self._body = body

    def __call__(self, arrived: Arrived) -> None:
        part = arrived.part
        assert bytes(arrived.body) == self._body[part.offset : part.offset + part.length]
        assert arrived.sha256 == part.sha256
        self.names.append(part.name)


def arriving(taken: Taken) -> Arriving:
    return Arriving(slices_of(BODY, LENGTHS, FIRST), memoryview(bytearray(max(LENGTHS))), taken)


def send(slices: Arriving, body: bytes, size: int) -> None:
    """Let bytes arrive, at most `size` at a time, as long as there is room for them."""
    at = 0
    while at < len(body) and (room := slices.room()):
        count = min(size, len(room), len(body) - at)
        room[:count] = body[at : at + count]
        slices.take(count)
        at += count


def names(numbers: Iterable[int]) -> list[str]:
    return [str(number) for number in numbers]


@pytest.mark.parametrize("size", [1, 8, 300, 301, 900])
def test_slices_are_whole_whatever_the_chunks_are(size: int) -> None:
    taken = Taken(BODY)
    slices = arriving(taken)
    assert slices.resume() == (FIRST, sum(LENGTHS))
    send(slices, BODY[FIRST:], size)
    assert taken.names == names(range(len(LENGTHS)))
    assert slices.complete


def test_after_an_interruption_the_slice_that_was_not_whole_is_asked_for_from_its_first_byte() -> None:
    taken = Taken(BODY)
    slices = arriving(taken)
    send(slices, BODY[FIRST:405], 64)
    assert taken.names == names([0, 1])
    assert not slices.complete
    assert slices.resume() == (401, 599)
    send(slices, BODY[401:], 64)
    assert taken.names == names(range(len(LENGTHS)))
    assert slices.complete


def test_for_bytes_that_nobody_asked_for_there_is_no_room() -> None:
    taken = Taken(BODY)
    slices = arriving(taken)
    send(slices, BODY[FIRST:], 900)
    assert len(taken.names) == len(LENGTHS)
    assert not slices.room()


@pytest.mark.parametrize("begin", [0, 700, HEAD_BYTES])
@pytest.mark.parametrize("size", [1000, HEAD_BYTES, len(LARGE)])
def test_what_belongs_elsewhere_arrives_there_and_is_hashed_with_the_rest(begin: int, size: int) -> None:
    elsewhere, end = bytearray(PIECE_BYTES + HEAD_BYTES), begin + PIECE_BYTES + HEAD_BYTES
    (part,) = slices_of(LARGE, [len(LARGE)], 0)
    heads: list[bytes] = []
    whole: list[Arrived] = []

    def aside(_: StoredSlice, head: memoryview) -> Apart:
        heads.append(bytes(head))
        return Apart(begin, memoryview(elsewhere))

    room = bytearray(len(LARGE))
    slices = Arriving([part], memoryview(room), whole.append, aside=aside)
    send(slices, LARGE, size)
    assert heads == [LARGE[:HEAD_BYTES]]
    assert bytes(elsewhere) == LARGE[begin:end]
    assert [arrived.sha256 for arrived in whole] == [part.sha256]
    assert bytes(room[:HEAD_BYTES] + room[end:]) == LARGE[:HEAD_BYTES] + LARGE[end:]
    assert not any(room[max(begin, HEAD_BYTES) : end]), "nothing of it takes room here"


def test_what_belongs_elsewhere_is_asked_for_again_after_an_interruption() -> None:
    """Whoever says where may then say otherwise."""
    (part,) = slices_of(LARGE, [len(LARGE)], 0)
    answers = [Apart(0, memoryview(bytearray(PIECE_BYTES))), None]
    taken = Taken(LARGE)
    slices = Arriving([part], memoryview(bytearray(len(LARGE))), taken, aside=lambda _, __: answers.pop(0))
    send(slices, LARGE[: PIECE_BYTES // 2], 1000)
    assert slices.resume() == (0, len(LARGE))
    send(slices, LARGE, len(LARGE))
    assert taken.names == ["0"]
    assert not answers


def test_every_piece_that_arrives_is_told() -> None:
    told: list[int] = []
    part = slices_of(LARGE, [len(LARGE)], 0)
    room = memoryview(bytearray(len(LARGE)))
    send(Arriving(part, room, lambda _: None, on_piece=lambda: told.append(1)), LARGE, HEAD_BYTES)
    assert len(told) == len(LARGE) // HEAD_BYTES


def test_room_is_used_again_and_grows_when_more_is_asked_for() -> None:
    room = Room()
    room.of(4)[:] = b"abcd"
    assert bytes(room.of(2)) == b"ab"
    assert len(room.of(5000)) == 5000
    room.of(5000)[-1:] = b"z"
    assert bytes(room.of(5000)[-2:]) == b"\0z"
