"""Every schedule of one and of two interruptions of a run, each distinct course played once.

A schedule interrupts acts of the operator, each in one of the ways of `ScriptedRun.operation`. The run is forked at the
turn in which it is interrupted. As soon as it stands where a run stood that has been played to its end (`standing`),
the rest is known; so all pairs cost little more than all single interruptions. A search that does not `remember` plays
each schedule to its end: both must come to the same number of schedules and of violations.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest

import memory_journal
import pytest
import scripted_world
from played_trainer import Scenario
from run_standing import Past, Standing, standing
from scripted_operator import Playing, ScriptedOperator
from scripted_world import ScriptedRun
from trimtab_contract import journal as contract
from trimtab_contract.journal import JournalRecord, parse_record, record_hash
from trimtab_operator import effects, journal, journal_fold
from trimtab_operator.run_state import RunState
from trimtab_operator.workload import TrainingJobView, WorkloadDefaults, WorldObjects

Interruption = tuple[int, str]
_Key = tuple[Standing, int]
Counts = tuple[tuple[int, int], ...]
"""By number of interruptions: how many schedules, and how many of them end in a violation."""
Verdict = Callable[[ScriptedRun], None]


class Violation(AssertionError):
    """A schedule after which the run is not what it must be."""

    def __init__(self, schedule: tuple[Interruption, ...], problem: str) -> None:
        super().__init__(f"interrupted at {schedule}: {problem}")
        self.schedule = schedule


@contextmanager
def folded_once() -> Generator[None]:
    """Each record is read and each journal folded once: a hash says all that came before it, and what is folded.

    The garbage collector rests meanwhile: it would look at every state again and again, and finds nothing.
    """
    states: dict[str, RunState] = {}
    parsed, hashed = lru_cache(None)(parse_record), lru_cache(None)(record_hash)

    def fold(state: RunState, record: JournalRecord, head: str = "") -> RunState:
        honest = state.seq == 0 or states.get(state.head) is state
        if not honest or not head:
            return journal_fold.fold(state, record, head)
        if head not in states:
            states[head] = journal_fold.fold(state, record, head)
        return states[head]

    with pytest.MonkeyPatch.context() as patch:
        for module in (journal, scripted_world):
            patch.setattr(module, "fold", fold)
        for module in (journal, memory_journal, contract):
            patch.setattr(module, "parse_record", parsed)
            patch.setattr(module, "record_hash", hashed)
        patch.setattr(effects, "world_objects", _made_once(effects.world_objects))
        patch.setattr(contract, "canonical_bytes", _once(contract.canonical_bytes))
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def _made_once(world_objects: Callable[..., WorldObjects]) -> Callable[..., WorldObjects]:
    """The objects of a world, which follow from its number: the job is always the same."""
    made: dict[tuple[object, ...], WorldObjects] = {}

    def objects(job: TrainingJobView, defaults: WorkloadDefaults, *about: object) -> WorldObjects:
        if about not in made:
            made[about] = world_objects(job, defaults, *about)
        return made[about]

    return objects


def _once(canonical_bytes: Callable[[JournalRecord], bytes]) -> Callable[[JournalRecord], bytes]:
    """The bytes of records that were read, each written out once; a record that was read is never forgotten here."""
    written: dict[int, tuple[JournalRecord, bytes]] = {}

    def canonical(record: JournalRecord) -> bytes:
        if id(record) not in written:
            written[id(record)] = (record, canonical_bytes(record))
        return written[id(record)][1]

    return canonical


@dataclass
class Search:
    """All schedules of a scenario; `verdict` judges each run at its end."""

    scenario: Scenario
    ways: tuple[str, ...]
    verdict: Verdict
    operator: Callable[[ScriptedRun], ScriptedOperator] = ScriptedOperator
    alone: tuple[str, ...] = ()
    """Ways in which an act is interrupted in schedules of one interruption only."""
    remembers: bool = True
    stops: bool = True
    """Whether the first violation is raised; else violations are counted."""
    ends: int = 0
    """So many runs were played to their end; the others came to stand where one of these stood."""
    turns: int = 0
    _known: dict[_Key, Counts] = field(default_factory=dict[_Key, Counts])

    def schedules(self, most: int) -> Counts:
        """Play all schedules of up to `most` interruptions, and count them; raises Violation."""
        run = ScriptedRun(self.scenario)
        with folded_once():
            return self._explore(Playing(run, self.operator(run), self.operator), Past(), most, ())

    def _explore(self, playing: Playing, past: Past, most: int, schedule: tuple[Interruption, ...]) -> Counts:
        """From here on; the counts by number of further interruptions."""
        way: list[tuple[_Key, Counts]] = []
        while True:
            key = (standing(playing, past), most) if self.remembers else ((), most)
            rest = self._known.get(key)
            if rest is None and playing.over:
                rest = self._ended(self._holds(schedule, lambda: self.verdict(playing.run)), most)
            if rest is not None:
                break
            fine, counts = self._interrupt(playing, past, most, schedule)
            way.append((key, counts))
            if not fine:
                rest = self._ended(fine, most)
                break
        for key, counts in reversed(way):
            rest = _sum(counts, rest)
            if self.remembers:
                self._known[key] = rest
        return rest

    def _interrupt(
        self, playing: Playing, past: Past, most: int, schedule: tuple[Interruption, ...]
    ) -> tuple[bool, Counts]:
        """Play a turn: whether it went well, and what follows when one of its acts is interrupted."""
        if not most:
            return self._step(playing, schedule), ((0, 0),)
        before, run = playing.fork(), playing.run
        first, left = run.operations, dict[int, ScriptedRun]()
        run.on_act = lambda number: left.update({number: run.fork()})
        fine = self._step(playing, schedule)
        run.on_act = None
        # Between two acts of a turn nothing happens outside: to die before one is to have died after the last.
        counts, died = ((0, 0),) * most, None
        for number in range(first, run.operations):
            for kind in self.ways if schedule else (*self.ways, *self.alone):
                interrupted = (*schedule, (number, kind))
                further = most - 1 if kind in self.ways else 0
                if kind == "after" and number in left:
                    found = died = self._explore(before.died(left[number]), replace(past), further, interrupted)
                elif kind == "before" and died is not None:
                    found = died
                else:
                    found = self._branch(before, past, further, interrupted)
                counts = _sum(counts, found)
        return fine, ((0, 0), *counts)

    def _branch(self, before: Playing, past: Past, most: int, schedule: tuple[Interruption, ...]) -> Counts:
        """What follows the last interruption of a schedule, in the turn that begins at `before`."""
        branch = before.fork()
        branch.run.kills = frozenset(schedule[-1:])
        if not self._step(branch, schedule):
            return self._ended(False, most)
        return self._explore(branch, replace(past), most, schedule)

    def _step(self, playing: Playing, schedule: tuple[Interruption, ...]) -> bool:
        self.turns += 1
        return self._holds(schedule, playing.step)

    def _holds(self, schedule: tuple[Interruption, ...], part: Callable[[], None]) -> bool:
        """Whether part of a schedule breaks nothing."""
        try:
            part()
        except Exception as error:
            if self.stops:
                raise Violation(schedule, str(error) or repr(error)) from error
            return False
        return True

    def _ended(self, fine: bool, most: int) -> Counts:
        self.ends += 1
        return ((1, int(not fine)), *((0, 0),) * most)


def _sum(some: Counts, more: Counts) -> Counts:
    """The counts of both, by number of interruptions."""
    both = zip_longest(some, more, fillvalue=(0, 0))
    return tuple((one + other, wrong + worse) for (one, wrong), (other, worse) in both)
