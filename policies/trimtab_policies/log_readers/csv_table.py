"""CSV and TSV with any header; comma, semicolon or tab."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from trimtab_policies.log_readers.naming import STEP_COLUMNS, plain_name
from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.quantities import NotANumber, number
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import lines

_LONGEST_HEADER = 1 << 20
_DELIMITERS = ",;\t"


def header(head: bytes) -> tuple[str, ...]:
    """The names in the first line that is not blank, if it may be a header; else nothing."""
    first = head.lstrip().partition(b"\n")[0][:_LONGEST_HEADER].rstrip(b"\r").decode(errors="replace")
    names = cells(first, delimiter(first))
    return names if len(names) > 1 and all(map(_is_name, names)) else ()


def delimiter(line: str) -> str:
    """The delimiter that divides the line into the most cells."""
    return max(_DELIMITERS, key=lambda one: len(cells(line, one)))


def cells(line: str, separator: str) -> tuple[str, ...]:
    """The cells of one line; none where it is no CSV."""
    try:
        found = next(csv.reader([line.removeprefix("# ")], delimiter=separator), list[str]())
    except csv.Error:
        return ()
    return tuple(cell.strip() for cell in found)


def table_rows(stream: io.BufferedReader) -> Iterator[Found]:
    """Rows under the header's names; lines that do not fit the header are reported."""
    names: tuple[str, ...] = ()
    separator = ","
    table = _Lines(stream)
    reader = csv.reader(table, delimiter=separator)
    while True:
        table.taken = []
        try:
            found = next(reader, None)
        except csv.Error as error:
            yield from _apart(table.taken, names, separator, str(error))
            reader = csv.reader(table, delimiter=separator)
            continue
        yield from table.problems()
        if found is None:
            return
        if names and _swallows_rows(table.taken, len(names), separator):
            yield from _apart(table.taken, names, separator)
        elif not any(found):
            yield Other(table.line)
        elif not names:
            first = table.last.strip()
            separator = delimiter(first)
            names = cells(first, separator)
            reader = csv.reader(table, delimiter=separator)
            if not all(map(_is_name, names)) or len(set(names)) < len(names):
                yield Unreadable(table.line, "is no header: the first line must name every column, each differently")
                return
            yield Other(table.line)
        else:
            yield _row(table.line, found, names)


def _swallows_rows(taken: Sequence[tuple[int, str]], width: int, separator: str) -> bool:
    """Whether a quote that is left open has made one row of lines that are rows themselves."""
    behind = [text for _, text in taken[1:]]
    return len(behind) > 0 and 2 * sum(len(text.split(separator)) == width for text in behind) > len(behind)


def _apart(taken: Sequence[tuple[int, str]], names: tuple[str, ...], separator: str, why: str = "") -> Iterator[Found]:
    """The lines that a quote left open has joined, each by itself; one alone is no CSV, and `why`."""
    yield Unreadable(taken[0][0], "has a quote that is not closed in it" if taken[1:] else f"is no CSV: {why}")
    for line, text in taken[1:]:
        yield _row(line, cells(text, separator), names)


def _row(line: int, found: Sequence[str], names: tuple[str, ...]) -> Found:
    if len(found) != len(names):
        return Unreadable(line, f"has {len(found)} cells, the header has {len(names)}")
    return Other(line) if tuple(found) == names else Row(line=line, values=dict(zip(names, found, strict=True)))


class _Lines:
    """Decoded lines for the CSV parser, which takes several for a row with line breaks in quotes."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._lines = lines(stream)
        self._problems: list[Unreadable] = []
        self.line = 0
        self.last = ""
        self.taken: list[tuple[int, str]] = []
        """What the parser has taken for the row it is at."""

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        for found in self._lines:
            if isinstance(found, Unreadable):
                self._problems.append(found)
                continue
            self.line, content = found
            self.last = content.decode(errors="replace").replace("\x00", "\ufffd")
            self.taken.append((self.line, self.last))
            return f"{self.last}\n"
        raise StopIteration

    def problems(self) -> Iterator[Unreadable]:
        """Lines that were too long, once each."""
        yield from self._problems
        self._problems = []


def _is_name(cell: str) -> bool:
    """A header's cell is no number; the first may be empty, as pandas writes its index."""
    try:
        return cell == "" or number(cell) is None
    except NotANumber:
        return True


def _recognises(head: bytes, path: PurePath) -> Confidence:
    names = header(head)
    if not names or names[0].startswith(("{", "[")) or b"\x00" in head[:4096]:
        return Confidence.NO
    second = head.lstrip().partition(b"\n")[2].partition(b"\n")[0].decode(errors="replace")
    fits = len(cells(second, delimiter(head.lstrip().partition(b"\n")[0].decode(errors="replace")))) == len(names)
    if any(plain_name(name) in STEP_COLUMNS for name in names) and fits:
        return Confidence.LIKELY
    return Confidence.LIKELY if path.suffix.lower() in {".csv", ".tsv"} else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    return table_rows(stream)


READER = LogReader("csv", "CSV or TSV with a header", _recognises, _rows)
