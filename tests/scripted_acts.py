"""What a scripted operator does to its outside, one act at a time, and what may befall it there."""

from typing import NamedTuple


class Killed(BaseException):
    """The operator process is gone, with everything it knew."""


class Act(NamedTuple):
    """An append or a write of an effect that was done."""

    number: int
    ends_turn: bool
    """Whether an operator that hears of a failure does nothing more in this turn."""
    fences: bool
    """Whether one that hears that it was refused takes another one for the leader."""
    tells_apart: bool
    """Whether it does something else when it hears that it was refused than when no answer comes."""
