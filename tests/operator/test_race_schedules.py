"""Races and bad days, drawn with a printed seed: the run ends as it must, and where nothing outside was lost, the same.

Late and repeated words, clocks that jump, outages, late reads, people who edit and delete, a leader that wakes.
"""

from dataclasses import replace
from random import Random

import pytest
from played_trainer import Scenario
from run_checks import check, decisions, story, surviving_windows
from run_fates import at, crash
from schedule_search import folded_once
from scripted_operator import ScriptedOperator, play
from scripted_world import ScriptedRun
from trimtab_contract.journal import effective
from trimtab_operator.commands import Command
from trimtab_operator.observation import MissingMetric, Observation, PodsState
from trimtab_operator.run_state import JournalAction, PendingEffect, RunPhase, RunState
from tumult import (
    CLOCKS,
    LATE,
    LEASES,
    OUTAGES,
    PEOPLE,
    UNHEARD,
    BadDay,
    EndingOperator,
    Event,
    happening,
    patient,
    with_a_frozen_leader,
)

SEED = 20261129
DRAWN = 10
"""So many schedules of each scenario and kind."""
DAMAGED = Scenario(steps=30, damaged=frozenset(range(14, 18)))
SCENARIOS = {
    "damaged": patient(DAMAGED),
    "transient": patient(Scenario(steps=30, mismatch=18)),
    "nonfinite": patient(Scenario(steps=27, nonfinite=frozenset({(1, 18)}))),
    "relapse": patient(Scenario(steps=27, latent=(8, 18), margin=3)),
    "target-fails": patient(replace(DAMAGED, unrestorable=frozenset({10}))),
    "paused-resumed": patient(
        replace(DAMAGED, action="Pause", damaged=frozenset({14, 15, 16}), answers=(("Held", "Resume"),))
    ),
    "approved": patient(replace(DAMAGED, approval=99999, answers=(("TargetSelected", "Approve"),))),
}
HARMLESS = {
    "unheard": UNHEARD,
    "clocks": CLOCKS,
    "outages": OUTAGES,
    "leases": LEASES,
    "all": (*UNHEARD, *CLOCKS, *OUTAGES, *LEASES),
}
LOSING = {"late": LATE, "people": PEOPLE, "all": (*UNHEARD, *CLOCKS, *OUTAGES, *LEASES, *LATE, *PEOPLE)}


def ends_well(run: ScriptedRun) -> None:
    # A directive that comes late may name windows that were trained by then: the trainer refuses, and the run goes on.
    check(run, refuses=bool(run.refusals))
    assert run.state.phase is RunPhase.COMPLETED
    assert not run.living
    epochs_rise(run)


def epochs_rise(run: ScriptedRun) -> None:
    """Whatever became of the Lease, nobody leads under an epoch that somebody else had."""
    epochs = [one.actor.epoch for one in effective(run.announced) if one.action == JournalAction.TAKEOVER]
    assert epochs == sorted(set(epochs))


def schedules(events: tuple[Event, ...], name: str, kind: str) -> list[ScriptedRun]:
    """Runs on bad days, each with up to one operator that dies besides."""
    chance = Random(f"{SEED}/{name}/{kind}")
    runs: list[ScriptedRun] = []
    for _ in range(DRAWN):
        kills = [(chance.randrange(60), chance.choice(("before", "after", "lost", "undone")))]
        happens = happening(events, chance)
        with folded_once():
            run = play(
                SCENARIOS[name],
                kills=kills,
                on_tick=happens,
                operator=EndingOperator,
                world=BadDay,
                at_least=72,
                ticks=400,
            )
        runs.append(run)
    print(f"{name}, {kind}: {len(runs)} schedules drawn with seed {SEED}")
    return runs


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_delays_an_operator_changes_no_decision(name: str, kind: str) -> None:
    undisturbed = play(SCENARIOS[name])
    for run in schedules(HARMLESS[kind], name, kind):
        ends_well(run)
        assert decisions(run) == decisions(undisturbed)
        assert surviving_windows(run) == surviving_windows(undisturbed)


@pytest.mark.parametrize("kind", LOSING)
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_is_lost_edited_or_deleted_the_run_ends_well(name: str, kind: str) -> None:
    for run in schedules(LOSING[kind], name, kind):
        ends_well(run)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_is_deleted_at_any_moment_ends_with_one_last_record(name: str) -> None:
    chance, count = Random(f"{SEED}/{name}/deleted"), 0
    for tick in range(1, play(SCENARIOS[name]).ticks - 1):

        def happen(run: ScriptedRun, tick: int = tick) -> None:
            assert isinstance(run, BadDay)
            if run.ticks == tick:
                run.delete_run(chance)

        kills = [(chance.randrange(60), chance.choice(("before", "after", "lost", "denied", "undone")))]
        with folded_once():
            run = play(SCENARIOS[name], kills=kills, on_tick=happen, operator=EndingOperator, world=BadDay, at_least=72)
        check(run, refuses=bool(run.refusals))
        epochs_rise(run)
        ends = [one for one in run.announced if one.action == JournalAction.RUN_ENDED]
        assert [one.seq for one in ends] == [run.announced[-1].seq], kills
        assert run.anchor_object is not None
        assert run.anchor_object["spec"]["ended"]
        assert run.anchored == ends[0].seq
        assert not run.living
        count += 1
    print(f"{name}: {count} schedules of a deleted run, drawn with seed {SEED}")


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_reported_as_done_and_was_not_is_done_in_the_end(name: str) -> None:
    undisturbed = play(SCENARIOS[name])
    for number in undisturbed.effects:
        run = play(SCENARIOS[name], kills=[(number, "forgotten")])
        ends_well(run)
        if list(run.worlds) == list(undisturbed.worlds):  # a Job that is not there is a world that was lost
            assert (story(run), decisions(run)) == (story(undisturbed), decisions(undisturbed))
    print(f"{name}: {len(undisturbed.effects)} schedules of an effect that is reported and not done")


@pytest.mark.parametrize("name", ["damaged", "target-fails", "approved"])
def test_an_old_leader_that_wakes_anywhere_changes_nothing(name: str) -> None:
    undisturbed = play(SCENARIOS[name])
    count = 0
    with folded_once():
        for number, sleeps, run in with_a_frozen_leader(SCENARIOS[name], (0, 1, 3, 7)):
            ends_well(run)
            assert (story(run), decisions(run)) == (story(undisturbed), decisions(undisturbed)), (number, sleeps)
            count += 1
    print(f"{name}: {count} schedules of a frozen leader that wakes")


@pytest.mark.parametrize("name", ["damaged", "transient"])
def test_an_old_leader_whose_lease_ran_out_publishes_nothing_even_where_redis_forgot_all(name: str) -> None:
    undisturbed = play(SCENARIOS[name])
    count = 0
    with folded_once():
        for number, sleeps, run in with_a_frozen_leader(SCENARIOS[name], (5, 9), forgets=True):
            ends_well(run)
            assert (story(run), decisions(run)) == (story(undisturbed), decisions(undisturbed)), (number, sleeps)
            count += 1
    print(f"{name}: {count} schedules of a leader that wakes behind its Lease, and of an emptied Redis")


# The checker itself --------------------------------------------------------------------------------------------------


class StartsBesideTheOld(ScriptedOperator):
    """Takes pods that are ending for gone."""

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        pods = observation.pods
        if pods.state is PodsState.ENDING:
            pods = replace(pods, state=PodsState.GONE)
        return super().decide(state, replace(observation, pods=pods))


class TakesSilenceForABreach(ScriptedOperator):
    """Rolls back because a metric is missing."""

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        if observation.missing_metrics and observation.judged_step and state.phase is RunPhase.WATCHING:
            observation = replace(observation, firing=self.run.latch("no-data", "gone", state.attempt))
        return super().decide(state, observation)


class WritesOverTheDirective(ScriptedOperator):
    """Puts its first directive into force again, as an old leader could if Redis did not compare."""

    first: bytes | None = None

    def perform(self, effect: PendingEffect) -> None:
        super().perform(effect)
        self.first = self.first or self.run.bus
        self.run.bus = self.first


class LeadsForEver(ScriptedOperator):
    """Looks once whether the Lease is its own."""

    def leads(self) -> bool:
        return super().leads() or not self.clock.waits


def test_an_operator_that_leads_behind_its_lease_is_caught() -> None:
    with folded_once():
        runs = [run for *_, run in with_a_frozen_leader(SCENARIOS["damaged"], (9,), LeadsForEver, forgets=True)]
    caught = [run for run in runs if any("had run out" in violation for violation in run.violations)]
    assert len(caught) > len(runs) / 4


def test_an_operator_that_starts_a_world_beside_the_old_one_is_caught() -> None:
    run = play(patient(Scenario(steps=20)), on_tick=at({8: crash}), operator=StartsBesideTheOld)
    with pytest.raises(AssertionError, match="while another one lives"):
        check(run)


def test_an_operator_that_rolls_back_for_want_of_data_is_caught() -> None:
    def silent(run: ScriptedRun) -> None:
        run.missing = (MissingMetric(policy="GuardPolicy/guard", rule="r", metric="gone", message="no record has it"),)

    scenario = patient(Scenario(steps=20))
    check(play(scenario, on_tick=silent))
    with pytest.raises(AssertionError, match="no record"):
        check(play(scenario, on_tick=silent, operator=TakesSilenceForABreach))


def test_an_operator_that_writes_over_a_newer_directive_is_caught() -> None:
    run = play(SCENARIOS["damaged"], operator=WritesOverTheDirective)
    with pytest.raises(AssertionError, match="is in force after"):
        check(run)
