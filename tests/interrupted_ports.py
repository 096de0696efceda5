"""The adapters of a real operator, interrupted around their writes in the ways of `ScriptedRun.operation`.

What is written is written for real, and what is reported may be otherwise: the very faults of the simulated schedules,
at the ports of the API server, Redis and S3.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from scripted_acts import Killed
from trimtab_contract.directives import Directive
from trimtab_contract.journal import parse_record
from trimtab_operator.adapters.ports import Bus, Cluster, JournalStore
from trimtab_operator.errors import (
    BusUnavailable,
    ClusterUnavailable,
    Conflict,
    Fenced,
    OperatorError,
    StoreRefused,
    StoreUnavailable,
)
from trimtab_operator.run_state import CheckpointState


class Fault(NamedTuple):
    """The `number`-th write of that name, counted over all operators of the run, and how it goes wrong."""

    write: str
    number: int
    way: str


Naive = Callable[[Bus, JournalStore], object]


@dataclass
class Interrupter:
    """Counts the writes of one run's operators and interrupts those of the schedule.

    A `frozen` write waits, with its whole operator, until `awake` is set: after `sleeps` writes of the others.
    """

    faults: tuple[Fault, ...] = ()
    sleeps: int = 0
    naive: Naive | None = None
    """What an operator that is wrong in one way writes its journal with."""
    written: list[str] = field(default_factory=list[str])
    met: list[Fault] = field(default_factory=list[Fault])
    dead: bool = False
    """The operator of now is gone, or stands still; another one must take over."""
    asleep: bool = False
    """Likewise, and it only stands still."""
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    changed: bool = True
    """The API server may hold something that the nodes have not seen."""
    _counts: Counter[str] = field(default_factory=Counter[str])
    _wakes_at: int = -1

    def ports(self, cluster: Cluster, bus: Bus, journal: JournalStore) -> tuple[Cluster, Bus, JournalStore]:
        """The same, interrupted."""
        of_cluster = _Interrupted(self, cluster, _CLUSTER_WRITES, ClusterUnavailable, Conflict)
        of_bus = _Interrupted(self, bus, _BUS_WRITES, BusUnavailable, Fenced)
        of_journal = _Interrupted(self, journal, _JOURNAL_WRITES, StoreUnavailable, StoreRefused)
        kept = cast("JournalStore", of_journal)
        if self.naive is not None:
            kept = cast("JournalStore", self.naive(bus, kept))
        return cast("Cluster", of_cluster), cast("Bus", of_bus), kept

    async def write(
        self, name: str, act: Callable[[], Awaitable[Any]], away: type[OperatorError], denied: type[OperatorError]
    ) -> Any:
        """One write, and the way in which it goes wrong."""
        fault = self._next(name)
        way = fault.way if fault is not None else ""
        if way == "before":
            self._die()
        if way == "frozen":
            self.dead, self.asleep, self._wakes_at = True, True, len(self.written) + self.sleeps
            await self.awake.wait()
        if way == "undone":
            raise away("it was not done")
        result = await act()
        self.changed = True
        if way == "after":
            self._die()
        if way == "lost":
            raise away("the reply was lost")
        if way == "denied":
            raise denied("it was refused")
        return result

    def _next(self, name: str) -> Fault | None:
        number = self._counts[name]
        self._counts[name] += 1
        self.written.append(name)
        if 0 <= self._wakes_at < len(self.written):
            self.awake.set()
        fault = next((one for one in self.faults if (one.write, one.number) == (name, number)), None)
        if fault is not None:
            self.met.append(fault)
        return fault

    def _die(self) -> None:
        self.dead, self.asleep = True, False
        raise Killed


_Name = Callable[..., str]


class _Interrupted:
    """A port whose writes go through an interrupter; all else is the port's own."""

    def __init__(
        self,
        interrupter: Interrupter,
        port: object,
        writes: Mapping[str, _Name],
        away: type[OperatorError],
        denied: type[OperatorError],
    ) -> None:
        self._interrupter, self._port, self._writes = interrupter, port, writes
        self._away, self._denied = away, denied

    def __getattr__(self, name: str) -> Any:
        """The port's method, interrupted where it is a write of an effect."""
        method = getattr(self._port, name)
        if name not in self._writes:
            return method

        async def write(*arguments: Any) -> Any:
            told = self._writes[name](*arguments)
            return await self._interrupter.write(told, lambda: method(*arguments), self._away, self._denied)

        return write


def _created(body: Mapping[str, Any]) -> str:
    return f"create {body['kind']}"


def _appended(_run: object, _seq: int, body: bytes) -> str:
    record = parse_record(body)
    return f"append {record.action}{f' {record.phase.value}' if record.phase is not None else ''}"


def _published(_run: object, directive: Directive) -> str:
    return f"publish {directive.action.value}"


_CLUSTER_WRITES: Mapping[str, _Name] = {"create": _created, "delete_pod": lambda *_: "delete pod"}
_BUS_WRITES: Mapping[str, _Name] = {"publish": _published, "ensure_user": lambda *_: "ensure user"}
_JOURNAL_WRITES: Mapping[str, _Name] = {"append": _appended}


def drawn_from(names: Iterable[str]) -> list[tuple[str, int]]:
    """Every write that another course of the same run makes too, with its number among those of its name.

    When a checkpoint is written down depends on who was quicker, and how often a user is made again or people are told
    on the time it took: those are left out, but for the first.
    """
    counts: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    for name in names:
        found.append((name, counts[name]))
        counts[name] += 1
    return [one for one in found if one[0] not in _BY_CHANCE and not (one[0] in _REPEATED and one[1])]


_BY_CHANCE = frozenset(
    {f"append {state.value}" for state in CheckpointState}
    | {"append Deleting Intent", "append Deleting Result", "append RuleFired", "create JournalAnchor"}
)
_REPEATED = frozenset({"ensure user", "create GuardIncident"})
