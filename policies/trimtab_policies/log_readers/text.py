"""Any text whose lines name a step and numbers: nanochat, torchtitan, fairseq, home-made loops.

A line counts when it has a step (`step 10/100`, `iter: 10`, `global_step=10`, ...) and at least one more number with a
name; every other line is prose. Steps that count within an epoch (`epoch 3 | 200/2983 batches`, `Epoch [3][200/735]`)
become steps of the run. A log that names no step at all is read by its epochs. Where a tool has a reader of its own,
that one knows more.
"""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.epoch_steps import EpochSteps
from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import text_lines, visible
from trimtab_policies.log_readers.text_pairs import SECONDS, pairs

_OF_THE_RUN = r"global[ _]?step|train(?:ing)?[ _]?step|num_updates|update"
_STEP = re.compile(
    rf"(?<![\w/])['\"]?(?:(?P<run>{_OF_THE_RUN})|step|iteration|iter|it)['\"]?"
    r"(?:\s{0,8}[:=#\[]\s{0,8}|\s{1,8})(?P<step>-?\d+(?:\.\d+)?)(?![\w.])"
    r"(?:\s?/\s{0,8}\d+)?\]?(?:\s?\([\d.]+%\))?:?",
    re.IGNORECASE,
)
_IN_EPOCH = re.compile(
    r"(?<![\w/])epoch(?:\(train\))?\s{0,8}[:#]?\s{0,8}\[?\s{0,8}(?P<epoch>\d{1,9})(?!\d)(?:/\d{1,9})?\]?\s{0,8}[|,:]?\s{0,8}"
    r"\[?\s{0,8}(?P<step>\d{1,12})\s?/\s{0,8}(?P<steps>\d{1,12})(?![\d./])",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"(?<![\w/])epoch\s{0,8}[:=#]?\s{0,8}\[?(?P<step>\d{1,9})(?![\w.])(?:\s?/\s{0,8}\d{1,9})?\]?:?", re.IGNORECASE
)
_SOURCE = re.compile(r"\W{0,8}[IWEF]\d{4} [\d:.]{8,20}\s{1,8}\d{1,20} [^\s:\]]{1,200}:\d{1,9}\]")
"""What glog and abseil put before each line: the time, the thread and the line of the source, which are no metrics."""
_STEP_TIMES = frozenset({"step_time", "time", "dt"})


def _recognises(head: bytes, _: PurePath) -> Confidence:
    if b"\x00" in head[:4096]:
        return Confidence.NO
    lines = _Lines()
    for line in head.splitlines()[:20_000]:
        if isinstance(lines.row(0, visible(line)), Row):
            return Confidence.POSSIBLE
    return Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    lines = _Lines()
    for line in text_lines(stream):
        yield line if isinstance(line, Unreadable) else lines.row(*line)


class _Lines:
    """The lines of one log, in order: what a step means depends on those before."""

    def __init__(self) -> None:
        self._steps = EpochSteps()
        self._names_steps = False

    def row(self, line: int, text: str) -> Row | Other:
        if len(text) >= 16 * 1024:
            return Other(line)
        source = _SOURCE.match(text)
        text = text[source.end() :] if source else text
        found = _STEP.search(text) or _IN_EPOCH.search(text) or (None if self._names_steps else _EPOCH.search(text))
        values = _values(text, found) if found else {}
        if found is None or not values:
            return Other(line)
        self._names_steps |= found.re is not _EPOCH
        return Row(line=line, step=self._step(found, values), values=values)

    def _step(self, found: re.Match[str], values: dict[str, object]) -> object:
        """As the log has it, unless it begins anew in every epoch."""
        if found.re is _IN_EPOCH:
            return self._steps.of_known_length(int(found["epoch"]), int(found["step"]), int(found["steps"]))
        epoch = next((value for name, value in values.items() if name.lower() == "epoch"), None)
        counts = found.re is _STEP and found["run"] is None and found["step"].isdecimal()
        if counts and isinstance(epoch, str) and epoch.isdecimal():
            return self._steps.of_unknown_length(int(epoch), int(found["step"]))
        return found["step"]


def _values(text: str, step: re.Match[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for piece in (text[: step.start()], text[step.end() :]):
        for name, value, unit in pairs(piece):
            if name.lower() in _STEP_TIMES and unit in SECONDS:
                values["step_seconds"] = float(value) * SECONDS[unit]
            else:
                values.setdefault(name, value)
    return values


READER = LogReader("text", "text lines with a step and `key: value` or `key=value` pairs", _recognises, _rows, reach=1)
