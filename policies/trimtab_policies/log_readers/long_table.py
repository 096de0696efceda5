"""Tables with a row for every value, in step order although they may list one metric after the other.

`rows_in_step_order` goes through the table twice: first to find the stretches that follow one another (loss from step
1 to the end, then the learning rate from step 1 to the end), then to read such stretches side by side. What is held is
one block per stretch, however long the table is.
"""

import heapq
import io
from collections.abc import Callable, Iterator

import msgspec

from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.streams import LONGEST_LINE

MOST_STRETCHES = 1000
_BLOCK = 64 * 1024


class Cell(msgspec.Struct, frozen=True):
    """One value: `step` is whole, `run` is what distinguishes runs in one table, empty where there is one only."""

    line: int
    run: str
    name: str
    step: int
    value: object
    time: float | None


Parse = Callable[[int, bytes], Cell | Unreadable | Other]
"""A numbered line -> what is in it."""


class _Stretch(msgspec.Struct):
    """Bytes `begin` to `end`, from line `line`, in which steps rise or go back within one metric only."""

    begin: int
    line: int
    run: str
    names: set[str]
    end: int = 0


def rows_in_step_order(stream: io.BufferedReader, begin: int, line: int, parse: Parse) -> Iterator[Found]:
    """The rows from byte `begin`, which is line `line`, on. The stream must be seekable."""
    group: list[_Stretch] = []
    names: set[str] = set()
    for stretch in _stretches(stream, begin, line, parse):
        same = group and stretch.run == group[0].run and names.isdisjoint(stretch.names)
        if group and (not same or len(group) >= MOST_STRETCHES):
            yield from _side_by_side(stream, group, parse)
            group, names = [], set()
        group.append(stretch)
        names |= stretch.names
    yield from _side_by_side(stream, group, parse)


def _stretches(stream: io.BufferedReader, begin: int, line: int, parse: Parse) -> Iterator[_Stretch]:
    stretch = _Stretch(begin, line, "", set())
    last: Cell | None = None
    place = begin
    for number, size, content in _lines(stream, begin, line):
        cell = parse(number, content)
        if isinstance(cell, Cell):
            went_back = last is not None and cell.step < last.step and cell.name != last.name
            if last is not None and (went_back or cell.run != last.run):
                stretch.end = place
                yield stretch
                stretch = _Stretch(place, number, cell.run, set())
            stretch.run = cell.run
            stretch.names.add(cell.name)
            last = cell
        place += size
    stretch.end = place
    yield stretch


def _side_by_side(stream: io.BufferedReader, group: list[_Stretch], parse: Parse) -> Iterator[Found]:
    keyed = heapq.merge(*(_keyed(stream, stretch, parse) for stretch in group), key=lambda item: item[0])
    return (found for _, found in keyed)


def _keyed(
    stream: io.BufferedReader, stretch: _Stretch, parse: Parse
) -> Iterator[tuple[tuple[int, int], Row | Unreadable | Other]]:
    """The rows of a stretch, each with how often its metric went back before it, and its step."""
    times: dict[str, tuple[int, int]] = {}
    here = (0, 0)
    for number, _, content in _lines(stream, stretch.begin, stretch.line, stretch.end):
        cell = parse(number, content)
        if not isinstance(cell, Cell):
            yield here, cell
            continue
        back, last = times.get(cell.name, (here[0], -1))
        times[cell.name] = (back + (cell.step < last), cell.step)
        here = times[cell.name]
        yield here, Row(line=number, step=cell.step, values={cell.name: cell.value}, time=cell.time)


def _lines(
    stream: io.BufferedReader, begin: int, line: int, end: int | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """(number, size, content) of the lines from a byte on, read in blocks with a seek before each."""
    rest, place = b"", begin
    while True:
        stream.seek(place)
        block = stream.read(_BLOCK if end is None else min(_BLOCK, end - place))
        place += len(block)
        *whole, rest = (rest + block).split(b"\n")
        for content in whole:
            yield line, len(content) + 1, content
            line += 1
        if not block:
            if rest:
                yield line, len(rest), rest
            return
        if len(rest) > LONGEST_LINE:
            yield line, len(rest), b""
            rest = b""
