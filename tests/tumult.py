"""Everything outside the operator on a bad day: late reads, lost and repeated words, clocks that jump, outages.

What happens is drawn from a seeded source before the run begins, so a run can be played again.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from random import Random
from typing import Any

import msgspec
from forks import rebound
from played_trainer import PlayedWorld, Scenario
from scripted_operator import ScriptedOperator, now
from scripted_world import Killed, ScriptedRun
from trimtab_contract.directives import AckState, Reason
from trimtab_operator.commands import Draft
from trimtab_operator.errors import BusUnavailable, ClusterUnavailable, Fenced, OperatorError, StoreUnavailable
from trimtab_operator.observation import Acks, Observation, Pods, PodsState
from trimtab_operator.run_state import JournalAction, RunState

LAST_EVENT = 70
"""Nothing happens after this tick: then the run must come to its end."""
SERVICES: tuple[type[OperatorError], ...] = (StoreUnavailable, BusUnavailable, ClusterUnavailable)


class BadDay(ScriptedRun):
    """A run to which the events of a tick happen."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.skew = 0
        self.away_until: dict[type[OperatorError], int] = {}
        self.late_until = 0
        self.deleted: set[int] = set()
        self.loses = False
        self.republish_at: set[int] = set()
        self.policy_gone = False
        self.job_gone = False
        self.lease = 0
        """How often the Lease changed hands since somebody made it, which is all that it knows of earlier leaders."""
        self.term = 0
        """How often it changed hands or was deleted at all."""
        self._shown: dict[int, Pods] = {}

    def clock(self) -> str:
        """Wall time, wherever somebody set it."""
        return (datetime.fromisoformat(super().clock()) + timedelta(seconds=self.skew)).isoformat()

    def refuses(self, away: type[OperatorError]) -> bool:
        """During an outage."""
        return self.ticks < self.away_until.get(away, 0)

    def pods(self, state: RunState) -> Pods:
        """As the API server shows them; a late read shows what an earlier one of the same world showed.

        Never from before an own write: pods are listed without a resource version, which reads the newest.
        """
        pods = super().pods(state)
        if pods.world in self.deleted and pods.state is PodsState.GONE:
            pods = Pods(world=pods.world)
        if self.ticks < self.late_until and pods.world in self._shown:
            return self._shown[pods.world]
        if pods.state is not PodsState.ABSENT:
            self._shown[pods.world] = pods
        return pods

    def observe(self, state: RunState, acks: Acks, pods: Pods) -> Observation:
        """A policy that is gone judges on as it was accepted last; without any, the run waits for one."""
        seen = super().observe(state, acks, pods)
        if not self.policy_gone:
            return seen
        if not state.guards or seen.guard is None:
            return replace(seen, guard=None, blocked=("GuardPolicy lab/guard does not exist",))
        return replace(seen, guard=msgspec.structs.replace(seen.guard, policies=state.guards[-1].policies))

    def take_lease(self) -> tuple[int, int]:
        """Another operator leads: the epoch that the Lease tells it, and its term."""
        self.lease += 1
        self.term += 1
        return self.lease, self.term

    def end_pods(self, world: int) -> None:
        """From here on a read shows that they end."""
        super().end_pods(world)
        self._shown.pop(world, None)

    def tick(self) -> None:
        """Time passes; worlds say their state again from time to time."""
        super().tick()
        if self.ticks not in self.republish_at:
            return
        for world in self.worlds.values():
            if world.alive and world.directive is not None:
                own = [one.reference for one in self.saved.values() if one.attempt == world.attempt]
                state, fields = world.said
                said: dict[str, Any] = {**fields, "recent": tuple(own[-8:])}
                self.acked(world, state, **said)

    def acked(
        self, world: PlayedWorld, state: AckState, *, order: tuple[int, int] | None = None, **fields: Any
    ) -> None:
        """A word on its way, which may be lost; a trainer repeats its state and what it saved."""
        if self.loses:
            self.loses = False
            self.republish_at.add(self.ticks + 2)
            return
        super().acked(world, state, order=order, **fields)

    # What happens -----------------------------------------------------------------------------------------------------

    def repeat_word(self, chance: Random) -> None:
        """An ack is delivered again, late, as if the world were back where it was; it says its state again later."""
        if self.acks:
            self.acks.append(chance.choice(self.acks[-6:]))
            self.republish_at.add(self.ticks + 2)

    def lose_word(self, _chance: Random) -> None:
        """The next ack never arrives; the world says its state again later."""
        self.loses = True

    def set_clock(self, chance: Random) -> None:
        """The wall clock jumps, forth or back."""
        self.skew = chance.choice((-7200, -60, 60, 7200))

    def go_away(self, chance: Random) -> None:
        """S3, Redis or the API server refuses for a while."""
        self.away_until[chance.choice(SERVICES)] = self.ticks + chance.randint(1, 6)

    def read_late(self, chance: Random) -> None:
        """What is read of pods is old for a while."""
        self.late_until = self.ticks + chance.randint(1, 4)

    def edit_job(self, _chance: Random) -> None:
        """A person edits the job."""
        self.generation += 1

    def edit_policy(self, _chance: Random) -> None:
        """A person edits the policy."""
        self.policy_generation += 1

    def delete_policy(self, _chance: Random) -> None:
        """A person deletes the policy."""
        self.policy_gone = True

    def make_policy(self, _chance: Random) -> None:
        """A person makes it anew."""
        self.policy_gone, self.policy_generation = False, self.policy_generation + 1

    def delete_lease(self, _chance: Random) -> None:
        """A person deletes the Lease: who led ends, and the next one finds none."""
        self.lease, self.term = 0, self.term + 1

    def delete_run(self, _chance: Random) -> None:
        """A person deletes the TrainingJob: the garbage collector ends its pods."""
        self.job_gone = True
        for world in self.worlds.values():
            if world.alive:
                world.die(Reason.CRASHED)

    def toggle_suspend(self, _chance: Random) -> None:
        """A person suspends the run, or lets it go on."""
        self.suspend = not self.suspend

    def delete_job(self, _chance: Random) -> None:
        """A person deletes the Job: its pods are gone without a word."""
        if self.worlds and self.world.alive:
            self.world.die(Reason.CRASHED)
            self.world.message = None
            self.deleted.add(self.world.number)


Event = Callable[[BadDay, Random], None]
UNHEARD: tuple[Event, ...] = (BadDay.repeat_word, BadDay.lose_word)
CLOCKS: tuple[Event, ...] = (BadDay.set_clock,)
OUTAGES: tuple[Event, ...] = (BadDay.go_away,)
LEASES: tuple[Event, ...] = (BadDay.delete_lease,)
LATE: tuple[Event, ...] = (BadDay.read_late, BadDay.delete_job)
PEOPLE: tuple[Event, ...] = (
    BadDay.edit_job,
    BadDay.edit_policy,
    BadDay.delete_policy,
    BadDay.make_policy,
    BadDay.toggle_suspend,
    BadDay.delete_job,
)


class LeasedOperator(ScriptedOperator):
    """Leads as long as the Lease is its own, and writes the last record of a run whose TrainingJob is gone."""

    def __init__(self, run: ScriptedRun) -> None:
        super().__init__(run)
        assert isinstance(run, BadDay)
        self._day = run
        self.lease_epoch, self._term = run.take_lease()

    def turn(self) -> None:
        """See `ScriptedOperator.turn`."""
        if self._day.term != self._term:
            message = "the Lease was deleted by somebody"
            raise Fenced(message)
        if self.opened or not self._ended:  # who finds a run with its last record does not even take it over
            super().turn()

    @property
    def _ended(self) -> bool:
        told = self.run.announced
        return self._day.job_gone and bool(told) and told[-1].action == JournalAction.RUN_ENDED

    def lead(self) -> None:
        """See `ScriptedOperator.lead`."""
        if not self._day.job_gone:
            super().lead()
            return
        self.settle()
        if not self._ended:
            identity = f"run/{JournalAction.RUN_ENDED}"
            now(self.journal.append(Draft(action=JournalAction.RUN_ENDED, id=identity, outcome="Deleted")))


def happening(events: tuple[Event, ...], chance: Random, most: int = 6) -> Callable[[ScriptedRun], None]:
    """Up to `most` events at ticks drawn now."""
    drawn = [(chance.randrange(1, LAST_EVENT), chance.choice(events)) for _ in range(chance.randint(1, most))]

    def happen(run: ScriptedRun) -> None:
        assert isinstance(run, BadDay)
        for tick, event in drawn:
            if tick == run.ticks:
                event(run, chance)
        if run.ticks == LAST_EVENT:
            run.suspend = run.policy_gone = False

    return happen


class FrozenLeader:
    """A leader freezes with an act under way; another one takes over; the first wakes and goes on as if nothing was."""

    def __init__(self, run: ScriptedRun, operator: Callable[[ScriptedRun], ScriptedOperator]) -> None:
        self.run, self.leader, self._operator = run, operator(run), operator
        self._old: ScriptedOperator | None = None
        self._wakes_at = -1
        self._quiet = 0

    @property
    def over(self) -> bool:
        """Whether nothing happens any more."""
        return self.run.ticks >= 400 or self._quiet >= 12

    def fork(self) -> "FrozenLeader":
        """The same, before anybody froze, to be continued in another way."""
        assert self._old is None
        run = self.run.fork()
        return rebound(self, run=run, leader=self.leader.fork(run))

    def step(self, sleeps: int = 0) -> None:
        """One turn of who leads, and time passes; who freezes in it wakes after so many ticks."""
        run = self.run
        before = (len(run.store.bodies), len(run.records), len(run.acks))
        try:
            self.leader.turn()
        except Killed:
            self._old, self._wakes_at, self.leader = self.leader, run.ticks + sleeps, self._operator(run)
            self.leader.turn()
        if self._old is not None and run.ticks >= self._wakes_at:
            self._old = _wake(run, self._old)
        run.tick()
        same = before == (len(run.store.bodies), len(run.records), len(run.acks))
        self._quiet = self._quiet + 1 if same and (self._old is None or self._wakes_at < run.ticks) else 0


def with_a_frozen_leader(
    scenario: Scenario,
    sleeps: tuple[int, ...],
    operator: Callable[[ScriptedRun], ScriptedOperator] = ScriptedOperator,
) -> Iterator[tuple[int, int, ScriptedRun]]:
    """For every act and each sleep the run whose leader freezes in it: (number of the act, ticks, the run at its end).

    What comes before the act is played once.
    """
    playing = FrozenLeader(ScriptedRun(scenario), operator)
    while not playing.over:
        before, first = playing.fork(), playing.run.operations
        playing.step()
        for number, ticks in product(range(first, playing.run.operations), sleeps):
            frozen = before.fork()
            frozen.run.kills = frozenset({(number, "frozen")})
            frozen.step(ticks)
            while not frozen.over:
                frozen.step()
            yield number, ticks, frozen.run


def _wake(run: ScriptedRun, old: ScriptedOperator) -> ScriptedOperator | None:
    """The old leader does what it was about to do, and then its turns, until it learns that it leads no more."""
    while run.under_way:
        run.under_way.pop()()
    if not old.opened:
        return None  # it would take the run over again, and has no Lease to do it under
    try:
        old.turn()
    except Fenced:
        return None
    return old


def patient(scenario: Scenario) -> Scenario:
    """The scenario with a budget that bad days do not spend."""
    return replace(scenario, max_restarts=99)
