"""Megatron-LM's log lines, of all its forks: `iteration 3401/ 10000 | lm loss: 2.4E+00 | grad norm: 0.239 | ...`.

A line without `lm loss` is one whose iterations were all skipped, or gave NaN: then `number of nan iterations` says it.
"""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.quantities import NotANumber, number
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import text_lines

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
_VALIDATION = re.compile(r"\bvalidation loss at iteration\s+(\d+)[^|]*\|(.*)")
_HEAD = re.compile(rb"\biteration\s+\d+\s*/\s*\d+\s*\|[^\n]{0,400}(?:elapsed time per iteration|consumed samples)")
_ITERATION_TIME = "elapsed time per iteration"
_UNITS = {f"{_ITERATION_TIME} (ms)": 1e-3, f"{_ITERATION_TIME} (s)": 1.0}


def _recognises(head: bytes, _: PurePath) -> Confidence:
    return Confidence.CERTAIN if _HEAD.search(head) else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    for line in text_lines(stream):
        yield line if isinstance(line, Unreadable) else _row(*line)


def _row(line: int, text: str) -> Found:
    if "iteration" in text:
        if (match := _ITERATION.search(text)) is not None:
            return Row(line=line, step=match[1], values=dict(_pairs(match[2])))
        if (match := _VALIDATION.search(text)) is not None:
            return Row(line=line, step=match[1], values=dict(_validation(match[2])))
    return Other(line)


def _pairs(text: str) -> Iterator[tuple[str, object]]:
    for part in text.split("|"):
        name, colon, value = part.partition(":")
        if not colon:
            continue
        name, value = " ".join(name.split()), value.strip()
        if name in _UNITS:
            yield "step_seconds", _scaled(value, _UNITS[name])
        else:
            yield name, value


def _scaled(value: str, factor: float) -> object:
    """A time in seconds. Some forks print two, of this iteration and of the mean: the first counts."""
    try:
        given = number(value.partition("/")[0])
    except NotANumber:
        return value
    return None if given is None else given * factor


def _validation(text: str) -> Iterator[tuple[str, object]]:
    for name, value in _pairs(text):
        yield ("val_loss" if name == "lm loss value" else f"val_{name}"), value


READER = LogReader("megatron", "Megatron-LM's iteration lines", _recognises, _rows)
