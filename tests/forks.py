"""Copies of what is played, so that it can go on in another way."""

from typing import Any, TypeVar

_CONTAINERS = frozenset({list, dict, set})

_T = TypeVar("_T")


def rebound(one: _T, **attributes: Any) -> _T:
    """A copy with other attributes; what it holds in lists, dicts and sets is its own, all else is shared."""
    other = object.__new__(type(one))
    held = vars(other)
    for name, value in vars(one).items():
        held[name] = value.copy() if type(value) in _CONTAINERS else value
    held.update(attributes)
    return other
