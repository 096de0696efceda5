"""Running other programs, with their failures as this package's errors."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trimtab_sandbox.errors import CommandFailedError, MissingToolError, NotReadyError

Progress = Callable[[str], None]
"""Told one line of what is being done."""

_POLL_SECONDS = 0.05
_TAIL_CHARACTERS = 2000


def attempt(
    arguments: Sequence[str | Path],
    *,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    timeout: float | None = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its outcome, whatever it is.

    Raises:
        MissingToolError: there is no such program.
        CommandFailedError: it took longer than ``timeout`` seconds.
    """
    words = [str(argument) for argument in arguments]
    try:
        return subprocess.run(
            words,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=directory,
            timeout=timeout,
        )
    except FileNotFoundError as error:
        raise MissingToolError(f"The program {words[0]!r} is not installed.") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailedError(f"`{' '.join(words[:4])} …` did not end within {timeout} seconds.") from error


def run(
    arguments: Sequence[str | Path],
    *,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    timeout: float | None = 120,
) -> str:
    """Run a program that must succeed and return its standard output.

    Raises:
        MissingToolError: there is no such program.
        CommandFailedError: it ended with an error or took longer than ``timeout`` seconds.
    """
    done = attempt(arguments, text=text, environment=environment, directory=directory, timeout=timeout)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-_TAIL_CHARACTERS:]
        command = " ".join(str(argument) for argument in arguments[:6])
        raise CommandFailedError(f"`{command}` ended with {done.returncode}: {said}")
    return done.stdout


def wait_until(what: str, probe: Callable[[], bool], *, seconds: float = 60) -> None:
    """Ask ``probe`` again and again until it says yes.

    Raises:
        NotReadyError: it did not within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            raise NotReadyError(f"{what} did not happen within {seconds:g} seconds.")
        time.sleep(_POLL_SECONDS)
