"""A source: samples of T tokens and the token after them, and what tells the source from another."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

import numpy as np

from trimtab_trainer.data.blobs import Blob
from trimtab_trainer.data.streams import Tokens, TokenStream
from trimtab_trainer.errors import DataUnreadable

IDENTITY_BYTES = 1024 * 1024
"""How much of the head and of the tail of each file makes a source's identity, of few files."""
MOST_IDENTITY_BYTES = 64 * IDENTITY_BYTES
"""How much of all heads together does."""


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Tells one set of files from another: their sizes together, and a SHA-256.

    The hash is over the files' names without folders, sizes, heads and tails. It does not read the whole of files that
    may have terabytes: damage in the middle is what guards are for.
    """

    size: int
    sha256: str


class Source(Protocol):
    """Samples by their index, from 0; epochs and their order are not its concern."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def samples(self) -> int:
        """How many there are."""
        ...

    def read(self, sample: int) -> Tokens:
        """The T + 1 tokens of a sample, in the type they are stored in; raises DataUnreadable."""
        ...

    def identity(self) -> DataIdentity:
        """Tells this source's files from others; raises DataUnreadable."""
        ...

    def close(self) -> None:
        """Give up what is held open."""
        ...


class StreamSource:
    """Samples of a stream of tokens: sample i is the T tokens from i T on and, as last target, the token after them."""

    def __init__(self, name: str, blobs: Sequence[Blob], stream: TokenStream, sequence: int, vocabulary: int) -> None:
        self.name = name
        self.samples = stream.size // sequence
        self._blobs, self._stream = blobs, stream
        self._sequence, self._vocabulary = sequence, vocabulary

    def close(self) -> None:
        """See `Source.close`."""
        for blob in self._blobs:
            blob.close()

    def read(self, sample: int) -> Tokens:
        """See `Source.read`."""
        start, stop = sample * self._sequence, (sample + 1) * self._sequence
        if stop < self._stream.size:
            tokens = self._stream.read(start, stop + 1)
        else:
            # The last sample of a stream of whole samples: its last target is the first token of the stream.
            tokens = np.concatenate([self._stream.read(start, stop), self._stream.read(0, 1)])
        if int(tokens.max()) >= self._vocabulary:
            place = int(np.argmax(tokens >= self._vocabulary))
            message = (
                f"{self.name} has token {int(tokens[place])} at token {(start + place) % self._stream.size}, "
                f"and model.vocabSize is {self._vocabulary}"
            )
            raise DataUnreadable(message)
        return tokens

    def identity(self) -> DataIdentity:
        """See `Source.identity`."""
        digest = hashlib.sha256()
        length = min(IDENTITY_BYTES, MOST_IDENTITY_BYTES // len(self._blobs))
        for blob in self._blobs:
            part = min(length, blob.size)
            digest.update(f"{PurePosixPath(blob.name).name}\0{blob.size}\0".encode())
            digest.update(blob.read(0, part))
            digest.update(blob.read(blob.size - part, part))
        return DataIdentity(sum(blob.size for blob in self._blobs), digest.hexdigest())
