"""Everything outside the operator on a bad day: late reads, lost and repeated words, clocks that jump, outages.

What happens is drawn from a seeded source before the run begins, so a run can be played again.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from played_trainer import PlayedWorld, Scenario
from scripted_operator import ScriptedOperator
from scripted_world import Killed, ScriptedRun
from trimtab_contract.directives import AckState, Reason
from trimtab_operator.errors import BusUnavailable, ClusterUnavailable, Fenced, OperatorError, StoreUnavailable
from trimtab_operator.observation import Pods, PodsState
from trimtab_operator.run_state import RunState

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
LATE: tuple[Event, ...] = (BadDay.read_late, BadDay.delete_job)
PEOPLE: tuple[Event, ...] = (BadDay.edit_job, BadDay.edit_policy, BadDay.toggle_suspend, BadDay.delete_job)


def happening(events: tuple[Event, ...], chance: Random, most: int = 6) -> Callable[[ScriptedRun], None]:
    """Up to `most` events at ticks drawn now."""
    drawn = [(chance.randrange(1, LAST_EVENT), chance.choice(events)) for _ in range(chance.randint(1, most))]

    def happen(run: ScriptedRun) -> None:
        assert isinstance(run, BadDay)
        for tick, event in drawn:
            if tick == run.ticks:
                event(run, chance)
        if run.ticks == LAST_EVENT:
            run.suspend = False

    return happen


def with_a_frozen_leader(
    scenario: Scenario,
    frozen_at: int,
    sleeps: int,
    operator: Callable[[ScriptedRun], ScriptedOperator] = ScriptedOperator,
) -> ScriptedRun:
    """A leader freezes with an act under way; another one takes over; the first wakes and goes on as if nothing was."""
    run = ScriptedRun(scenario)
    run.kills = frozenset({(frozen_at, "frozen")})
    leader, old, wakes_at, quiet = operator(run), None, -1, 0
    while run.ticks < 400 and quiet < 12:
        before = (len(run.store.bodies), len(run.records), len(run.acks))
        try:
            leader.turn()
        except Killed:
            old, wakes_at, leader = leader, run.ticks + sleeps, operator(run)
            leader.turn()
        if old is not None and run.ticks >= wakes_at:
            old = _wake(run, old)
        run.tick()
        same = before == (len(run.store.bodies), len(run.records), len(run.acks))
        quiet = quiet + 1 if same and (old is None or wakes_at < run.ticks) else 0
    return run


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
