"""Training logs on disk, for the pure readers: opened, unpacked, and counted as they are read."""

import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trimtab_policies.errors import InvalidMapping, UnknownLogFormat, UnreadableLog
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.log_readers.reading import Reading, ReadingSummary
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

    def __init__(self, path: Path, reading: Reading, reader_name: str) -> None:
        self.path = path
        self.reader_name = reader_name
        self._reading = reading

    def __iter__(self) -> Iterator[LogPoint]:
        try:
            yield from self._reading
        except InvalidMapping as error:
            raise UsageError(f"{self.path}: {error}.") from error
        except UnreadableLog as error:
            raise CliError(f"{self.path}: {error}.") from error
        except (OSError, EOFError, zlib.error) as error:
            raise _failure(self.path, error) from error

    @property
    def unreadable(self) -> ReadingSummary:
        """What was read and what was not, up to now."""
        return self._reading.summary


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
        stream, head = _unpacked(path, progress)
        reader = reader_named(format) if format else choose(head, path.name)
        if reader.seeks and isinstance(stream, gzip.GzipFile):
            stream = _on_disk(stream)
        return LogFile(path, reader.read(stream, mapping, path.name), reader.name)
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist.") from error
    except (UnknownLogFormat, InvalidMapping) as error:
        raise UsageError(f"{path}: {error}.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise _failure(path, error) from error


def _unpacked(path: Path, progress: Progress | None) -> tuple[BinaryStream, bytes]:
    """The log's bytes from the start, and the first of them."""
    source = io.BufferedReader(_Counted(path, progress), 1 << 20)
    packed = source.peek(2)[:2] == _GZIP
    stream: BinaryStream = gzip.GzipFile(fileobj=source, mode="rb") if packed else source
    head = stream.read(HEAD_BYTES)
    stream.seek(0, io.SEEK_SET)
    return stream, head


def _on_disk(stream: gzip.GzipFile) -> BinaryStream:
    """The unpacked log in a file without a name: going back in a packed one starts over each time."""
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the log is read
    shutil.copyfileobj(stream, unpacked, 1 << 20)
    unpacked.seek(0)
    return unpacked


class _Counted(io.FileIO):
    """A file that says how far it has been read."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        super().__init__(path, "rb")
        self._progress = progress
        self._size = path.stat().st_size

    def readinto(self, buffer: object, /) -> int | None:
        """As FileIO, and report."""
        count = super().readinto(buffer)  # pyright: ignore[reportArgumentType] - the stubs name the buffer type only privately
        if self._progress is not None:
            self._progress(self.tell(), self._size)
        return count


def _failure(path: Path, error: Exception) -> CliError:
    if isinstance(error, IsADirectoryError):
        return CliError(f"{path} is a directory: name a log file in it.")
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return CliError(f"{path} is a damaged gzip file ({error}): unpack what can be saved of it, and read that.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CliError(f"{path} cannot be read: {reason}.")
