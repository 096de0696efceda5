"""The one line a dying process leaves for the operator: the container's termination message."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trimtab_contract.directives import TerminationMessage, encode

logger = logging.getLogger(__name__)

DEFAULT_PATH: Final = "/dev/termination-log"
PATH_VARIABLE: Final = "TRIMTAB_TERMINATION_LOG"


def termination_path(variables: Mapping[str, str] = os.environ) -> Path:
    """Where the container runtime looks for the message."""
    return Path(variables.get(PATH_VARIABLE) or DEFAULT_PATH)


def leave_message(message: TerminationMessage, path: Path) -> None:
    """Write the message and log it; a path that cannot be written must not hide the reason."""
    line = encode(message).decode()
    logger.info("ends: %s", line)
    try:
        path.write_text(line + "\n")
    except OSError as error:
        logger.warning("the termination message could not be written to %s: %s", path, error)
