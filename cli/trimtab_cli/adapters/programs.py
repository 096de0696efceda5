"""Running kubectl, helm and the like."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from trimtab_cli.errors import ProgramFailed

_TAIL_CHARACTERS = 1500


def run_program(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
    seconds: float = 120.0,
) -> str:
    """Run a program that must succeed and return what it printed; raises ProgramFailed."""
    variables = {**os.environ, **(environment or {})}
    program = shutil.which(arguments[0], path=variables.get("PATH"))
    if program is None:
        raise ProgramFailed(f"The program {arguments[0]} is not on PATH: install it.")
    try:
        done = subprocess.run(
            [program, *arguments[1:]],
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            check=False,
            env=variables,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(f"`{' '.join(arguments[:4])} …` did not end within {seconds:g} seconds.") from error
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-_TAIL_CHARACTERS:]
        raise ProgramFailed(f"`{' '.join(arguments[:4])} …` failed: {said}")
    return done.stdout
