"""One process of a world, from its start to its last word: the reference trainer's, or that of a loop of your own."""

import hashlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Never

import msgspec
from trimtab_contract.directives import AckState, CheckpointReference, Reason, TerminationMessage

from trimtab_trainer.config import DEFAULT_PATH, Environment, TrainerConfig, load_config
from trimtab_trainer.errors import BadConfig, DataUnreadable, PeerLost, WorldEnded
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.runtime import Runtime
from trimtab_trainer.termination import exit_status, leave_message, termination_path

logger = logging.getLogger("trimtab_trainer")

LAST_WORDS_SECONDS = 10.0
"""How long a world that ends on purpose may take to deliver its records and acks."""

PEER_LOST_SECONDS = 2.0
"""The same for a rank that lost another one."""

_LAST_STATES = {
    Reason.TERMINATED: AckState.TERMINATED,
    Reason.STOPPED: AckState.STOPPED,
    Reason.FINISHED: AckState.FINISHED,
}


@dataclass(slots=True)
class Process:
    """What the end of a process needs to know of it."""

    terminating: threading.Event = field(default_factory=threading.Event)
    """Set once this process was told to end."""

    runtime: Runtime | None = None
    """The parts of this rank, from the moment that they are assembled."""

    def listen(self) -> None:
        """Take SIGTERM as the wish to end at the next step boundary; again where a library has taken it away."""
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.terminating.set()


def run_process(body: Callable[[Process], None]) -> Never:
    """Run `body` until the world ends; the reason is in the termination message, the exit status only says 0 or not.

    `body` assembles the world, notes its runtime, and trains until its session raises.
    """
    rank = os.environ.get("RANK", "?")
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s")
    process = Process()
    process.listen()
    threading.excepthook = _thread_died
    try:
        body(process)
    except WorldEnded as end:
        _end(process.runtime, end)
    except (BadConfig, InvalidFields) as error:
        _end(process.runtime, WorldEnded(Reason.BAD_CONFIG, "; ".join(error.problems)))
    except PeerLost as error:
        _end_alone(process.runtime, error)
    except DataUnreadable as error:
        _end(process.runtime, WorldEnded(Reason.CRASHED, f"{type(error).__name__}: {error}"))
    except Exception as error:
        logger.exception("the trainer crashed")
        _end(process.runtime, WorldEnded(Reason.CRASHED, f"{type(error).__name__}: {error}"))
    _end(process.runtime, WorldEnded(Reason.CRASHED, "the program returned before the run was over"))


def settings() -> tuple[Environment, TrainerConfig, str]:
    """Environment, configuration and the SHA-256 of its text; raises InvalidFields with the problems of both."""
    path = Path(os.environ.get("TRIMTAB_CONFIG") or DEFAULT_PATH)
    problems: list[str] = []
    environment = config = None
    try:
        environment = Environment.read(os.environ, socket.gethostname())
    except InvalidFields as error:
        problems += error.problems
    try:
        config = load_config(path)
    except InvalidFields as error:
        problems += error.problems
    if environment is None or config is None:
        raise InvalidFields(problems)
    return environment, config, hashlib.sha256(path.read_bytes()).hexdigest()


def _thread_died(died: threading.ExceptHookArgs) -> None:
    """A world that went deaf, or saves nothing any more, must not train on as if nothing had happened."""
    name = died.thread.name if died.thread is not None else "unknown"
    logger.critical("thread %s died", name, exc_info=died.exc_value)
    _leave(Reason.CRASHED, f"thread {name} died: {died.exc_type.__name__}: {died.exc_value}")


def _end(runtime: Runtime | None, end: WorldEnded) -> Never:
    """Say the last word, deliver what is queued, and go."""
    if runtime is None:
        _leave(end.reason, end.detail)
    if end.reason is not Reason.SUPERSEDED:
        ack = runtime.ack(_LAST_STATES.get(end.reason, AckState.FAILED), runtime.state.order)
        runtime.announce(msgspec.structs.replace(ack, reason=str(end.reason), detail=end.detail, checkpoint=end.saved))
        if end.reason is Reason.STOPPED:
            runtime.wait_for_saves()
        _close(runtime, LAST_WORDS_SECONDS)
    saved = None if end.reason is Reason.SUPERSEDED else end.saved or runtime.last_saved
    _leave(end.reason, end.detail, runtime.vitals.step, runtime.state.attempt, saved)


def _end_alone(runtime: Runtime | None, error: PeerLost) -> Never:
    """Go without a word to the operator, who learns from all ranks together what happened."""
    if runtime is None:
        _leave(Reason.PEER_LOST, str(error))
    _close(runtime, PEER_LOST_SECONDS)
    _leave(Reason.PEER_LOST, str(error), runtime.vitals.step, runtime.state.attempt, runtime.last_saved)


def _close(runtime: Runtime, seconds: float) -> None:
    if runtime.spokesman is not None:
        runtime.spokesman.courier.close(seconds)
    runtime.archivist.close(seconds)
    runtime.checkpointer.close()


def _leave(
    reason: Reason, detail: str, step: int = 0, attempt: int = 0, saved: CheckpointReference | None = None
) -> Never:
    """Leave the termination message and end the process without waiting for any other rank or thread."""
    world = os.environ.get("TRIMTAB_ATTEMPT", "")
    number = int(world) if world.isdecimal() else 0
    message = TerminationMessage(
        reason=reason, world=number, attempt=attempt or number, step=step, detail=detail, saved=saved
    )
    leave_message(message, termination_path())
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_status(reason))
