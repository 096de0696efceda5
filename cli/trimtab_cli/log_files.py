"""Training logs on disk, for the pure readers: opened, unpacked, and counted as they are read."""

import errno
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trimtab_policies.errors import InvalidMapping, UnknownLogFormat, UnreadableLog
from trimtab_policies.log_readers.points import LogPoint, Unreadable
from trimtab_policies.log_readers.reading import FIRST_REASONS, LogReader, Reading, ReadingSummary
from trimtab_policies.log_readers.registry import HEAD_BYTES, choose, reader_named
from trimtab_policies.log_readers.streams import BinaryStream

from trimtab_cli.errors import CliError, NotFound, UsageError

_GZIP = b"\x1f\x8b"

Progress = Callable[[int, int], None]
"""Called with the bytes of the file consumed so far, and its size."""


class LogFile:
    """One log, to be iterated once.

    Iterating raises CliError when the file cannot be read on or nothing in it can be understood, UsageError when a
    mapped column does not exist.
    """

    def __init__(self, path: Path, reading: Reading, reader_name: str, source: "_Source") -> None:
        self.path = path
        self.reader_name = reader_name
        self._reading = reading
        self._source = source

    def __iter__(self) -> Iterator[LogPoint]:
        try:
            yield from self._reading
        except InvalidMapping as error:
            raise UsageError(f"{self.path}: {error}.") from error
        except UnreadableLog as error:
            raise CliError(f"{self.path}: {error}.") from error
        except OSError as error:
            raise _failure(self.path, error) from error
        finally:
            self._source.close()

    @property
    def unreadable(self) -> ReadingSummary:
        """What was read and what was not, up to now."""
        summary = self._reading.summary
        if self._source.damage is None:
            return summary
        reasons = (Unreadable(0, self._source.damage), *summary.reasons)[:FIRST_REASONS]
        return replace(summary, unreadable=summary.unreadable + 1, reasons=reasons)


def mapping_of(assignments: Iterable[str]) -> dict[str, str]:
    """The values of `--map`, each `METRIC=COLUMN`, as metric -> column; raises UsageError."""
    mapping: dict[str, str] = {}
    for assignment in assignments:
        metric, equals, column = (part.strip() for part in assignment.partition("="))
        if not (metric and equals and column):
            raise UsageError(f"--map {assignment!r} must be METRIC=COLUMN, such as loss=train/loss.")
        if metric in mapping:
            raise UsageError(f"--map gives {metric} two columns, {mapping[metric]!r} and {column!r}: keep one.")
        mapping[metric] = column
    return mapping


def open_log(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002 - the name of the option
    mapping: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> LogFile:
    """Open a log in any format of `log_readers`, gzip or not; `mapping` is metric -> column.

    Raises NotFound, UsageError (an unknown format, a mapping that cannot be followed) and CliError.
    """
    try:
        source = _Source(path, progress)
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist.") from error
    except OSError as error:
        raise _failure(path, error) from error
    try:
        reader = _reader(format, source, path)
        stream = source.on_disk() if reader.seeks else source.stream
        return LogFile(path, reader.read(stream, mapping, path.name), reader.name, source)
    except InvalidMapping as error:
        source.close()
        raise UsageError(f"--map: {error}.") from error
    except OSError as error:
        source.close()
        raise _failure(path, error) from error
    except CliError:
        source.close()
        raise


def _reader(name: str | None, source: "_Source", path: Path) -> LogReader:
    head = source.head()
    if not head and source.damage is not None:
        raise CliError(f"{path}: {source.damage}.")
    try:
        return reader_named(name) if name else choose(head, path.name)
    except UnknownLogFormat as error:
        raise UsageError(f"--format: {error}.") if name else CliError(f"{path}: {error}.") from error


class _Source:
    """An open file and what is unpacked from it; `damage` says why a packed one ended early, if it did."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self._file: io.BufferedReader = io.BufferedReader(_Counted(path, progress), 1 << 20)
        self._unpacked: _Unpacked | None = None
        if self._file.peek(2)[:2] == _GZIP:
            self._unpacked = _Unpacked(self._file)
        self.stream: BinaryStream = self._file if self._unpacked is None else io.BufferedReader(self._unpacked, 1 << 16)

    @property
    def damage(self) -> str | None:
        """What is wrong with a packed file."""
        return self._unpacked.damage if self._unpacked else None

    def head(self) -> bytes:
        """The first bytes of the log, which is then at its beginning again."""
        head = self.stream.read(HEAD_BYTES)
        if head:
            self.stream.seek(0, io.SEEK_SET)
        return head

    def on_disk(self) -> BinaryStream:
        """The log where going back is cheap: unpacked into a file without a name if it is packed."""
        if self._unpacked is None:
            return self.stream
        spool = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the log is read
        shutil.copyfileobj(self._unpacked, spool, 1 << 20)
        spool.seek(0)
        return spool

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Unpacked(io.RawIOBase):
    """A gzip file up to where it is damaged: a log that is still being written, or was when its disk filled up."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self.damage: str | None = None
        self._packed = packed
        self._stream = gzip.GzipFile(fileobj=packed, mode="rb")

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Back to the start, that is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Start over, and pass over `offset` bytes."""
        self.damage = None
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """The place in the unpacked log."""
        return self._stream.tell()

    def readinto(self, buffer: object, /) -> int:
        """What comes next; nothing behind the damage."""
        target = memoryview(buffer).cast("B")  # pyright: ignore[reportArgumentType] - the stubs name the buffer type only privately
        if self.damage is not None:
            return 0
        try:
            block = self._stream.read1(len(target))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = f"the gzip file is damaged ({error}): what follows could not be unpacked"
            return 0
        target[: len(block)] = block
        return len(block)


class _Counted(io.FileIO):
    """A file that says how far it has been read, the furthest place counting where it is read twice."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        super().__init__(path, "rb")
        self._progress = progress
        self._size = path.stat().st_size
        self._furthest = 0

    def readinto(self, buffer: object, /) -> int | None:
        """As FileIO, and report."""
        count = super().readinto(buffer)  # pyright: ignore[reportArgumentType] - the stubs name the buffer type only privately
        if self._progress is not None:
            self._furthest = max(self._furthest, self.tell())
            self._progress(self._furthest, self._size)
        return count


def _failure(path: Path, error: OSError) -> CliError:
    if isinstance(error, IsADirectoryError):
        return CliError(f"{path} is a directory: name a log file in it.")
    if error.errno == errno.ESPIPE or isinstance(error, io.UnsupportedOperation):
        return CliError(f"{path} is a pipe, and a log is read more than once: save it to a file first.")
    return CliError(f"{path} cannot be read: {error.strerror or error}.")
