"""`python -m trimtab_trainer.launcher`: torchrun with its own options, and a last line that says why the pod ended.

torchrun knows exit statuses only. A pod of a world that goes on in another one must not end with 0, so to torchrun an
end that nothing is wrong with is a failure, with a report and a traceback. Here it is none, if every process that ended
says in the pod's termination message that it ended as it was told. Exit statuses stay as torchrun gives them, and what
torchrun prints of a fault stays too.
"""

import logging
import sys
import traceback
from typing import Final

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from trimtab_trainer.termination import LEFT_WITH_A_MESSAGE, ends_as_told, last_words, left_message

_PROCESS_LOGGER: Final = "torch.distributed.elastic.multiprocessing.api"
"""Where torchrun says that a process failed."""


def main() -> None:
    """Run torchrun with the arguments of this process; ends the process with torchrun's exit status."""
    logging.getLogger(_PROCESS_LOGGER).addFilter(_says_a_fault)
    try:
        torchrun.main()  # pyright: ignore[reportUnknownMemberType] its parameter has no type
    except ChildFailedError as error:
        failed = {failure.exitcode for failure in error.failures.values()}
        _leave(error, told=failed == {LEFT_WITH_A_MESSAGE})
    except SignalException as error:
        _leave(error, told=True)
    else:
        _leave(None, told=True)


def _leave(error: Exception | None, *, told: bool) -> None:
    """Print what is to be said of an end; `told`: no process is known to have ended without a word."""
    message = left_message()
    as_told = message is not None and ends_as_told(message.reason)
    if error is not None and not (told and as_told):
        traceback.print_exception(error)
    if message is not None and (told or not as_told):
        print(f"trimtab: {last_words(message)}", file=sys.stderr, flush=True)
    sys.exit(0 if error is None else 1)


def _says_a_fault(record: logging.LogRecord) -> bool:
    """Whether a line of torchrun's is worth reading: that a process failed is not, where it ended as it was told."""
    message = left_message() if record.levelno >= logging.ERROR else None
    return message is None or not ends_as_told(message.reason)


if __name__ == "__main__":
    main()
