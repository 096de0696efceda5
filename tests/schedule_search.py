"""Every schedule of one and of two interruptions of a run, each distinct course played once.

A schedule interrupts acts of the operator, each in one of the ways of `ScriptedRun.operation`. The run is forked at the
turn in which it is interrupted. As soon as it stands where a run stood that has been played to its end (`standing`),
the rest is known; so all pairs cost little more than all single interruptions.
"""

import gc
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

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
    ends: int = 0
    """So many runs were played to their end; the others came to stand where one of these stood."""
    turns: int = 0
    _known: dict[tuple[Standing, int], tuple[int, ...]] = field(
        default_factory=dict[tuple[Standing, int], tuple[int, ...]]
    )

    def schedules(self, most: int) -> tuple[int, ...]:
        """Play all schedules of up to `most` interruptions; how many have none, one, two; raises Violation."""
        run = ScriptedRun(self.scenario)
        with folded_once():
            return self._explore(Playing(run, self.operator(run), self.operator), Past(), most, ())

    def _explore(self, playing: Playing, past: Past, most: int, schedule: tuple[Interruption, ...]) -> tuple[int, ...]:
        """From here on; the counts by number of further interruptions."""
        way: list[tuple[_Key, list[int]]] = []
        rest: Iterable[int] = (1, *[0] * most)
        while True:
            key = (standing(playing, past), most)
            known = self._known.get(key)
            if known is not None:
                rest = known
                break
            if playing.over:
                self._judge(playing.run, schedule)
                break
            counts = [0] * (most + 1)
            way.append((key, counts))
            if most:
                self._interrupt(playing, past, most, schedule, counts)
            else:
                self._step(playing, schedule)
        for key, counts in reversed(way):
            rest = tuple(own + later for own, later in zip(counts, rest, strict=True))
            self._known[key] = rest
        return tuple(rest)

    def _interrupt(
        self, playing: Playing, past: Past, most: int, schedule: tuple[Interruption, ...], counts: list[int]
    ) -> None:
        """Play a turn, and all that follows when one of its acts is interrupted, which is added to the counts."""
        before, run = playing.fork(), playing.run
        first, left = run.operations, dict[int, ScriptedRun]()
        run.on_act = lambda number: left.update({number: run.fork()})
        self._step(playing, schedule)
        run.on_act = None
        # Between two acts of a turn nothing happens outside: to die before one is to have died after the last.
        died: tuple[int, ...] | None = None
        for number in range(first, run.operations):
            for kind in self.ways:
                interrupted = (*schedule, (number, kind))
                found = died if kind == "before" else None
                if kind == "after":
                    found = died = self._explore(before.died(left[number]), replace(past), most - 1, interrupted)
                elif found is None:
                    found = self._branch(before, past, most - 1, interrupted)
                for more, count in enumerate(found):
                    counts[more + 1] += count

    def _branch(self, before: Playing, past: Past, most: int, schedule: tuple[Interruption, ...]) -> tuple[int, ...]:
        """What follows the last interruption of a schedule, in the turn that begins at `before`."""
        branch = before.fork()
        branch.run.kills = frozenset(schedule[-1:])
        self._step(branch, schedule)
        return self._explore(branch, replace(past), most, schedule)

    def _step(self, playing: Playing, schedule: tuple[Interruption, ...]) -> None:
        self.turns += 1
        try:
            playing.step()
        except Exception as error:
            raise Violation(schedule, repr(error)) from error

    def _judge(self, run: ScriptedRun, schedule: tuple[Interruption, ...]) -> None:
        self.ends += 1
        try:
            self.verdict(run)
        except AssertionError as error:
            raise Violation(schedule, str(error)) from error
