"""What is measured of a state that was saved, while its copy is on its way: a restore must find the same."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

import msgspec
from trimtab_contract.checkpoints import EvaluationProbe, samples_sha256

from trimtab_trainer.errors import SaveBroken

POLL_SECONDS: Final = 0.2


class ShareMeasurement(msgspec.Struct, frozen=True):
    """One rank's share of the window that follows: its mean loss on the saved state, and its samples."""

    loss: float | None
    """Float64 image of the loss; None on the wire where it is not finite."""

    samples: tuple[str, ...]
    """The SHA-256 of each, as hex, in order."""


def awaited(measured: "Future[ShareMeasurement]", stopped: threading.Event) -> ShareMeasurement:
    """Wait until it is measured: by the step that follows the save, however long that takes.

    Raises SaveBroken where the world ends before.
    """
    while True:
        try:
            return measured.result(POLL_SECONDS)
        except TimeoutError as error:
            if stopped.is_set():
                raise SaveBroken("the world ended before the loss of the next window was known") from error


def put_together(frame: EvaluationProbe, shares: Sequence[ShareMeasurement]) -> EvaluationProbe:
    """The probe of all ranks, given what each has measured, in rank order."""
    return msgspec.structs.replace(
        frame,
        losses=tuple(share.loss for share in shares),
        samples_sha256=samples_sha256(digest for share in shares for digest in share.samples),
    )
