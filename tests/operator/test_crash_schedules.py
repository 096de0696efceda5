"""The operator interrupted around every append and every effect, once and in all pairs: the same story every time.

An act is interrupted in one of the ways of `ScriptedRun.operation`: the operator dies before or after it, the reply is
lost, or it is reported as failed, done or not done. A new operator takes over with a higher epoch and continues from
the journal. Whatever the schedule, the incident has the same sequence of (action, phase, command index), the same rule,
first bad step, targets and skip range, and no invariant is ever broken.
"""

import random
from dataclasses import replace

import msgspec
import pytest
from played_trainer import Scenario
from run_checks import check, decisions, story, surviving_windows
from schedule_search import Search, Violation
from scripted_operator import ScriptedOperator, play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Directive, Reason
from trimtab_operator.commands import Append, Command
from trimtab_operator.errors import OperatorError
from trimtab_operator.incidents import Vitals, Wishes
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import CheckpointState, PendingEffect, RunPhase, RunState

DAMAGED = Scenario(steps=30, damaged=frozenset(range(14, 18)))
HEALTHY = Scenario(steps=20)
HELD = (("WorldRunning", "Hold"),)
VITALS = Vitals(
    records=20, loss_mean=2.0, loss_std=0.1, clip_records=0, clip_rate=None, speed_records=0, tokens_per_second=None
)
SCENARIOS = {
    "damaged": DAMAGED,
    "last-steps": Scenario(steps=30, damaged=frozenset({27, 28, 29})),
    "transient": Scenario(steps=30, mismatch=18),
    "relapse": Scenario(steps=27, latent=(8, 18), margin=3),
    "diagnosis-late": replace(DAMAGED, diagnosis="Late"),
    "diagnosis-unusable": replace(DAMAGED, diagnosis="Unusable"),
    "nonfinite": Scenario(steps=27, nonfinite=frozenset({(1, 18)})),
    "glitch": Scenario(steps=30, glitches=frozenset({(1, 18)})),
    "no-progress": Scenario(steps=12, diverges=8, margin=1, max_rollbacks=100),
    "lower-rate": Scenario(steps=24, diverges=14, margin=2, rate=(0.1, 100)),
    "probation-extended": replace(
        DAMAGED, steps=40, healthy=VITALS, vitals=(msgspec.structs.replace(VITALS, loss_mean=9.0), VITALS)
    ),
    "target-fails": replace(DAMAGED, unrestorable=frozenset({10})),
    "control-bad": replace(DAMAGED, control_bad=frozenset({10})),
    "needs-human": Scenario(steps=30, damaged=frozenset(range(14, 200))),
    "stop-rule": replace(DAMAGED, action="Stop"),
    "bad-config": replace(DAMAGED, bad_config=True),
    "paused-resumed": replace(DAMAGED, action="Pause", damaged=frozenset({14, 15, 16}), answers=(("Held", "Resume"),)),
    "paused-rolled-back": replace(DAMAGED, action="Pause", answers=(("Held", "Rollback"),)),
    "paused-stopped": replace(DAMAGED, action="Pause", answers=(("IncidentOpened", "Stop"),)),
    "human-resumes": replace(DAMAGED, max_rollbacks=0, answers=(("NeedsHuman", "Resume"),)),
    "human-rolls-back": replace(DAMAGED, max_rollbacks=0, answers=(("NeedsHuman", "Rollback"),)),
    "refused": replace(DAMAGED, answers=(("IncidentOpened", "Resume"), ("TargetSelected", "Rollback"))),
    "held-resumed": replace(HEALTHY, answers=(*HELD, ("Held", "Resume"))),
    "held-rolled-back": replace(HEALTHY, answers=(*HELD, ("Held", "Rollback", Wishes(skip=(10, 11))))),
    "rolled-back": replace(HEALTHY, answers=(("Committed", "Rollback", Wishes(unchanged=True)),)),
    "skipped": replace(HEALTHY, answers=(("WorldRunning", "Skip", Wishes(skip=(12, 13))),)),
    "skipped-in-incident": replace(DAMAGED, answers=(("TargetSelected", "Skip", Wishes(skip=(27, 28))),)),
    "approved": replace(DAMAGED, approval=99, answers=(("TargetSelected", "Approve"),)),
    "approved-again": replace(
        DAMAGED,
        approval=99,
        unrestorable=frozenset({10}),
        answers=(("TargetSelected", "Approve"), ("TargetSelected", "Approve")),
    ),
    "rejected": replace(DAMAGED, approval=99, answers=(("TargetSelected", "Reject"), ("NeedsHuman", "Stop"))),
    "not-approved": replace(DAMAGED, approval=5),
}
WAYS = ("before", "after", "lost", "denied", "undone")
PAIRED_WAYS = ("before", "after", "lost", "denied")
PAIRED = (
    "damaged",
    "transient",
    "nonfinite",
    "target-fails",
    "needs-human",
    "stop-rule",
    "bad-config",
    "paused-resumed",
    "paused-stopped",
    "human-resumes",
    "held-resumed",
    "held-rolled-back",
    "rolled-back",
    "skipped",
    "approved",
    "rejected",
    "not-approved",
)


def same(disturbed: ScriptedRun, undisturbed: ScriptedRun) -> None:
    check(disturbed)
    assert story(disturbed) == story(undisturbed)
    assert decisions(disturbed) == decisions(undisturbed)
    assert answers(disturbed) == answers(undisturbed)
    assert disturbed.state.phase is undisturbed.state.phase
    if undisturbed.state.phase is RunPhase.COMPLETED:
        assert surviving_windows(disturbed) == surviving_windows(undisturbed)


def answers(run: ScriptedRun) -> list[tuple[str, ...]]:
    """What became of every request, and that it was answered once."""
    uids = [one.uid for one in run.state.requests]
    assert len(uids) == len(set(uids)), "a request was answered twice"
    return [(one.uid, one.action, one.state) for one in run.state.requests]


def search(scenario: Scenario, ways: tuple[str, ...], operator: type[ScriptedOperator] = ScriptedOperator) -> Search:
    undisturbed = play(scenario)
    check(undisturbed)
    return Search(scenario, ways, lambda run: same(run, undisturbed), operator)


@pytest.mark.parametrize("name", SCENARIOS)
def test_one_interruption_anywhere_changes_nothing(name: str) -> None:
    found = search(SCENARIOS[name], WAYS)
    print(f"{name}: {found.schedules(1)[1]} schedules of one interruption, {found.ends} ends of their own")


@pytest.mark.parametrize("name", PAIRED)
def test_two_interruptions_anywhere_change_nothing(name: str) -> None:
    found = search(SCENARIOS[name], PAIRED_WAYS)
    print(f"{name}: {found.schedules(2)[2]} schedules of two interruptions, {found.ends} ends of their own")


@pytest.mark.parametrize("downtime", [3, 25])
def test_an_operator_that_stays_away_for_a_while_comes_to_the_same_decisions(downtime: int) -> None:
    found = search(replace(DAMAGED, downtime=downtime), ("after",))
    print(f"away for {downtime} ticks: {found.schedules(1)[1]} schedules")


def test_runs_known_from_where_they_stand_end_as_those_that_are_played_to_the_end() -> None:
    """The search takes for known what stands where a run stood; a sample of its schedules, drawn anew, is played."""
    seed = 20261129
    chance = random.Random(seed)
    for name in PAIRED:
        undisturbed = play(SCENARIOS[name])
        for _ in range(3):
            first, second = sorted(chance.sample(range(undisturbed.operations + 2), 2))
            kills = [(first, chance.choice(PAIRED_WAYS)), (second, chance.choice(PAIRED_WAYS))]
            same(play(SCENARIOS[name], kills=kills), undisturbed)
    print(f"{3 * len(PAIRED)} schedules of two interruptions, drawn with seed {seed}")


@pytest.mark.parametrize("name", ["damaged", "target-fails", "control-bad"])
def test_a_world_that_dies_while_no_operator_is_there_changes_neither_targets_nor_skip(name: str) -> None:
    scenario = replace(SCENARIOS[name], downtime=4)
    undisturbed = play(scenario)
    assert undisturbed.opened_at is not None
    points = range(undisturbed.opened_at, undisturbed.operations)
    for number in points:

        def fate(run: ScriptedRun, number: int = number) -> None:
            if run.operations > number and len(run.worlds) == 1 and run.world.alive:
                run.world.die(Reason.PEER_LOST)

        run = play(scenario, kills=[(number, "after")], on_tick=fate)
        check(run)
        assert run.state.phase is RunPhase.COMPLETED
        assert surviving_windows(run) == surviving_windows(undisturbed)
        assert _essence(run) == _essence(undisturbed)
    print(f"{name}: {len(points)} schedules of an operator and a world")


def _essence(run: ScriptedRun) -> list[tuple[object, ...]]:
    """What must be the same even where another attempt did it."""
    return [
        (one.latch.rule, one.latch.first_bad_step, [plan.target.step for plan in one.plans], one.extent, one.outcome)
        for one in run.state.closed
    ]


def test_three_operators_that_die_at_once_change_nothing() -> None:
    undisturbed = play(DAMAGED)
    for number in range(0, undisturbed.operations, 3):
        same(play(DAMAGED, kills=[(number + more, "before") for more in range(3)]), undisturbed)


# The checker itself: operators that are wrong in one way are caught --------------------------------------------------


class ActsBeforeItsIntent(ScriptedOperator):
    """Carries an effect out first and writes it down afterwards."""

    def append(self, command: Append) -> None:
        after = command.draft.after or {}
        if command.draft.phase is not None and "directive" in after:
            self.run.publish(msgspec.convert(msgspec.to_builtins(after["directive"]), type=Directive))
        super().append(command)


class ForgetsTheSkipOnRetry(ScriptedOperator):
    """Rebuilds the directive of an unfinished effect, without the ledger, instead of repeating it."""

    def perform(self, effect: PendingEffect) -> None:
        state = self.journal.state
        taken_over = state.epoch > 1
        if taken_over and state.directive is not None and state.directive.skip:
            self.journal.state = replace(state, directive=msgspec.structs.replace(state.directive, skip=()))
        super().perform(effect)


class SettlesAfterDeciding(ScriptedOperator):
    """Settles a lost reply only when the next record, decided without it, is to be written."""

    def settle(self) -> None:
        return

    def append(self, command: Append) -> None:
        super().settle()
        super().append(command)


class ReportsDoneWhatFailed(ScriptedOperator):
    """Takes an effect that failed for one that was done."""

    def perform(self, effect: PendingEffect) -> None:
        try:
            super().perform(effect)
        except OperatorError:
            return


class TrustsWhatIsQuarantined(ScriptedOperator):
    """Takes the newest checkpoint, though it was taken after the first bad step."""

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        if state.phase in {RunPhase.SELECTING, RunPhase.RESTORING} and state.incident is not None:
            latch = msgspec.structs.replace(state.incident.latch, first_bad_step=100)
            trusted = (msgspec.structs.replace(one, state=CheckpointState.VERIFIED) for one in state.checkpoints)
            incident = msgspec.structs.replace(state.incident, latch=latch)
            state = replace(state, checkpoints=tuple(trusted), incident=incident)
        return super().decide(state, observation)


@pytest.mark.parametrize(
    "operator", [ActsBeforeItsIntent, ForgetsTheSkipOnRetry, SettlesAfterDeciding, ReportsDoneWhatFailed]
)
def test_an_operator_that_is_wrong_in_one_way_is_caught(operator: type[ScriptedOperator]) -> None:
    with pytest.raises(Violation):
        search(DAMAGED, WAYS, operator).schedules(1)


def test_an_operator_that_trusts_what_is_quarantined_is_caught() -> None:
    run = play(DAMAGED, operator=TrustsWhatIsQuarantined)
    with pytest.raises(AssertionError, match="which nobody trusts"):
        check(run)
