"""modded-nanogpt's log, which begins with the program's whole source: `step:1/5100 train_loss:15.99 ...`."""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import text_lines

_LINE = re.compile(r"^step:(\d+)/\d+ ((?:\w+:\S+(?: |$))+)\s*$")
_HEAD = re.compile(rb"(?:^|\n)step:\d+/\d+ (?:train|val)_loss:\S+ train_time:\d")


def _recognises(head: bytes, _: PurePath) -> Confidence:
    return Confidence.CERTAIN if _HEAD.search(head) else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    for line in text_lines(stream):
        if isinstance(line, Unreadable):
            yield line
            continue
        number, text = line
        match = _LINE.match(text)
        if match is None:
            yield Other(number)
            continue
        pairs = (pair.partition(":") for pair in match[2].split())
        yield Row(line=number, step=match[1], values={name: value.removesuffix("ms") for name, _, value in pairs})


READER = LogReader("modded-nanogpt", "modded-nanogpt's log", _recognises, _rows, reach=1)
