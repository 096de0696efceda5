"""Two policies on one log: what only the one would have done."""

from collections.abc import Sequence

import msgspec

from trimtab_policies.backtest.events import Counts, Event
from trimtab_policies.backtest.report import LogReport


class Difference(msgspec.Struct, frozen=True):
    """What one report has and the other has not.

    An event has a counterpart where the other policies ask for the same action at some record of it, by whatever rule.
    `moved` are the events whose counterpart fires at another step, with that step.
    """

    counts: Counts
    other_counts: Counts
    only_first: tuple[Event, ...]
    only_other: tuple[Event, ...]
    moved: tuple[tuple[Event, int], ...]

    @property
    def is_none(self) -> bool:
        """Whether both would have done the same at the same steps."""
        return not (self.only_first or self.only_other or self.moved) and self.counts == self.other_counts


def compare(first: LogReport, other: LogReport) -> Difference:
    """What differs between two reports on the same log."""
    moved: list[tuple[Event, int]] = []
    only_first: list[Event] = []
    for event in first.events:
        counterpart = _counterpart(event, other.events)
        if counterpart is None:
            only_first.append(event)
        elif counterpart.position != event.position:
            moved.append((event, counterpart.step))
    only_other = tuple(event for event in other.events if _counterpart(event, first.events) is None)
    return Difference(first.counts, other.counts, tuple(only_first), only_other, tuple(moved))


def _counterpart(event: Event, others: Sequence[Event]) -> Event | None:
    for one in others:
        overlaps = one.position <= event.last_position and event.position <= one.last_position
        if overlaps and one.action is event.action:
            return one
    return None
