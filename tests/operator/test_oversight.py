"""What is watched over all runs: when automation is held, what a new leader knows of it, and whom it tells."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from run_fates import DAMAGED
from run_states import incident, latch, reference, run_state
from scripted_operator import ScriptedOperator, play
from trimtab_contract.journal import Actor, JournalRecord
from trimtab_contract.keys import RunId
from trimtab_operator.breaker import BreakerSettings
from trimtab_operator.incidents import PhaseTime
from trimtab_operator.notifier import Notifier
from trimtab_operator.oversight import READING_SECONDS, Oversight
from trimtab_operator.run_state import (
    AutomationHold,
    CheckpointState,
    JournalAction,
    RunPhase,
    RunState,
    Source,
    World,
)
from trimtab_operator.telemetry import Telemetry, waits_for_a_person

SETTINGS = BreakerSettings(min_runs=3, min_share=0.25, window_seconds=300, quiet_seconds=900)
RUNS = [RunId("lab", name, name) for name in ("a", "b", "c", "d")]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Posted:
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.bodies: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def post(self, body: Mapping[str, Any]) -> None:
        self.bodies.put_nowait(body)


def oversight(clock: Clock, **ports: Any) -> Oversight:
    return Oversight(SETTINGS, now=clock, **ports)


def led(clock: Clock, states: dict[RunId, RunState], **ports: Any) -> Oversight:
    """An operator that leads and has read every journal."""
    watch = oversight(clock, **ports)
    for run in states:
        watch.seen(run)
    watch.listed()
    for run, state in states.items():
        watch.known(run, state)
    return watch


def failing(*times: float) -> dict[RunId, RunState]:
    return {run: run_state(failures=(time,)) for run, time in zip(RUNS, times, strict=False)}


def test_many_failing_runs_hold_automation_for_every_run_and_wake_them() -> None:
    clock, woken = Clock(), list[str]()
    watch = led(clock, {run: run_state() for run in RUNS})
    watch.wake_all = lambda: woken.append("all")
    for run, state in failing(910, 920, 930).items():
        assert watch.held() is None
        watch.known(run, state)
    held = watch.held()
    assert held is not None
    assert held.id == "breaker-930"
    assert held.runs == ("lab/a", "lab/b", "lab/c")
    assert woken == ["all"]
    clock.now = 930 + 900
    watch.refresh()
    assert watch.held() is None
    assert woken == ["all", "all"]


def test_a_new_leader_comes_to_the_same_hold() -> None:
    clock = Clock()
    first = led(clock, failing(910, 920, 930))
    assert led(clock, failing(910, 920, 930)).held() == first.held() != None  # noqa: E711 - both hold


def test_a_new_leader_begins_nothing_before_it_has_read_every_journal() -> None:
    clock, states = Clock(), failing(910, 920, 930)
    watch = oversight(clock)
    assert watch.held() is not None, "no list of the runs yet"
    for run in states:
        watch.seen(run)
    watch.listed()
    for run, state in states.items():
        held = watch.held()
        assert held is not None
        assert held.id == ""
        watch.known(run, state)
    held = watch.held()
    assert held is not None
    assert held.id == "breaker-930"


def test_one_journal_that_cannot_be_read_holds_the_others_for_a_bounded_time() -> None:
    clock = Clock()
    watch = oversight(clock)
    watch.seen(RUNS[0])
    watch.listed()
    clock.now += READING_SECONDS
    assert watch.held() is None


def test_a_broken_journal_or_a_deleted_job_is_waited_for_no_longer() -> None:
    watch = oversight(Clock())
    for run in RUNS[:2]:
        watch.seen(run)
    watch.listed()
    watch.broken(RUNS[0], "broken at record 3")
    assert watch.held() is not None
    watch.gone(RUNS[1])
    assert watch.held() is None


def test_a_hold_in_a_journal_stays_in_force_however_many_runs_are_watched_now() -> None:
    clock = Clock()
    hold = AutomationHold(id="breaker-930", message="3 runs failed", since=930.0, runs=("lab/a",))
    many = {RunId("lab", f"n{n}", f"n{n}"): run_state() for n in range(50)}
    waits = run_state(failures=(930.0,), automation=hold)
    held = led(clock, {**many, RUNS[0]: waits}).held()
    assert held is not None
    assert held.id == hold.id
    clock.now = 930 + 900
    assert led(clock, {**many, RUNS[0]: waits}).held() is None


def test_disabled_it_holds_nothing() -> None:
    watch = Oversight()
    for run, state in failing(1, 2, 3).items():
        watch.known(run, state)
    assert watch.held() is None


async def test_people_are_told_once_of_a_trip_and_of_a_broken_journal() -> None:
    posted = Posted()
    notifier = Notifier(posted)
    work = asyncio.create_task(notifier.work())
    try:
        watch = led(Clock(), failing(910, 920, 930), notifier=notifier)
        told = await posted.bodies.get()
        assert told["kind"] == "AutomationHeld"
        assert "lab/a, lab/b, lab/c" in told["text"]
        for _ in range(2):
            watch.broken(RUNS[3], "broken at record 3")
        told = await posted.bodies.get()
        assert (told["kind"], told["job"]) == ("JournalBroken", "d")
        await asyncio.sleep(0)
        assert posted.bodies.empty()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def test_a_scrape_says_how_the_runs_stand() -> None:
    registry, clock = CollectorRegistry(), Clock()
    states = {
        RUNS[0]: run_state(phase=RunPhase.NEEDS_HUMAN, incident=incident()),
        RUNS[1]: run_state(failures=(910.0,)),
        RUNS[2]: run_state(failures=(920.0,)),
        RUNS[3]: run_state(failures=(930.0,)),
    }
    watch = led(clock, states, telemetry=Telemetry(registry))
    watch.broken(RUNS[1], "broken at record 3")
    shown = generate_latest(registry).decode().splitlines()
    for line in (
        'trimtab_job_phase{job_name="a",job_namespace="lab",phase="NeedsHuman"} 1.0',
        'trimtab_job_phase{job_name="a",job_namespace="lab",phase="Watching"} 0.0',
        'trimtab_job_phase{job_name="c",job_namespace="lab",phase="Watching"} 1.0',
        'trimtab_job_needs_human{job_name="a",job_namespace="lab"} 1.0',
        'trimtab_job_needs_human{job_name="c",job_namespace="lab"} 0.0',
        'trimtab_job_incident_open{job_name="a",job_namespace="lab"} 1.0',
        'trimtab_job_journal_broken{job_name="b",job_namespace="lab"} 1.0',
        "trimtab_breaker_open 1.0",
    ):
        assert line in shown, "\n".join(shown)
    assert not any('trimtab_job_phase{job_name="b"' in line for line in shown)


def counted(registry: CollectorRegistry) -> list[str]:
    """The series of counters that name a job; gauges are read off what is watched now."""
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "job_name=" in line and not line.startswith("trimtab_job_")]


def written(action: JournalAction) -> JournalRecord:
    actor = Actor(service_account="s", pod="p", pod_uid="u", image="i", epoch=1)
    return JournalRecord(seq=31, prev="0" * 64, id="x", time="2026-01-01T00:00:00+00:00", actor=actor, action=action)


def test_the_counters_of_a_job_go_with_the_job_and_those_of_others_stay() -> None:
    registry = CollectorRegistry()
    watch = Oversight(telemetry=Telemetry(registry))
    open_one, closed = run_state(incident=incident()), run_state(closed=(incident(outcome="Recovered"),))
    lost = run_state(world=World(number=1, live=False, lost_reason="PeerLost"))
    for run in RUNS[:2]:
        watch.recorded(run, run_state(), written(JournalAction.TARGET_SELECTED), open_one)
        watch.recorded(run, open_one, written(JournalAction.INCIDENT_CLOSED), closed)
        watch.recorded(run, closed, written(JournalAction.WORLD_LOST), lost)
    of_one = len(counted(registry)) // 2
    assert of_one == 8, "four counters, each with the time it was made"
    watch.gone(RUNS[0])
    left = counted(registry)
    assert len(left) == of_one
    assert all('job_name="b"' in line for line in left)


def test_the_counters_of_a_job_that_was_made_anew_under_its_name_do_not_fall() -> None:
    registry = CollectorRegistry()
    watch = Oversight(telemetry=Telemetry(registry))
    watch.recorded(RUNS[0], run_state(), written(JournalAction.TARGET_SELECTED), run_state())
    anew = RunId("lab", "a", "another-uid")
    watch.seen(anew)
    watch.gone(RUNS[0])
    assert registry.get_sample_value("trimtab_rollbacks_total", {"job_namespace": "lab", "job_name": "a"}) == 1
    watch.gone(anew)
    assert counted(registry) == []


def test_a_paused_run_needs_a_person_and_one_that_rolls_back_does_not() -> None:
    holding = run_state(phase=RunPhase.HOLDING, incident=incident())
    paused = replace(holding, incident=incident(latch=latch(action="Pause")))
    assert not waits_for_a_person(holding)
    assert waits_for_a_person(paused)


def test_times_of_an_incident_are_counted_once_from_the_firing_to_the_way_on() -> None:
    registry = CollectorRegistry()
    watch = Oversight(telemetry=Telemetry(registry))

    class Watched(ScriptedOperator):
        def append(self, command: Any) -> None:
            before, journal = self.journal.state, self.journal
            super().append(command)
            watch.recorded(RUNS[0], before, self.run.announced[-1], journal.state)

    run = play(DAMAGED, operator=Watched)
    (closed,) = run.state.closed
    assert [one.phase for one in closed.phases] == [
        "Holding",
        "Diagnosing",
        "Selecting",
        "Restoring",
        "DiagnosingRestored",
        "Probation",
    ]
    assert all(isinstance(one, PhaseTime) and one.time for one in closed.phases)
    for phase in (one.phase for one in closed.phases):
        assert registry.get_sample_value("trimtab_incident_phase_seconds_count", {"phase": phase}) == 1, phase
    assert registry.get_sample_value("trimtab_incident_recovery_seconds_count") == 1
    labels = {"job_namespace": "lab", "job_name": "a", "rule": closed.latch.rule}
    assert registry.get_sample_value("trimtab_incidents_opened_total", labels) == 1
    assert registry.get_sample_value("trimtab_incidents_total", {**labels, "outcome": "Recovered"}) == 1
    assert registry.get_sample_value("trimtab_rollbacks_total", {"job_namespace": "lab", "job_name": "a"}) == 1


def going_on(run: RunId, step: int, **changes: Any) -> RunState:
    source = Source(run=str(run), checkpoint=reference(step), state=CheckpointState.VERIFIED, why="w")
    return run_state(**changes).continuing(source)


def test_what_other_runs_go_on_from_is_known_once_all_journals_were_read_and_until_they_are_over() -> None:
    watch = oversight(Clock())
    first, second, third, fourth = RUNS[:4]
    for run in RUNS[:4]:
        watch.seen(run)
    watch.listed()
    watch.known(first, run_state())
    watch.known(second, going_on(first, 10))
    watch.known(third, going_on(first, 20, phase=RunPhase.COMPLETED))
    assert watch.continued(first) is None
    watch.known(fourth, going_on(second, 30))
    assert watch.continued(first) == {reference(10).key: str(second)}
    assert watch.continued(second) == {reference(30).key: str(fourth)}
    watch.known(second, going_on(first, 10, phase=RunPhase.STOPPED))
    assert watch.continued(first) == {}
