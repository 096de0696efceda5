"""llm.c's console output (`step  750/19560 | loss 3.97 (-0.66z)| ...`) and main.log (`s:1 trl:9.1 lr:... norm:...`).

The z-scores are left out, being statistics of the other columns, and a model-flops utilisation of -100 %, which means
that it is not known. A `val loss` line has no step: it was measured after the step that was printed last.
"""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.quantities import NotANumber, number
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import text_lines

_CONSOLE = re.compile(r"\bstep\s+(\d+)/\d+ \|(.*)")
_CONSOLE_HEAD = re.compile(rb"\bstep\s+\d+/\d+ \|[^\n]{0,200}\| norm [^\n]{0,200} tok/s")
_MAIN = re.compile(r"^s:(\d+)((?: [a-z_]+:\S+)+)\s*$")
_MAIN_HEAD = re.compile(rb"(?:^|\n)s:\d+ (?:tel|trl|eval):")
_VALIDATION = re.compile(r"^val loss (\S+)")
_ZSCORE = re.compile(r"\([^()]*z\)")


def _recognises(head: bytes, _: PurePath) -> Confidence:
    return Confidence.CERTAIN if _CONSOLE_HEAD.search(head) or _MAIN_HEAD.search(head) else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    last = "0"
    for line in text_lines(stream):
        if isinstance(line, Unreadable):
            yield line
            continue
        number_of_line, text = line
        if (match := _CONSOLE.search(text)) is not None:
            last = match[1]
            yield Row(line=number_of_line, step=last, values=dict(_console(match[2])))
        elif (match := _MAIN.match(text)) is not None:
            pairs = (pair.partition(":") for pair in match[2].split())
            yield Row(line=number_of_line, step=match[1], values={name: value for name, _, value in pairs})
        elif (match := _VALIDATION.match(text)) is not None:
            yield Row(line=number_of_line, step=last, values={"val loss": match[1]})
        else:
            yield Other(number_of_line)


def _console(text: str) -> Iterator[tuple[str, object]]:
    for part in _ZSCORE.sub("", text).split("|"):
        words = part.split()
        if len(words) < 2:
            continue
        if words[1] == "ms":
            yield "step_seconds", _seconds(words[0])
        elif words[1] == "tok/s":
            yield "tok/s", words[0]
        elif words[-1] == "MFU":
            share = words[0].rstrip("%")
            yield "mfu", None if share.startswith("-") or share == "n/a" else share
        else:
            yield " ".join(words[:-1]), words[-1]


def _seconds(milliseconds: str) -> object:
    try:
        given = number(milliseconds)
    except NotANumber:
        return milliseconds
    return None if given is None else given / 1000


READER = LogReader("llm.c", "llm.c's console output or main.log", _recognises, _rows, reach=1)
