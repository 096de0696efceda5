"""Any text whose lines name a step and numbers: nanochat, torchtitan, fairseq, home-made loops.

A line counts when it has a step (`step 10/100`, `iter: 10`, `global_step=10`, ...) and at least one more number with a
name; every other line is prose. Where a tool has a reader of its own, that one knows more.
"""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import text_lines, visible
from trimtab_policies.log_readers.text_pairs import SECONDS, pairs

_STEP_WORDS = r"global[ _]?step|train(?:ing)?[ _]?step|num_updates|update|step|iteration|iter|it"
_STEP = re.compile(
    rf"(?<![\w/])['\"]?(?:{_STEP_WORDS})['\"]?(?:\s{{0,8}}[:=#\[]\s{{0,8}}|\s{{1,8}})(?P<step>-?\d+(?:\.\d+)?)(?![\w.])"
    r"(?:\s?/\s{0,8}\d+)?\]?(?:\s?\([\d.]+%\))?:?",
    re.IGNORECASE,
)
_STEP_TIMES = frozenset({"step_time", "time", "dt"})


def _recognises(head: bytes, _: PurePath) -> Confidence:
    if b"\x00" in head[:4096]:
        return Confidence.NO
    for line in head.splitlines()[:20_000]:
        if isinstance(_row(0, visible(line)), Row):
            return Confidence.POSSIBLE
    return Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    for line in text_lines(stream):
        yield line if isinstance(line, Unreadable) else _row(*line)


def _row(line: int, text: str) -> Row | Other:
    step = _STEP.search(text) if len(text) < 16 * 1024 else None
    if step is None:
        return Other(line)
    values: dict[str, object] = {}
    for piece in (text[: step.start()], text[step.end() :]):
        for name, value, unit in pairs(piece):
            if name.lower() in _STEP_TIMES and unit in SECONDS:
                values["step_seconds"] = float(value) * SECONDS[unit]
            else:
                values.setdefault(name, value)
    return Row(line=line, step=step["step"], values=values) if values else Other(line)


READER = LogReader("text", "text lines with a step and `key: value` or `key=value` pairs", _recognises, _rows, reach=1)
