"""Every schedule of one and of two interruptions of a run, each distinct course played once.

A schedule interrupts acts of the operator, each in one of the ways of `ScriptedRun.operation`. The run is forked at the
turn in which it is interrupted. As soon as it stands where a run stood that has been played to its end (`standing`),
the rest is known; so all pairs cost little more than all single interruptions. A search that does not `remember` plays
each schedule to its end: both must come to the same number of schedules and of violations.
"""

import gc
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

import memory_journal
import pytest
import scripted_world
import structlog
from played_trainer import Scenario
from run_standing import Past, Standing, standing
from scripted_acts import Act
from scripted_operator import Playing, ScriptedOperator
from scripted_world import ScriptedRun
from trimtab_contract import journal as contract
from trimtab_contract.directives import Ack
from trimtab_contract.journal import JournalRecord, parse_record, record_hash
from trimtab_operator import effects, journal, journal_fold
from trimtab_operator.observation import Acks
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

    The garbage collector rests meanwhile: it would look at every state again and again, and finds nothing. Nothing is
    logged, for nobody would read it.
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
        patch.setattr(Acks, "fold", _heard_once(Acks.fold))
        collects, logs = gc.isenabled(), structlog.get_config()
        gc.disable()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        try:
            yield
        finally:
            structlog.configure(**logs)
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


def _heard_once(fold: Callable[[Acks, str, Ack], Acks]) -> Callable[[Acks, str, Ack], Acks]:
    """What was heard up to a word: who takes a run over hears all of them again."""
    known: dict[tuple[int, str, int], tuple[Acks, Ack, Acks]] = {}

    def heard(acks: Acks, entry: str, ack: Ack) -> Acks:
        key = (id(acks), entry, id(ack))
        if key not in known:
            known[key] = (acks, ack, fold(acks, entry, ack))
        return known[key][2]

    return heard


@dataclass
class _Turn:
    """A turn of an operator, and how it left what it played at each of its acts."""

    playing: Playing
    before: Playing
    interrupted: tuple[Interruption, ...]
    """The acts of this turn that were interrupted already; what is looked at comes behind them."""
    found: dict[Interruption, Counts] = field(default_factory=dict[Interruption, Counts])
    played: set[Interruption] = field(default_factory=set[Interruption])
    """For what interruptions it was played again from its beginning."""
    _left: dict[int, ScriptedRun] = field(default_factory=dict[int, ScriptedRun])
    _failing: dict[int, ScriptedOperator] = field(default_factory=dict[int, ScriptedOperator])
    _acts: dict[int, Act] = field(default_factory=dict[int, Act])

    @property
    def first(self) -> int:
        """The number of its first act that can be interrupted."""
        return self.interrupted[-1][0] + 1 if self.interrupted else self.before.run.operations

    def take(self, act: Act) -> None:
        """Keep how an act left the run, and the operator that is to do nothing more in this turn if it failed."""
        self._acts[act.number] = act
        self._left[act.number] = self.playing.run.fork()
        process = self.playing.process
        if act.ends_turn and not (process.due or process.goes_on):
            self._failing[act.number] = self.playing.fork().process

    def like(self, number: int, kind: str) -> Interruption:
        """The first interruption with the same outcome: between two acts of a turn nothing happens outside."""
        if kind == "before" and number - 1 in self._left:
            return number - 1, "after"
        likely = number in self._acts and not (self._acts[number].tells_apart or self.playing.process.goes_on)
        if kind == "denied" and likely:
            return number, "after" if self._acts[number].fences else "lost"
        return number, kind

    def continued(self, number: int, kind: str) -> Playing | None:
        """The run behind an interrupted act, None where the turn must be played again to know."""
        if kind == "before" and number == self.first and not self.interrupted:
            return self.before.died(self.before.run.fork())
        if kind == "after" and number in self._left:
            return self.before.died(self._left[number])
        if kind == "lost" and number in self._failing:
            return self.before.failed(self._failing[number])
        return None


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
    doubts: int = 1
    """In schedules of up to so many interruptions every turn is played again though it could be continued at an act."""
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
            fine, counts = self._turn(playing, past, most, schedule)
            way.append((key, counts))
            if not fine:
                rest = self._ended(fine, most)
                break
        for key, counts in reversed(way):
            rest = _sum(counts, rest)
            if self.remembers:
                self._known[key] = rest
        return rest

    def _turn(
        self,
        playing: Playing,
        past: Past,
        most: int,
        schedule: tuple[Interruption, ...],
        interrupted: tuple[Interruption, ...] = (),
    ) -> tuple[bool, Counts]:
        """Play a turn, in which acts are `interrupted`: whether it went well, and what follows when another one is."""
        run = playing.run
        if not most:
            run.kills = frozenset(interrupted)
            return self._step(playing, schedule), ((0, 0),)
        turn = _Turn(playing, playing.fork(), interrupted)
        run.kills, run.on_act = frozenset(interrupted), turn.take
        fine = self._step(playing, schedule)
        run.on_act, counts = None, ((0, 0),) * most
        for number in range(turn.first, run.operations):
            for kind in self.ways if schedule else (*self.ways, *self.alone):
                further = most - 1 if kind in self.ways else 0
                counts = _sum(counts, self._follow(turn, past, further, (*schedule, (number, kind))))
        return fine, ((0, 0), *counts)

    def _follow(self, turn: "_Turn", past: Past, most: int, schedule: tuple[Interruption, ...]) -> Counts:
        """What follows when the last interruption of a schedule befalls a turn."""
        if not self.remembers:
            return self._play_again(turn, past, most, schedule)
        last = schedule[-1]
        like = turn.like(*last)
        if like not in turn.found:
            branch = turn.continued(*like)
            if branch is None:
                turn.played.add(like)
                turn.found[like] = self._play_again(turn, past, most, (*schedule[:-1], like))
            else:
                turn.found[like] = self._explore(branch, copy(past), most, schedule)
        found, ends = turn.found[like], self.ends
        if len(schedule) <= self.doubts and last not in turn.played:
            assert (self._play_again(turn, past, most, schedule), self.ends) == (found, ends), schedule
        return found

    def _play_again(self, turn: "_Turn", past: Past, most: int, schedule: tuple[Interruption, ...]) -> Counts:
        """The turn from its beginning, with the last interruption of a schedule, and what follows."""
        branch = turn.before.fork()
        fine, counts = self._turn(branch, past, most, schedule, (*turn.interrupted, schedule[-1]))
        rest = self._explore(branch, copy(past), most, schedule) if fine else self._ended(False, most)
        return _sum(counts, rest)

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
