"""Files of a source as stretches of bytes, wherever they lie."""

import os
from pathlib import Path
from typing import Protocol

from trimtab_trainer.errors import DataUnreadable


class Blob(Protocol):
    """One file or object whose bytes are read by place."""

    @property
    def name(self) -> str:
        """The whole path or address, for people."""
        ...

    @property
    def size(self) -> int:
        """Bytes, as they were when it was opened."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """All of so many bytes from `offset` on; raises DataUnreadable."""
        ...

    def close(self) -> None:
        """Give up what is held open."""
        ...


class FileBlob:
    """A file on disk.

    Reads with `pread`, not through a memory map: a file that shrinks raises DataUnreadable instead of killing the
    process by SIGBUS.
    """

    def __init__(self, path: Path) -> None:
        """Open it; raises OSError."""
        self.name = str(path)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(self._file).st_size
            os.pread(self._file, 1, 0)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self, offset: int, length: int) -> bytes:
        """See `Blob.read`."""
        try:
            found = os.pread(self._file, length, offset)
        except OSError as error:
            message = f"{self.name} cannot be read at byte {offset}: {error.strerror}"
            raise DataUnreadable(message) from error
        if len(found) != length:
            message = f"{self.name} ends before byte {offset + length}: it shrank while it was read"
            raise DataUnreadable(message)
        return found
