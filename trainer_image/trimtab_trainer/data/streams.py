"""Sources as one long run of tokens each."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab_trainer.data.blobs import Blob
from trimtab_trainer.data.documents import Documents
from trimtab_trainer.errors import DataUnreadable

Tokens = NDArray[np.uint8 | np.uint16]
LARGEST_BYTE = 255


class TokenStream(Protocol):
    """Tokens by their place in the stream."""

    @property
    def size(self) -> int:
        """Tokens in all."""
        ...

    def read(self, start: int, stop: int) -> Tokens:
        """The tokens from `start` to before `stop`, in the type they are stored in; raises DataUnreadable."""
        ...


class FlatTokens:
    """The items of one file after the other: bytes, or little-endian `uint16` ids."""

    def __init__(self, blobs: Sequence[Blob], dtype: type[np.uint8] | type[np.uint16]) -> None:
        """Files of `uint16` have an even size; who opens them has looked."""
        self._blobs = blobs
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._starts = np.array([0, *accumulate(blob.size // self._dtype.itemsize for blob in blobs)], dtype=np.int64)
        self.size = int(self._starts[-1])

    def read(self, start: int, stop: int) -> Tokens:
        """See `TokenStream.read`."""
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces: list[bytes] = []
        while start < stop:
            base, end = int(self._starts[number]), min(stop, int(self._starts[number + 1]))
            width = self._dtype.itemsize
            if end > start:
                pieces.append(self._blobs[number].read((start - base) * width, (end - start) * width))
            start, number = end, number + 1
        return np.frombuffer(b"".join(pieces), dtype=self._dtype)


class DocumentTokens:
    """The UTF-8 bytes of one document after the other, a separator behind each.

    A separator below 256 is a byte that UTF-8 does not have, so that it always means the end of a document.
    """

    def __init__(self, documents: Documents, separator: int) -> None:
        self._documents, self._separator = documents, separator
        self._dtype = np.dtype(np.uint8 if separator <= LARGEST_BYTE else np.uint16).newbyteorder("<")
        self._starts = np.concatenate([[0], np.cumsum(documents.lengths + 1)]).astype(np.int64)
        self.size = int(self._starts[-1])

    def read(self, start: int, stop: int) -> Tokens:
        """See `TokenStream.read`."""
        found = np.empty(stop - start, dtype=self._dtype)
        begin, number = start, int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            base, end = int(self._starts[number]), int(self._starts[number + 1]) - 1
            text_stop = min(stop, end)
            if text_stop > start:
                body = self._content(number, start - base, text_stop - base)
                found[start - begin : text_stop - begin] = np.frombuffer(body, dtype=np.uint8)
                start = text_stop
            if end < stop:
                found[end - begin] = self._separator
                start = end + 1
            number += 1
        return found

    def _content(self, number: int, start: int, stop: int) -> bytes:
        body = self._documents.content(number, start, stop)
        if self._separator <= LARGEST_BYTE and (place := body.find(self._separator)) >= 0:
            message = (
                f"{self._documents.place(number)} has byte {self._separator} at byte {start + place} of the document, "
                "which UTF-8 does not have: it is no text"
            )
            raise DataUnreadable(message)
        return body
