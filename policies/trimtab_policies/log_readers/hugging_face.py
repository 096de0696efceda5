"""Hugging Face `trainer_state.json`: the entries of its `log_history`.

`loss` is the mean since the entry before; `train_loss` is the mean of the whole run, in its last entry, and stays a
metric of its own.
"""

import io
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.json_documents import elements
from trimtab_policies.log_readers.json_rows import json_row
from trimtab_policies.log_readers.points import Found, Other, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader

_HISTORY = b"log_history"


def _recognises(head: bytes, path: PurePath) -> Confidence:
    if not head.lstrip().startswith(b"{"):
        return Confidence.NO
    if b'"log_history"' in head:
        return Confidence.CERTAIN
    return Confidence.LIKELY if path.name == "trainer_state.json" else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    for element in elements(stream):
        if isinstance(element, Unreadable):
            yield element
        elif element.keys[:1] == (_HISTORY,):
            yield json_row(element.number, element.body)
        else:
            yield Other(element.number)


READER = LogReader(
    "hugging-face",
    "Hugging Face trainer_state.json",
    _recognises,
    _rows,
    aliases={"train_loss": "train_loss"},
)
