"""Numbers as logs write them."""

import math
from datetime import UTC, datetime

from trimtab_policies.log_readers.points import MOST_STEP

_ABSENT = frozenset({"", "none", "null", "n/a", "-", "--"})
_OF_WINDOWS = {
    **dict.fromkeys(("1.#qnan", "-1.#qnan", "1.#snan", "1.#ind", "-1.#ind"), math.nan),
    "1.#inf": math.inf,
    "-1.#inf": -math.inf,
}
"""How C on Windows writes what is not finite."""
_EARLIEST_TIME = 1e8
_EARLIEST_MILLISECONDS = 1e11


class NotANumber(ValueError):
    """A text that is no number; `NaN` and `inf` are numbers here."""


def number(value: object) -> float | None:
    """A value as a float, None when absent; NaN and infinities are values.

    Raises NotANumber, also for numbers in a form that only Python knows (1_000).
    """
    if value is None:
        return None
    if isinstance(value, int | float):
        return _as_float(value)
    if not isinstance(value, str):
        raise NotANumber(f"{shown(value)} is not a number")
    text = value.strip()
    if text.lower() in _ABSENT:
        return None
    if "_" in text:
        raise NotANumber(f"{shown(value)} is not a number")
    if text.lower() in _OF_WINDOWS:
        return _OF_WINDOWS[text.lower()]
    try:
        return float(text)
    except ValueError:
        raise NotANumber(f"{shown(value)} is not a number") from None


def whole_step(value: object) -> int | None:
    """A step, None when absent; raises NotANumber with the reason for what cannot be one."""
    if type(value) is int:
        step = value
    elif isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        # Python refuses to convert thousands of digits, and none of them is a step.
        step = int(value) if len(value) <= 40 else MOST_STEP + 1
    else:
        if isinstance(value, bool):
            raise NotANumber(f"step {shown(value)} is not a whole number")
        try:
            given = number(value)
        except NotANumber:
            raise NotANumber(f"step {shown(value)} is not a whole number") from None
        if given is None:
            return None
        if not math.isfinite(given) or given != math.floor(given):
            raise NotANumber(f"step {shown(value)} is not a whole number")
        step = int(given)
    if step < 0:
        raise NotANumber(f"step {shown(value)} is negative")
    if step > MOST_STEP:
        raise NotANumber(f"step {shown(value)} is beyond 2^53")
    return step


def epoch_seconds(value: object) -> float | None:
    """Seconds since the epoch from seconds, milliseconds or an ISO 8601 text; None for anything else.

    A text without a zone is taken as UTC. Small numbers are no dates: they count from the start of a run.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _iso(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    seconds = _as_float(value)
    if not _EARLIEST_TIME <= seconds < _EARLIEST_MILLISECONDS * 1000:
        return None
    return seconds / 1000 if seconds >= _EARLIEST_MILLISECONDS else seconds


def shown(value: object) -> str:
    """A value in a message, cut short."""
    text = ascii(value) if not isinstance(value, int) or isinstance(value, bool) else _digits(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _digits(value: int) -> str:
    return str(value) if abs(value) < 10**60 else "of over 60 digits"


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _iso(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None
