"""What a verification Job is told and what it answers: checkpoints that are read back and hashed by nobody's own word.

The order comes in the environment of its pod, the answer leaves in the container's termination message, which nobody
but that container writes. It can say of the ordered checkpoints whether they read back, and nothing else.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import UNREADABLE, ContractError

ORDER_VARIABLE: Final = "TRIMTAB_READ_BACK"
"""The environment variable with the order."""
JOB_VARIABLE: Final = "TRIMTAB_READ_BACK_JOB"
"""The environment variable with the name of the Job, which the answer repeats."""

MOST_ORDERED: Final = 4
"""So many answers fit into a termination message of 4096 bytes, whatever they say."""
MOST_WORDS: Final = 256
"""Characters of what is said of one checkpoint."""


class ReadBack(StrEnum):
    """What became of one checkpoint."""

    VERIFIED = "Verified"
    DAMAGED = "Damaged"
    """An object is not what was saved, or is gone."""
    UNKNOWN = "Unknown"
    """The store did not answer, or refused: nothing is known."""


class ReadBackAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of the checkpoint whose manifest has this SHA-256; `detail` says what is wrong."""

    sha256: str
    found: ReadBack
    detail: str = ""


class ReadBackReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one pod of a verification Job."""

    job: str
    answers: tuple[ReadBackAnswer, ...]


def encode_order(references: Sequence[CheckpointReference]) -> str:
    """JSON, in the order in which they are to be read."""
    return msgspec.json.encode(tuple(references), order="sorted").decode()


def decode_order(text: str) -> tuple[CheckpointReference, ...]:
    """Read an order; raises ContractError."""
    try:
        return msgspec.json.decode(text, type=tuple[CheckpointReference, ...])
    except UNREADABLE as error:
        message = f"the order of a verification Job cannot be decoded: {error}"
        raise ContractError(message) from error


def encode_report(report: ReadBackReport) -> str:
    """One line of JSON that fits into a termination message."""
    answers = (msgspec.structs.replace(one, detail=_short(one.detail)) for one in report.answers)
    return msgspec.json.encode(msgspec.structs.replace(report, answers=tuple(answers)), order="sorted").decode()


def decode_report(line: str) -> ReadBackReport:
    """Read a line of a termination message; raises ContractError."""
    try:
        return msgspec.json.decode(line, type=ReadBackReport)
    except UNREADABLE as error:
        message = f"the report of a verification Job cannot be decoded: {error}"
        raise ContractError(message) from error


def _short(text: str) -> str:
    """A byte a character, and few of them: a cut message is none."""
    plain = text.encode("ascii", "replace").decode()
    printable = "".join(character if character.isprintable() and character not in '"\\' else "?" for character in plain)
    return printable if len(printable) <= MOST_WORDS else f"{printable[: MOST_WORDS - 3]}..."
