"""A sample of the schedules of interruptions against a real API server, Redis and S3, judged by the same checks.

The operator is the real one, with its supervisor, adapters and Lease; only the trainer is played. Writes are named, and
each schedule interrupts one or two of them in the ways of the simulated schedules. What the incident came to is
compared with the simulated run of the same scenario.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import takewhile
from random import Random
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from interrupted_ports import Fault, Interrupter, Naive, drawn_from
from judged_world import JudgedRun
from leaders import Leaders
from object_store_fixture import ObjectStoreServer
from played_trainer import RUN, Scenario
from redis_fixture import RedisServer
from run_checks import check, story, surviving_windows
from run_fates import crash
from scripted_operator import play
from scripted_world import ScriptedRun, directive_of
from staged_people import (
    DAMAGED,
    IN_INCIDENT,
    Acting,
    Script,
    clocks,
    deletes_job,
    people,
    writes_after,
)
from staged_run import PatientApiServer, Stage, StagedRun, essence
from trimtab_contract.directives import AckState
from trimtab_contract.journal import JournalRecord, Phase, parse_record
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.ports import Appended, Bus, JournalStore
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import JournalAction, RunPhase
from trimtab_operator.workload import TrainingJobView

SEED = 20261130
PATIENCE_SECONDS = 240.0
HEALTHY = Scenario(steps=20, read_back=AckState.VERIFIED)
WAYS = ("before", "after", "lost", "denied", "undone")
PAIRED_WAYS = ("before", "after", "lost", "denied")
PAIRS = 5
SLEEPS = (0, 3, 9, 27)
"""For how many writes of its successors a leader that froze sleeps."""
AT_ONCE = 5
SOON = 8
"""Among so many writes that follow upon a person's first deed one is interrupted."""


@dataclass(frozen=True)
class Schedule:
    """Which writes are interrupted and how; a frozen operator sleeps for so many writes of its successors."""

    name: str
    faults: tuple[Fault, ...]
    sleeps: int = 0


@pytest.fixture
async def stage(
    api: ControlPlane, ports: Ports, redis_server: RedisServer, object_store: ObjectStoreServer
) -> AsyncIterator[Stage]:
    (ours,) = ports.namespaces
    server = await PatientApiServer.connect(api.kubeconfig)
    assert isinstance(server, PatientApiServer)
    made = Stage(server, ours, redis_server, object_store, object_store.new_bucket("staged"), ports.journal)
    api.apply(made.secret())
    yield made
    await server.close()


async def staged(
    api: ControlPlane,
    stage: Stage,
    ports: Ports,
    schedule: Schedule,
    scenario: Scenario = DAMAGED,
    on_tick: Callable[[ScriptedRun], None] = lambda _run: None,
    on_record: Callable[[ScriptedRun, JournalRecord], None] = lambda _run, _record: None,
    naive: Naive | None = None,
) -> Leaders:
    """The run of a new job, played to its end."""
    name, interrupter = schedule.name, Interrupter(schedule.faults, schedule.sleeps, naive=naive)
    await asyncio.to_thread(api.apply, *stage.objects(name, scenario))
    body = dict(await stage.training_job(name))
    run = StagedRun(scenario, stage, TrainingJobView.of(body), on_tick)
    run.on_record = lambda record: on_record(run, record)
    store = KubernetesCluster(stage.server)
    leaders = Leaders(run, body, ports, stage.server, store, interrupter, Random(f"{SEED}/{name}"))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await leaders.play()
    except TimeoutError:
        told = [(one.seq, one.action, one.phase) for one in run.announced]
        said = [(one.state, one.step, one.epoch, one.seq) for one in run.acks]
        status = None if run.job_deleted else (await stage.training_job(name)).get("status")
        pytest.fail(f"{status}; {name} under {interrupter.faults} came to no end: {told}; {said}; {run.violations}")
    return leaders


def drawn(chance: Random, writes: list[tuple[str, int]]) -> list[Schedule]:
    """Of each way one schedule, as many pairs of the paired ways, and as many leaders that freeze and wake."""
    found = [Schedule(f"single-{way}", (Fault(*chance.choice(writes), way),)) for way in WAYS]
    for number in range(PAIRS):
        first, second = chance.sample(writes, 2)
        ways = [chance.choice(PAIRED_WAYS) for _ in range(2)]
        found.append(Schedule(f"pair-{number}", (Fault(*first, ways[0]), Fault(*second, ways[1]))))
    awake = [one for one in writes if one[0] != "append Takeover"]
    for number, sleeps in enumerate(SLEEPS):
        found.append(Schedule(f"frozen-{number}", (Fault(*chance.choice(awake), "frozen"),), sleeps))
    return found


@pytest.mark.timeout(600)
async def test_a_sample_of_the_schedules_on_real_parts_comes_to_what_the_simulated_run_comes_to(
    api: ControlPlane, stage: Stage, ports: Ports
) -> None:
    simulated = play(DAMAGED, world=JudgedRun)
    plain = await staged(api, stage, ports, Schedule("plain", ()))
    same(plain, simulated)
    writes = drawn_from(plain.interrupter.written)
    schedules = drawn(Random(SEED), writes)
    limit = asyncio.Semaphore(AT_ONCE)

    async def judged(schedule: Schedule) -> int:
        async with limit:
            leaders = await staged(api, stage, ports, schedule)
        assert set(leaders.interrupter.met) == set(schedule.faults), (schedule, leaders.interrupter.met)
        same(leaders, simulated)
        return leaders.deleted_leases

    deleted = await asyncio.gather(*map(judged, schedules))
    print(
        f"{len(schedules)} schedules of {len(writes)} writes on real parts, drawn with seed {SEED}; the Lease was "
        f"deleted {sum(deleted)} times"
    )


async def test_the_world_after_one_that_died_is_started_once_by_whoever_leads(
    api: ControlPlane, stage: Stage, ports: Ports
) -> None:
    def fate(run: ScriptedRun) -> None:
        if run.worlds and run.world.number == 1 and run.world.step == 8:
            crash(run)

    simulated = play(HEALTHY, world=JudgedRun, on_tick=fate)
    chance = Random(f"{SEED}/worlds")
    second = [(name, 1) for name in ("append StartWorld Intent", "create ConfigMap", "create Service", "create Job")]
    schedules = [Schedule("world-frozen", (Fault("create Job", 1, "frozen"),), 3)] + [
        Schedule(f"world-{way}", (Fault(*chance.choice(second), way), Fault("append WorldLost", 0, way)))
        for way in ("after", chance.choice(("before", "lost", "denied")))
    ]
    played = [staged(api, stage, ports, schedule, HEALTHY, fate) for schedule in schedules]
    for schedule, leaders in zip(schedules, await asyncio.gather(*played), strict=True):
        assert set(leaders.interrupter.met) == set(schedule.faults)
        assert list(leaders.run.worlds) == [1, 2]
        same(leaders, simulated)
    print(f"{len(schedules)} schedules of a lost world on real parts, drawn with seed {SEED}")


# People and clocks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attended:
    """A schedule beside what people do, and the simulated run of what they do."""

    schedule: Schedule
    script: Script
    simulated: ScriptedRun

    @classmethod
    def drawn(cls, chance: Random, script: Script) -> "Attended":
        """One of the writes that follow soon upon the first deed is interrupted."""
        acting = Acting(script)
        simulated = play(script.scenario, world=JudgedRun, on_record=acting.hear, on_tick=acting.tick)
        names, before = writes_after(simulated, script.first)
        earlier = set(drawn_from(names[:before]))
        later = [one for one in drawn_from(names) if one not in earlier]
        fault = Fault(*chance.choice(later[:SOON]), chance.choice((*WAYS, "frozen")))
        return cls(Schedule(script.name, (fault,), chance.choice(SLEEPS)), script, simulated)


@pytest.mark.timeout(600)
async def test_what_people_do_in_an_incident_comes_to_the_same_whoever_dies_beside_it(
    api: ControlPlane, stage: Stage, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(f"{SEED}/people")
    clock = JumpingClock(monkeypatch)
    attended = [Attended.drawn(chance, script) for script in people(chance)]
    jumping = [Attended.drawn(chance, script) for script in clocks(chance, clock.jump)]
    limit = asyncio.Semaphore(AT_ONCE)

    async def judged(one: Attended) -> StagedRun:
        async with limit:
            acting = Acting(one.script)
            scenario = one.script.scenario
            leaders = await staged(api, stage, ports, one.schedule, scenario, acting.tick, acting.hear)
        assert set(leaders.interrupter.met) == set(one.schedule.faults), (one.schedule, leaders.interrupter.met)
        assert acting.over, one.script.name
        same(leaders, one.simulated)
        return leaders.run

    await asyncio.gather(*map(judged, attended))
    # A clock is everybody's: it jumps when nobody waits for a plan's approval, which has a deadline.
    for one in jumping:
        run = await judged(one)
        times = [datetime.fromisoformat(record.time) for record in run.announced]
        assert times != sorted(times) or times[-1] - times[0] > timedelta(seconds=PATIENCE_SECONDS), "no clock jumped"
    told = [(one.script.name, one.script.first, *one.schedule.faults[0]) for one in (*attended, *jumping)]
    print(f"{len(told)} schedules beside what people and clocks do on real parts, drawn with seed {SEED}: {told}")


@pytest.mark.timeout(600)
async def test_a_run_whose_job_is_deleted_in_an_incident_ends_once_whoever_leads(
    api: ControlPlane, stage: Stage, ports: Ports
) -> None:
    chance = Random(f"{SEED}/deleted")
    simulated = play(DAMAGED, world=JudgedRun)

    async def ended(way: str) -> None:
        schedule = Schedule(f"deleted-{way}", (Fault("append RunEnded", 0, way),), 3)
        acting = Acting(Script(way, DAMAGED, ((chance.choice(IN_INCIDENT), (deletes_job,)),)))
        leaders = await staged(api, stage, ports, schedule, DAMAGED, acting.tick, acting.hear)
        run = leaders.run
        assert set(leaders.interrupter.met) == set(schedule.faults)
        check(run)
        leaders.check()
        # One who read the job just before it was deleted may find its pods gone and start others.
        told = list(takewhile(lambda one: one[0] != JournalAction.WORLD_LOST, told_of(run)))
        assert told
        assert told == story(simulated)[: len(told)]
        assert [record.action for record in run.announced].count(JournalAction.RUN_ENDED) == 1
        assert run.announced[-1].action == JournalAction.RUN_ENDED

    # A reply that was lost is what may write the end twice.
    ways = ["lost", chance.choice(("before", "after", "denied", "undone", "frozen"))]
    for way in ways:  # one after the other: an operator at its start ends whatever run has lost its job
        await ended(way)
    print(f"{len(ways)} schedules of a deleted TrainingJob on real parts, drawn with seed {SEED}: {ways}")


class JumpingClock:
    """The wall clock of everything in this process that writes into journals."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        ahead = self._ahead = [0.0]

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
                return datetime.now(tz) + timedelta(seconds=ahead[0])

        patch.setattr("trimtab_operator.journal.datetime", Shifted)

    def jump(self, seconds: float) -> Callable[[ScriptedRun], None]:
        """Somebody sets the clock; a simulated run has one of its own, which nobody sets."""

        def set_clock(run: ScriptedRun) -> None:
            if isinstance(run, StagedRun):
                self._ahead[0] += seconds

        return set_clock


def told_of(run: StagedRun) -> list[tuple[str, str, str]]:
    """The story of a run, under the name of the simulated one."""
    return [(action, phase, name.replace(f"{run.id.name}-", f"{RUN.name}-", 1)) for action, phase, name in story(run)]


def same(leaders: Leaders, simulated: ScriptedRun) -> None:
    """The same incident as in the simulation, and no invariant broken on the way."""
    run = leaders.run
    check(run)
    leaders.check()
    assert run.state.phase is RunPhase.COMPLETED
    assert told_of(run) == story(simulated)
    assert essence(run) == essence(simulated)
    assert surviving_windows(run) == surviving_windows(simulated)
    answered = [(one.action, one.state) for one in run.state.requests]
    assert answered == [(one.action, one.state) for one in simulated.state.requests]


# The checker itself --------------------------------------------------------------------------------------------------


class ActsBeforeItsIntent:
    """Publishes a directive first and writes its intent down afterwards."""

    def __init__(self, bus: Bus, journal: JournalStore) -> None:
        self._bus, self._journal = bus, journal

    def __getattr__(self, name: str) -> Any:
        """All else as it is."""
        return getattr(self._journal, name)

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        """The effect, and then the record."""
        record = parse_record(body)
        if record.phase is Phase.INTENT and "directive" in (record.after or {}):
            await self._bus.publish(run, directive_of((record.after or {})["directive"]))
        return await self._journal.append(run, seq, body)


async def test_an_operator_that_acts_before_its_intent_is_caught_on_real_parts(
    api: ControlPlane, stage: Stage, ports: Ports
) -> None:
    schedule = Schedule("naive-order", (Fault("append Directive Intent", 0, "before"),))
    leaders = await staged(api, stage, ports, schedule, naive=ActsBeforeItsIntent)
    with pytest.raises(AssertionError, match="without an earlier intent"):
        check(leaders.run)
