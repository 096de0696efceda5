"""How a process takes its leave: one line for the operator in the container's termination message, and its exit status.

The operator decides nothing by exit statuses. Kubernetes does: 0 completes the pod's index for ever, so only a world
behind which no other one follows may end with it.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trimtab_contract.directives import Reason, TerminationMessage, decode, encode
from trimtab_contract.errors import MalformedDirective

logger = logging.getLogger(__name__)

DEFAULT_PATH: Final = "/dev/termination-log"
PATH_VARIABLE: Final = "TRIMTAB_TERMINATION_LOG"

LEFT_WITH_A_MESSAGE: Final = 1
"""The exit status of a process that says why it ends, where another world is to follow or to be decided on."""

_ENDS_AS_TOLD: Final = {
    Reason.FINISHED: "the run is finished",
    Reason.STOPPED: "the run is stopped for good, as it was told",
    Reason.TERMINATED: "this world ends as it was told, and another one goes on",
    Reason.SUPERSEDED: "a later world goes on in place of this one",
}
"""For people who read a pod's log: an end that nothing is wrong with looks like one."""


def termination_path(variables: Mapping[str, str] = os.environ) -> Path:
    """Where the container runtime looks for the message."""
    return Path(variables.get(PATH_VARIABLE) or DEFAULT_PATH)


def exit_status(reason: Reason) -> int:
    """0 where the run is over for good and as it was told, else 1."""
    return 0 if reason in {Reason.FINISHED, Reason.STOPPED} else LEFT_WITH_A_MESSAGE


def ends_as_told(reason: Reason) -> bool:
    """Whether nothing is wrong with an end."""
    return reason in _ENDS_AS_TOLD


def leave_message(message: TerminationMessage, path: Path) -> None:
    """Write the message and log it; a path that cannot be written must not hide the reason.

    The processes of a pod share one path: that another rank is gone is no news where that rank says why.
    """
    line = encode(message).decode()
    logger.info("%s: %s", _ENDS_AS_TOLD.get(message.reason, "this world ends by a fault"), line)
    if message.reason is Reason.PEER_LOST and left_message(path) is not None:
        return
    try:
        path.write_text(line + "\n")
    except OSError as error:
        logger.warning("the termination message could not be written to %s: %s", path, error)


def left_message(path: Path | None = None) -> TerminationMessage | None:
    """The message that a process of this pod left; None where none did, or it cannot be read."""
    try:
        lines = (path or termination_path()).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in reversed(lines):
        try:
            return decode(TerminationMessage, line)
        except MalformedDirective:
            continue  # the kernel writes there too
    return None


def last_words(message: TerminationMessage) -> str:
    """One sentence for people who read the end of a pod's log."""
    reason, step, saved = message.reason, message.step, message.saved
    detail = f": {message.detail}" if message.detail else ""
    newest = f"; the newest checkpoint is of step {saved.step}" if saved is not None else ""
    if reason is Reason.TERMINATED and saved is not None and saved.step == step:
        return f"drained: all ranks saved at step {step}, and the next world goes on from there"
    if reason is Reason.TERMINATED:
        return f"drained at step {step}{detail}; the next world goes on from a checkpoint{newest}"
    if reason in _ENDS_AS_TOLD:
        return f"ended at step {step}: {_ENDS_AS_TOLD[reason]}{newest}"
    return f"failed at step {step} ({reason}){detail}{newest}"
