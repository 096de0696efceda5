"""Numbers with names in free text: `loss: 3.2`, `loss=3.2`, `loss 3.2`, several in a line."""

import re
from collections.abc import Iterator

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_UNIT = r"(?:ms|us|µs|ns|s|sec|m|min|h|%|[kKMGT]i?B)?"
_END = r"(?![\w.%/:-])"
_WORD = r"[A-Za-z_][^\s:=|,;'\"{}()\[\]]*(?:\([^\s()]*\))?"
_QUOTE = r"['\"]?"
_MARKED = re.compile(
    rf"(?P<name>{_WORD}(?: {_WORD}){{0,5}}){_QUOTE}\s*[:=]\s*{_QUOTE}(?P<value>{_NUMBER})(?P<unit>{_UNIT}){_END}",
    re.IGNORECASE,
)
_BARE = re.compile(
    rf"(?P<name>{_WORD}(?: {_WORD}){{0,3}})\s+(?P<value>{_NUMBER})(?P<unit>{_UNIT}){_END}", re.IGNORECASE
)
_PARTS = re.compile(r"\s*[|;]\s*|,\s+|(?<![:=\s])\s{2,}|\t")
_LONGEST_LINE = 16 * 1024

SECONDS = {"us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """(name, number, unit) in order; the number is without thousands separators. Over 16 KiB of text are prose."""
    if len(text) > _LONGEST_LINE:
        return
    for part in _PARTS.split(text):
        found = False
        for match in _MARKED.finditer(part):
            found = True
            yield match["name"], match["value"].replace(",", ""), match["unit"]
        if not found and (match := _BARE.search(part)) is not None:
            yield match["name"], match["value"].replace(",", ""), match["unit"]
