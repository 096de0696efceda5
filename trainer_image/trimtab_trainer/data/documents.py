"""Documents of text in files: where each lies, found once at the start."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab_trainer.data.blobs import Blob
from trimtab_trainer.errors import BadConfig, DataUnreadable

INDEX_CHUNK_BYTES = 4 * 1024 * 1024
MOST_PROBLEMS = 8
"""Wrong lines that are named, of all that may be wrong."""


class Documents(Protocol):
    """Texts in an order that never changes."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each document, at least 1."""
        ...

    def content(self, number: int, start: int, stop: int) -> bytes:
        """These bytes of a document; raises DataUnreadable."""
        ...

    def place(self, number: int) -> str:
        """Where a document lies, for people."""
        ...


class TextFiles:
    """Each file is one document; empty ones are none."""

    def __init__(self, blobs: Sequence[Blob]) -> None:
        self._blobs = [blob for blob in blobs if blob.size]
        self.lengths = np.array([blob.size for blob in self._blobs], dtype=np.int64)

    def content(self, number: int, start: int, stop: int) -> bytes:
        """See `Documents.content`."""
        return self._blobs[number].read(start, stop - start)

    def place(self, number: int) -> str:
        """See `Documents.place`."""
        return self._blobs[number].name


class JsonLines:
    """Each line is a JSON object with a document in its field `text_field`; lines with an empty one are no document."""

    def __init__(self, blobs: Sequence[Blob], text_field: str, field: str) -> None:
        """Read every line once; raises BadConfig with the first wrong ones, by the configuration's `field`."""
        self._blobs, self._text_field = blobs, text_field
        self._shards, self._lines = array("q"), array("q")
        self._offsets, self._sizes = array("q"), array("q")
        lengths = array("q")
        problems: list[str] = []
        for shard, blob in enumerate(blobs):
            for line, (offset, body) in enumerate(_lines(blob), start=1):
                try:
                    text = self._text(body)
                except ValueError as error:
                    problems.append(f"{field}: {blob.name} line {line}: {error}")
                    if len(problems) == MOST_PROBLEMS:
                        raise BadConfig(problems) from error
                    continue
                if text:
                    self._shards.append(shard)
                    self._lines.append(line)
                    self._offsets.append(offset)
                    self._sizes.append(len(body))
                    lengths.append(len(text))
        if problems:
            raise BadConfig(problems)
        self.lengths = np.array(lengths, dtype=np.int64)
        self._last: tuple[int, bytes] = (-1, b"")

    def content(self, number: int, start: int, stop: int) -> bytes:
        """See `Documents.content`."""
        if self._last[0] != number:
            body = self._blobs[self._shards[number]].read(self._offsets[number], self._sizes[number])
            try:
                text = self._text(body)
            except ValueError as error:
                raise DataUnreadable(f"{self.place(number)}: {error}") from error
            if len(text) != self.lengths[number]:
                raise DataUnreadable(f"{self.place(number)} has another length than at the start: the file changed")
            self._last = number, text
        return self._last[1][start:stop]

    def place(self, number: int) -> str:
        """See `Documents.place`."""
        return f"{self._blobs[self._shards[number]].name} line {self._lines[number]}"

    def _text(self, line: bytes) -> bytes:
        """The document of a line, as UTF-8; raises ValueError that says what is wrong."""
        try:
            value: object = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ValueError(f"is no JSON: {error}") from error
        if not isinstance(value, dict) or self._text_field not in value:
            raise ValueError(f"is no object with a field {self._text_field!r}")
        text = cast("dict[str, object]", value)[self._text_field]
        if isinstance(text, str):
            return text.encode()
        raise ValueError(f"field {self._text_field!r} must be text")


def _lines(blob: Blob) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each line, without its end; what follows the last line end is a line unless it is empty."""
    rest, begin = b"", 0
    for offset in range(0, blob.size, INDEX_CHUNK_BYTES):
        rest += blob.read(offset, min(INDEX_CHUNK_BYTES, blob.size - offset))
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield begin, line
            begin += len(line) + 1
    if rest:
        yield begin, rest
