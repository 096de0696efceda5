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
from scripted_acts import Killed
from scripted_operator import TIMER_SECONDS, ScriptedOperator, now
from scripted_world import ScriptedRun
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
        self.asleep_until = 0
        self.withdrawn: set[str] = set()
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
        seen = replace(seen, requests=tuple(one for one in seen.requests if one.uid not in self.withdrawn))
        if not self.policy_gone:
            return seen
        if not state.guards or seen.guard is None:
            return replace(seen, guard=None, blocked=("GuardPolicy lab/guard does not exist",))
        return replace(seen, guard=msgspec.structs.replace(seen.guard, policies=state.guards[-1].policies))

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
        """A person deletes the Lease: who leads ends with its next renewal, and the next one finds none."""
        self.lease_object = None

    def delete_anchor(self, _chance: Random) -> None:
        """A person deletes the JournalAnchor."""
        self.anchor_object = None

    def delete_requests(self, _chance: Random) -> None:
        """A person deletes the RunRequests that were answered."""
        self.withdrawn.update(one.uid for one in self.state.requests)

    def delete_objects(self, _chance: Random) -> None:
        """A person deletes the Secret, the ConfigMaps and the Services of the run."""
        self.made = {one for one in self.made if one[0] == "user"}

    def fall_asleep(self, chance: Random) -> None:
        """The machine of whoever leads is suspended for a while; its clock goes on."""
        self.asleep_until = self.ticks + chance.randint(1, 9)

    def forget(self, _chance: Random) -> None:
        """Redis comes back empty: no directive, no user."""
        self.bus = None
        self.made.discard(("user", ""))

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
OUTAGES: tuple[Event, ...] = (BadDay.go_away, BadDay.forget)
LEASES: tuple[Event, ...] = (BadDay.delete_lease, BadDay.fall_asleep)
LATE: tuple[Event, ...] = (BadDay.read_late, BadDay.delete_job)
PEOPLE: tuple[Event, ...] = (
    BadDay.edit_job,
    BadDay.edit_policy,
    BadDay.delete_policy,
    BadDay.make_policy,
    BadDay.toggle_suspend,
    BadDay.delete_job,
    BadDay.delete_anchor,
    BadDay.delete_requests,
    BadDay.delete_objects,
)


class EndingOperator(ScriptedOperator):
    """Writes the last record of a run whose TrainingJob is gone."""

    def __init__(self, run: ScriptedRun) -> None:
        super().__init__(run)
        assert isinstance(run, BadDay)
        self._day = run
        self._end_written = False

    def turn(self) -> None:
        """See `ScriptedOperator.turn`."""
        if self._day.ticks < self._day.asleep_until:
            self.clock.seconds += TIMER_SECONDS
        else:
            super().turn()

    def open(self) -> None:
        """See `ScriptedOperator.open`; who finds a run with its last record does not even take it over."""
        if self.opened or not self._ended:
            super().open()
            return
        now(self.journal.read_vouched(now(self.anchors.vouchers())))
        now(self.anchors.write(self.journal.state, ended=True))

    @property
    def _ended(self) -> bool:
        told = self.run.announced
        return self._day.job_gone and bool(told) and told[-1].action == JournalAction.RUN_ENDED

    def lead(self) -> None:
        """See `ScriptedOperator.lead`."""
        if not self._day.job_gone:
            super().lead()
            return
        if not self.opened:
            return
        settled = now(self.journal.settle())
        self._end_written |= settled is not None and settled.action == JournalAction.RUN_ENDED
        if not self._end_written:
            identity = f"run/{JournalAction.RUN_ENDED}"
            now(self.journal.append(Draft(action=JournalAction.RUN_ENDED, id=identity, outcome="Deleted")))
            self._end_written = True
        now(self.anchors.write(self.journal.state, ended=True))


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
    """A leader freezes with an act under way; another one takes over; the first wakes and goes on as if nothing was.

    `forgets`: then Redis is emptied, so that nothing there is above what the first would publish next.
    """

    def __init__(
        self, run: ScriptedRun, operator: Callable[[ScriptedRun], ScriptedOperator], *, forgets: bool = False
    ) -> None:
        self.run, self.leader, self._operator = run, operator(run), operator
        self._forgets = forgets
        self._old: ScriptedOperator | None = None
        self._wakes_at = -1
        self._sleeps = 0
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
            self._sleeps = sleeps
            self.leader.turn()
        if self._old is not None and run.ticks >= self._wakes_at:
            self._old = _wake(run, self._old, self._sleeps, forgets=self._forgets)
        run.tick()
        same = before == (len(run.store.bodies), len(run.records), len(run.acks))
        self._quiet = self._quiet + 1 if same and (self._old is None or self._wakes_at < run.ticks) else 0


def with_a_frozen_leader(
    scenario: Scenario,
    sleeps: tuple[int, ...],
    operator: Callable[[ScriptedRun], ScriptedOperator] = ScriptedOperator,
    *,
    forgets: bool = False,
) -> Iterator[tuple[int, int, ScriptedRun]]:
    """For every act and each sleep the run whose leader freezes in it: (number of the act, ticks, the run at its end).

    What comes before the act is played once. Who sleeps five ticks or more finds that its Lease has run out.
    """
    playing = FrozenLeader(ScriptedRun(scenario), operator, forgets=forgets)
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


def _wake(run: ScriptedRun, old: ScriptedOperator, slept: int, *, forgets: bool) -> ScriptedOperator | None:
    """The old leader does what it was about to do, and then its turns, until it learns that it leads no more.

    Its own clock went on while it slept, by the time between two renewals a tick.
    """
    old.clock.seconds += slept * TIMER_SECONDS
    while run.under_way:
        run.under_way.pop()()
    run.bus = None if forgets else run.bus
    if not old.opened:
        return None  # it would take the run over again, and has no Lease to do it under
    written, expired = (len(run.store.bodies), run.bus, run.anchor_object), not old.lease.valid()
    try:
        old.turn()
        old.renew()
    except Fenced:
        return None
    finally:
        if expired and written != (len(run.store.bodies), run.bus, run.anchor_object):
            run.violations.append("an old leader whose Lease had run out wrote something")
    return old


def patient(scenario: Scenario) -> Scenario:
    """The scenario with a budget that bad days do not spend."""
    return replace(scenario, max_restarts=99)
