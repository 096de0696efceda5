"""Jobs that read checkpoints back: an operator that dies, is cut off or freezes at any act of a run, and the next one.

The state machine and the journal are the real ones; the trainer, on one node, and the Jobs are played.
"""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from played_trainer import PlayedWorld, Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED
from scripted_operator import Playing, ScriptedOperator
from scripted_world import ScriptedRun
from trimtab_contract.directives import AckState
from trimtab_contract.journal import Phase
from trimtab_contract.read_back import ReadBack, ReadBackAnswer
from trimtab_operator.commands import Command
from trimtab_operator.errors import ClusterUnavailable, Conflict, OperatorError
from trimtab_operator.observation import Observation, ReadBackOutcome
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import CheckpointState, JournalAction, ReadBackOrder, RunPhase, RunState

STEPS = 20
JOB_TICKS = 2
SETTLED_TICKS = 12
"""What is left to be read when a run ends is read by then."""
ALONE = Scenario(steps=STEPS, certify=1000)
BROKEN = replace(DAMAGED, certify=1000)
WAYS = {"healthy": ("before", "after", "lost", "undone", "frozen"), "damaged": ("after", "frozen")}
SCENARIOS = {"healthy": ALONE, "damaged": BROKEN}
BAD_STEP = 15


class LonelyRun(ScriptedRun):
    """A run on one node, and the Jobs by the number of their intent: when each was made, and what it was to read."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.jobs: dict[int, tuple[int, ReadBackOrder]] = {}
        self.damaged_steps: frozenset[int] = frozenset()

    def acked(
        self, world: PlayedWorld, state: AckState, *, order: tuple[int, int] | None = None, **fields: Any
    ) -> None:
        super().acked(world, state, order=order, **fields)
        self.acks[-1] = msgspec.structs.replace(self.acks[-1], hosts=("a", "a"))

    def create_read_back(self, order: ReadBackOrder) -> None:
        def act() -> None:
            intents = [one.seq for one in self.announced if one.action == JournalAction.READ_BACK]
            if order.number not in intents:
                self.violations.append(f"the Job of record {order.number} was made without an earlier intent")
            if order.number in self.jobs:
                return  # the API server finds it under its name
            if self.state.incident is not None:
                self.violations.append(f"the Job of record {order.number} was made within an incident")
            if any(self.reads(number) for number in self.jobs):
                self.violations.append(f"the Job of record {order.number} was made while another one reads")
            self.jobs[order.number] = (self.ticks, order)

        self.operation(act, away=ClusterUnavailable, denied=Conflict)

    def reads(self, number: int) -> bool:
        return self.ticks - self.jobs[number][0] < JOB_TICKS

    def outcome(self, order: ReadBackOrder) -> ReadBackOutcome | None:
        """What whoever looks finds of a Job."""
        if order.number not in self.jobs or self.reads(order.number):
            return None
        answers = tuple(
            ReadBackAnswer(
                sha256=one.sha256,
                found=ReadBack.DAMAGED if one.step in self.damaged_steps else ReadBack.VERIFIED,
                detail="an object is gone" if one.step in self.damaged_steps else "",
            )
            for one in self.jobs[order.number][1].checkpoints
        )
        return ReadBackOutcome(number=order.number, job=f"demo-verify-uid-1-r{order.number}", answers=answers)


class ReadingOperator(ScriptedOperator):
    """Starts at the end of its turns the Job that the journal asks for."""

    def __init__(self, run: LonelyRun) -> None:
        super().__init__(run)
        self.lonely = run

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        limits = replace(observation.limits, read_back_jobs=True)
        outcome = self.lonely.outcome(state.read_back) if state.read_back is not None else None
        return advance(state, replace(observation, limits=limits, read_back=outcome))

    def turn(self) -> None:
        super().turn()
        order = self.journal.state.read_back
        if order is not None and order.number not in self.lonely.jobs:
            try:
                self.lonely.create_read_back(order)
            except OperatorError:
                return  # the next turn tries again


class Hasty(ReadingOperator):
    """Makes the Job before its journal says so."""

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        command = super().decide(state, observation)
        draft = getattr(command, "draft", None)
        if draft is not None and draft.action is JournalAction.READ_BACK and draft.phase is Phase.INTENT:
            after = draft.after
            order = ReadBackOrder(
                id=draft.id,
                number=state.seq + 1,
                checkpoints=tuple(after["checkpoints"]),
                seconds=after["seconds"],
                avoid=(),
                since=0.0,
            )
            self.lonely.create_read_back(order)
        return command


def wake_the_frozen(run: ScriptedRun) -> None:
    """What a frozen operator was about to do happens twelve ticks later, when another one leads."""
    if run.under_way and run.ticks % 12 == 0:
        for act in run.under_way:
            act()
        run.under_way.clear()


def play_reading(
    scenario: Scenario,
    *kills: tuple[int, str],
    damaged_steps: frozenset[int] = frozenset(),
    operator: type[ReadingOperator] = ReadingOperator,
) -> LonelyRun:
    """A run to its end, and until the last Job has been heard."""
    run = LonelyRun(scenario)
    run.kills, run.damaged_steps = frozenset(kills), damaged_steps
    playing = Playing(run, operator(run), operator, wake_the_frozen)  # pyright: ignore[reportArgumentType] both are made for each other
    while not playing.over:
        playing.step()
    for _ in range(SETTLED_TICKS):
        playing.step()
    return run


def read_well(run: LonelyRun) -> None:
    """Every invariant; and each Job that was announced was made once, and heard."""
    check(run)
    said = [one for one in run.announced if one.action == JournalAction.READ_BACK]
    intents = [one.seq for one in said if one.phase is Phase.INTENT]
    assert sorted(run.jobs) == intents
    assert [one.id for one in said if one.phase is Phase.RESULT] == [
        one.id for one in said if one.phase is Phase.INTENT
    ]
    assert run.state.read_back is None
    assert run.state.phase is RunPhase.COMPLETED
    final = run.state.checkpoints[-1]
    assert final.reference.step == run.scenario.steps
    assert (final.state, final.why[:7]) == (CheckpointState.CERTIFIED, "final: ")


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_an_operator_interrupted_at_any_act_starts_no_second_job_and_loses_no_answer(name: str) -> None:
    undisturbed = play_reading(SCENARIOS[name])
    read_well(undisturbed)
    assert len(undisturbed.jobs) > 1
    for number in range(undisturbed.operations):
        for way in WAYS[name]:
            run = play_reading(SCENARIOS[name], (number, way))
            try:
                read_well(run)
                assert surviving_windows(run) == surviving_windows(undisturbed)
                assert [one.extent for one in run.state.closed] == [one.extent for one in undisturbed.state.closed]
            except AssertionError as error:
                raise AssertionError(f"interrupted at ({number}, {way}): {error}") from error


def test_what_a_job_finds_damaged_is_quarantined_whenever_the_operator_dies() -> None:
    damaged = frozenset({BAD_STEP})
    undisturbed = play_reading(ALONE, damaged_steps=damaged)
    for number in range(undisturbed.operations):
        run = play_reading(ALONE, (number, "after"), damaged_steps=damaged)
        read_well(run)
        (bad,) = [one for one in run.state.checkpoints if one.reference.step == BAD_STEP]
        assert bad.state is CheckpointState.QUARANTINED, number
        assert bad.why.startswith("an object is gone (Job demo-verify-uid-1-r")


def test_an_operator_that_makes_the_job_before_its_journal_says_so_is_caught() -> None:
    run = play_reading(ALONE, operator=Hasty)
    assert any("without an earlier intent" in one for one in run.violations)
