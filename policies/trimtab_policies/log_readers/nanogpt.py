"""nanoGPT (`iter 100: loss 3.4, time 120.00ms, mfu 30.10%`) and build-nanogpt (`100 train 3.4`, `250 val 3.6`).

nanoGPT's `step 100: train loss 3.5, val loss 3.6` is an evaluation: its train loss, a mean over many batches, is
`eval_train_loss` and never the loss of step 100.
"""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import text_lines
from trimtab_policies.log_readers.text_pairs import SECONDS, pairs

_ITERATION = re.compile(r"\biter (\d+): (loss .*)")
_EVALUATION = re.compile(r"\bstep (\d+): train loss ([^\s,]+), val loss ([^\s,]+)")
_BUILD = re.compile(r"^(\d+) (train|val|hella) (\S+)\s*$")
_HEAD = re.compile(
    rb"\biter \d+: loss \S+, time |\bstep \d+: train loss \S+, val loss |(?:^|\n)\d+ (?:train|val) \d+\.\d"
)
_BUILD_NAMES = {"train": "loss", "val": "val_loss", "hella": "hellaswag"}


def _recognises(head: bytes, _: PurePath) -> Confidence:
    return Confidence.CERTAIN if _HEAD.search(head) else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    for line in text_lines(stream):
        yield line if isinstance(line, Unreadable) else _row(*line)


def _row(line: int, text: str) -> Found:
    if (match := _ITERATION.search(text)) is not None:
        return Row(line=line, step=match[1], values=dict(_iteration(match[2])))
    if (match := _EVALUATION.search(text)) is not None:
        return Row(line=line, step=match[1], values={"eval_train_loss": match[2], "val_loss": match[3]})
    if (match := _BUILD.match(text)) is not None:
        return Row(line=line, step=match[1], values={_BUILD_NAMES[match[2]]: match[3]})
    return Other(line)


def _iteration(text: str) -> Iterator[tuple[str, object]]:
    # A loss that is no number must be reported, and the general pattern passes over it.
    yield "loss", text.removeprefix("loss ").split(",")[0].strip()
    for name, value, unit in pairs(text.partition(",")[2]):
        if name == "time" and unit in SECONDS:
            yield "step_seconds", float(value) * SECONDS[unit]
        elif not (name == "mfu" and value.startswith("-")):
            yield name, value


READER = LogReader("nanogpt", "nanoGPT's or build-nanogpt's output", _recognises, _rows, reach=1)
