"""Numbers with names in free text: `loss: 3.2`, `loss=3.2`, `loss 3.2`, several in a line.

A name and a number with nothing but a blank between them count only where they fill what stands between two bars,
commas or wide gaps: in a sentence they are prose. Every repetition is bounded, so that no line takes long.
"""

import re
from collections.abc import Iterator

_NUMBER = (
    r"[-+]?(?:1\.#(?:[QS]NAN|IND|INF)\d{0,9}|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?"
    r"|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
)
"""`1.#QNAN`, `1.#IND` and `1.#INF` are how C on Windows writes what is not finite."""
_UNIT = r"(?:ms|us|µs|ns|s|sec|m|min|h|%|[kKMGT]i?B)?"
_END = r"(?![\w%/:#-]|\.\w|,\d)"
_WORD = r"[A-Za-z_][^\s:=|,;'\"{}()\[\]]{0,62}(?:\([^\s()]{0,30}\))?"
_QUOTE = r"['\"]?"
_VALUE = rf"(?P<value>{_NUMBER})(?P<unit>{_UNIT}){_END}"
_MARKED = re.compile(
    rf"(?<!\w)(?P<name>{_WORD}(?: {_WORD}){{0,5}}){_QUOTE}\s{{0,8}}[:=]\s{{0,8}}['\"\[]?{_VALUE}", re.IGNORECASE
)
_BARE = re.compile(rf"(?P<name>{_WORD}(?: {_WORD})?)\s{{1,8}}{_VALUE}", re.IGNORECASE)
_BARE_ONLY = re.compile(rf"(?:{_WORD}(?: {_WORD})?\s{{1,8}}{_NUMBER}{_UNIT}{_END}\s{{0,8}})+", re.IGNORECASE)
_PARTS = re.compile(r"[|;\t]|,\s|(?<![:=\s])\s{2,8}")
_PADDED = re.compile(rf"(?<=[A-Za-z_])\s{{2,8}}(?={_NUMBER}{_UNIT}{_END})", re.IGNORECASE)
"""A gap that pads a number to its width, which bars set off: `| loss  5.20 | ppl   181.27`."""
_LONGEST_LINE = 16 * 1024

SECONDS = {"us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """(name, number, unit) in order; the number is without thousands separators. Over 16 KiB of text are prose."""
    if len(text) > _LONGEST_LINE:
        return
    for part in _PARTS.split(_PADDED.sub(" ", text) if "|" in text else text):
        found = list(_MARKED.finditer(part))
        if not found and _BARE_ONLY.fullmatch(part.strip()):
            found = list(_BARE.finditer(part))
        for match in found:
            yield match["name"], _plain(match["value"]), match["unit"]


def _plain(value: str) -> str:
    if "#" not in value:
        return value.replace(",", "")
    return f"{'-' * value.startswith('-')}inf" if "INF" in value.upper() else "nan"
