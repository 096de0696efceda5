"""Copies of what is played, so that it can go on in another way."""

from copy import copy
from typing import Any, TypeVar

_CONTAINERS = frozenset({list, dict, set})

_T = TypeVar("_T")


def rebound(one: _T, **attributes: Any) -> _T:
    """A copy with other attributes; what it holds in lists, dicts and sets is its own, all else is shared."""
    other = copy(one)
    own: dict[str, Any] = {name: copy(value) for name, value in vars(one).items() if type(value) in _CONTAINERS}
    vars(other).update(own | attributes)
    return other
