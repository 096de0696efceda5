"""How a process takes its leave: one line for the operator in the container's termination message, and its exit status.

The operator decides nothing by exit statuses. Kubernetes does: 0 completes the pod's index for ever, so only a world
behind which no other one follows may end with it; torchrun prints a traceback for any other.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trimtab_contract.directives import Reason, TerminationMessage, encode

logger = logging.getLogger(__name__)

DEFAULT_PATH: Final = "/dev/termination-log"
PATH_VARIABLE: Final = "TRIMTAB_TERMINATION_LOG"

_ENDS_AS_TOLD: Final = {
    Reason.FINISHED: "the run is finished",
    Reason.STOPPED: "the run is stopped for good, as it was told",
    Reason.TERMINATED: "this world ends as it was told, and another one goes on; torchrun reports it as a failure",
    Reason.SUPERSEDED: "a later world goes on in place of this one; torchrun reports it as a failure",
}
"""For people who read a pod's log: an end that nothing is wrong with looks like one."""


def termination_path(variables: Mapping[str, str] = os.environ) -> Path:
    """Where the container runtime looks for the message."""
    return Path(variables.get(PATH_VARIABLE) or DEFAULT_PATH)


def exit_status(reason: Reason) -> int:
    """0 where the run is over for good and as it was told, else 1."""
    return 0 if reason in {Reason.FINISHED, Reason.STOPPED} else 1


def leave_message(message: TerminationMessage, path: Path) -> None:
    """Write the message and log it; a path that cannot be written must not hide the reason."""
    line = encode(message).decode()
    logger.info("%s: %s", _ENDS_AS_TOLD.get(message.reason, "this world ends by a fault"), line)
    try:
        path.write_text(line + "\n")
    except OSError as error:
        logger.warning("the termination message could not be written to %s: %s", path, error)
