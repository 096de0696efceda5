"""The compact notation of a metric's values, one after another: text -> Series.

    series = item { " " item }
    item   = ( "_" | number | ramp | group ) [ "x" ( count | "*" ) ]
    ramp   = number ".." number
    group  = "(" series ")"

A number or a ramp may carry noise: `2.0±0.1` (or `2.0+-0.1`) is normally distributed with that standard deviation. `_`
is no value, `x10` ten of them, `x*` as many as the longest other series of the attempt has. A series of one plain value
without a count holds like one with `x*`.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab_policies.errors import InvalidSeries

MOST_RECORDS = 100_000
"""So many records one attempt may have."""
_DEEPEST = 8
_NUMBER = r"[+-]?(?:(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?|[iI]nf|[nN]a[nN])"
_ATOM = re.compile(rf"(?P<first>{_NUMBER})(?:\.\.(?P<last>{_NUMBER}))?(?:(?:±|\+-)(?P<noise>{_NUMBER}))?|_")
_REPEAT = re.compile(r"x(\*|[0-9]+)")
_FORMS = "a number, `_`, `A..B`, `A±S` or `( … )`, each followed by `xCOUNT` or not"


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` values from `first` to `last` in equal steps, plus noise; no values at all where `first` is None."""

    first: float | None
    last: float
    noise: float
    count: int


@dataclass(frozen=True, slots=True)
class Levels:
    """What the values of one series are, record by record: the level, the noise around it, and whether there is one."""

    level: NDArray[np.float64]
    noise: NDArray[np.float64]
    present: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Series:
    """A metric's values: the stretches, and whether the last value holds on behind them."""

    stretches: tuple[Stretch, ...]
    holds: bool

    @property
    def length(self) -> int:
        """How many values are written down; where the series holds, those before the held one."""
        return sum(stretch.count for stretch in self.stretches) - self.holds

    def levels(self, count: int) -> Levels:
        """The first `count` values; behind the end of a series that does not hold there is none."""
        level, noise = np.zeros(count), np.zeros(count)
        present = np.zeros(count, np.bool_)
        start = 0
        for index, stretch in enumerate(self.stretches):
            held = self.holds and index == len(self.stretches) - 1
            end = count if held else min(count, start + stretch.count)
            if stretch.first is not None and start < end:
                level[start:end] = _ramp(stretch, end - start)
                noise[start:end] = stretch.noise
                present[start:end] = True
            start = end
        return Levels(level, noise, present)


def parse_series(text: object) -> Series:
    """Read a series; a number stands for one that holds. Raises InvalidSeries, saying where and what is allowed."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return Series((_plain(_float(text)),), holds=True)
    if not isinstance(text, str):
        message = f"must be text such as `2.0±0.1x200 9.5 2.0x10`, not {type(text).__name__}"
        raise InvalidSeries(message)
    reader = _Reader(text)
    stretches = reader.read(0)
    if not stretches:
        message = "must not be empty; write `_` for records without the metric"
        raise InvalidSeries(message)
    only = len(stretches) == 1 and stretches[0].count == 1 and not reader.counted
    return Series(tuple(stretches), holds=reader.holds or (only and "(" not in text))


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self.holds = False
        self.counted = False

    def read(self, depth: int) -> list[Stretch]:
        """The items up to the end of the text or of the group."""
        stretches: list[Stretch] = []
        records = 0
        while self._more(depth):
            if self.holds:
                raise self._error("nothing may follow `x*`")
            item = self._item(depth)
            stretches += item
            records += sum(stretch.count for stretch in item)
            if records > MOST_RECORDS:
                raise self._error(f"an attempt has at most {MOST_RECORDS} records")
        return stretches

    def _more(self, depth: int) -> bool:
        while self._place < len(self._text) and self._text[self._place].isspace():
            self._place += 1
        if self._place == len(self._text):
            if depth:
                raise self._error("a `(` is never closed")
            return False
        if self._text[self._place] == ")":
            if not depth:
                raise self._error("a `)` closes nothing")
            return False
        return True

    def _item(self, depth: int) -> list[Stretch]:
        begin = self._place
        if self._text[begin] == "(":
            if depth == _DEEPEST:
                raise self._error(f"groups may be nested {_DEEPEST} deep")
            self._place += 1
            content = self.read(depth + 1)
            self._place += 1
            if self.holds or not content:
                raise self._error("a group must have items, and none of them `x*`", begin)
            count = self._count(begin)
            if count is None:
                raise self._error("a group cannot hold; repeat it a number of times", begin)
            if count * len(content) > MOST_RECORDS:
                raise self._error(f"an attempt has at most {MOST_RECORDS} records", begin)
            return content * count
        found = _ATOM.match(self._text, begin)
        if found is None:
            raise self._error(f"is none of {_FORMS}", begin)
        self._place = found.end()
        count = self._count(begin)
        if count is None:
            self.holds = True
        return [self._stretch(found, 1 if count is None else count, begin)]

    def _count(self, begin: int) -> int | None:
        """How often the item before is repeated; None for `x*`."""
        found = _REPEAT.match(self._text, self._place)
        if found is not None:
            self._place = found.end()
            self.counted = True
        if self._place < len(self._text) and not (self._text[self._place].isspace() or self._text[self._place] == ")"):
            raise self._error(f"is none of {_FORMS}", begin)
        if found is None:
            return 1
        if found[1] == "*":
            return None
        digits = found[1].lstrip("0")
        if len(digits) > len(str(MOST_RECORDS)) or not digits or int(digits) > MOST_RECORDS:
            raise self._error(f"a count must lie between 1 and {MOST_RECORDS}", begin)
        return int(digits)

    def _stretch(self, found: re.Match[str], count: int, begin: int) -> Stretch:
        if found["first"] is None:
            return Stretch(None, 0.0, 0.0, count)
        first = float(found["first"])
        last = first if found["last"] is None else float(found["last"])
        noise = 0.0 if found["noise"] is None else float(found["noise"])
        varies = found["last"] is not None or found["noise"] is not None
        if varies and not (math.isfinite(first) and math.isfinite(last) and math.isfinite(last - first)):
            raise self._error("a ramp and a noisy value must be finite", begin)
        if found["last"] is not None and (count < 2 or self.holds):
            raise self._error("a ramp must say how many values it has, at least 2: `A..Bx100`", begin)
        if not math.isfinite(noise) or noise < 0:
            raise self._error("noise must be finite and not negative", begin)
        return Stretch(first, last, noise, count)

    def _error(self, message: str, begin: int | None = None) -> InvalidSeries:
        place = self._place if begin is None else begin
        rest = self._text[place : place + 24].split()
        return InvalidSeries(f"at character {place + 1}{f' ({rest[0]})' if rest else ''}: {message}")


def _plain(value: float) -> Stretch:
    return Stretch(value, value, 0.0, 1)


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        message = "is larger than a 64-bit float can be"
        raise InvalidSeries(message) from None


def _ramp(stretch: Stretch, count: int) -> NDArray[np.float64] | float:
    first, last = stretch.first or 0.0, stretch.last
    if first == last or not math.isfinite(last):
        return last
    return np.linspace(first, last, stretch.count)[:count]
