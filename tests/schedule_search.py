"""Every schedule of one and of two interruptions of a run, each distinct course played once.

A schedule interrupts acts of the operator, each in one of the ways of `ScriptedRun.operation`. The run is forked at the
turn in which it is interrupted. As soon as it stands where a run stood that has been played to its end (`standing`),
the rest is known; so all pairs cost little more than all single interruptions.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import scripted_world
from played_trainer import Scenario
from run_standing import Past, Standing, standing
from scripted_operator import Playing, ScriptedOperator
from scripted_world import ScriptedRun
from trimtab_contract.journal import JournalRecord
from trimtab_operator import journal, journal_fold
from trimtab_operator.run_state import RunState

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
    """Each journal is folded once: a record's hash says all that came before it, and thereby what is folded."""
    states: dict[str, RunState] = {}

    def fold(state: RunState, record: JournalRecord, head: str = "") -> RunState:
        honest = state.seq == 0 or states.get(state.head) is state
        if not honest or not head:
            return journal_fold.fold(state, record, head)
        if head not in states:
            states[head] = journal_fold.fold(state, record, head)
        return states[head]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "fold", fold)
        patch.setattr(scripted_world, "fold", fold)
        yield


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
            before = playing.fork() if most else playing
            first = playing.run.operations
            self._step(playing, schedule)
            # Between two acts of a turn nothing happens outside: to die before one is to have died after the last.
            died: tuple[int, ...] | None = None
            for number in range(first, playing.run.operations if most else first):
                for kind in self.ways:
                    found = died if kind == "before" else None
                    if found is None:
                        found = self._branch(before, past, most - 1, (*schedule, (number, kind)))
                    if kind == "after":
                        died = found
                    for more, count in enumerate(found):
                        counts[more + 1] += count
        for key, counts in reversed(way):
            rest = tuple(own + later for own, later in zip(counts, rest, strict=True))
            self._known[key] = rest
        return tuple(rest)

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
