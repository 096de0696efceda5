"""How many observations have breached: in a row, or of the last `withinRecords`."""

from collections import deque

from trimtab_policies.rules import Rule
from trimtab_policies.verdicts import Place


class Streak:
    """The breaching observations that a rule counts.

    `count` is their number and `first` the earliest of them. While there is none, observations that do not breach
    change nothing and need not be told. With `withinRecords` an observation that does not breach takes no other out of
    the count, time does; from the moment at which the rule fires, `first` stays until it no longer does, so that one
    event keeps one name.
    """

    def __init__(self, rule: Rule) -> None:
        self._needed = rule.for_records
        self._within = rule.within_records
        self.count = 0
        self.first: Place | None = None
        self._seen = 0
        self._breaches: deque[tuple[int, Place]] = deque()

    @property
    def reached(self) -> bool:
        """Whether so many have breached that the rule fires."""
        return self.count >= self._needed

    def observe(self, breach: Place | None) -> None:
        """Take the next observation: where it breached, or None where it did not."""
        if self._within is None:
            self.count = self.count + 1 if breach else 0
            self.first = (self.first or breach) if breach else None
            return
        held = self.first if self.reached else None
        self._seen += 1
        if breach:
            self._breaches.append((self._seen, breach))
        while self._breaches and self._breaches[0][0] <= self._seen - self._within:
            self._breaches.popleft()
        self.count = len(self._breaches)
        earliest = self._breaches[0][1] if self._breaches else None
        self.first = held if held and self.reached else earliest

    def end(self) -> None:
        """What was counted counts no more."""
        self.count = 0
        self.first = None
        self._breaches.clear()

    @property
    def state(self) -> object:
        """All that later counts depend on."""
        return self.count, self.first, [(self._seen - seen, place) for seen, place in self._breaches]
