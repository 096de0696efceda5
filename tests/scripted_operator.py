"""One operator process over a run in memory, in the order of the reconciler: settle, observe, advance, journal, act.

It can be killed before and after every append and every effect, lose their replies, or be told that they failed.
"""

from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from forks import rebound
from played_trainer import RUN, Scenario
from scripted_acts import Killed
from scripted_objects import MemoryAnchors, MemoryLease
from scripted_ports import surroundings
from scripted_world import ScriptedRun
from trimtab_contract.directives import Directive, decode
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.adapters.lease import LeaderLease
from trimtab_operator.adapters.ports import Cluster
from trimtab_operator.anchors import AnchorKeeper
from trimtab_operator.commands import Append, Command, Draft
from trimtab_operator.effects import perform, publish
from trimtab_operator.errors import Conflict, Fenced, JournalBroken, OperatorError, TemporaryError
from trimtab_operator.journal import Identity, RunJournal
from trimtab_operator.observation import Acks, Observation
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import JournalAction, PendingEffect, RunPhase, RunState

COMMANDS_PER_TURN = 60
"""No turn needs more; a state machine that never comes to rest is a defect."""

IDENTITY = Identity(service_account="operator", pod="p", pod_uid="u", image="i")
NOTHING_HEARD = Acks()
LEASE_SECONDS = 100
TIMER_SECONDS = 20.0
"""So much time passes for a process where its run enters another phase: its Lease is renewed, and its anchor is due."""
ENDS = frozenset({JournalAction.INCIDENT_CLOSED, JournalAction.COMPLETED})

_T = TypeVar("_T")


def _ends(work: Coroutine[Any, Any, object]) -> bool:
    """Run a coroutine up to where it would wait; whether it came to its end."""
    try:
        work.send(None)
    except StopIteration:
        return True
    work.close()
    return False


def now(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("something waited")


class ProcessClock:
    """The monotonic clock of a process. It passes quickly while the process waits for the Lease of a dead one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits = True

    def __call__(self) -> float:
        """Seconds."""
        self.seconds += LEASE_SECONDS if self.waits else 0.0
        return self.seconds


class ScriptedOperator:
    """One operator process; what it knows dies with it.

    Its timers fire where the run enters another phase, so that they follow from where the run stands, and as long as
    its Lease has run out.
    """

    goes_on = False
    """Whether it goes on in the same turn behind an act that failed, as if nothing was: then it is wrong."""

    def __init__(self, run: ScriptedRun) -> None:
        self.run = run
        self.journal = RunJournal(run.store, RUN, IDENTITY, now=run.clock)
        self.clock = ProcessClock()
        self.lease = LeaderLease(
            MemoryLease(run), "lab", "operator", "p", duration_seconds=LEASE_SECONDS, pause_seconds=0, clock=self.clock
        )
        self.anchors = AnchorKeeper(cast("Cluster", MemoryAnchors(run)), RUN, None, timeout=nullcontext)
        self.opened = False
        self.acks = NOTHING_HEARD
        self.read = 0
        self.phase: RunPhase | None = None
        """That in which the timers fired last."""
        self.due = False
        """Whether they fire in this turn."""

    @property
    def besides(self) -> tuple[object, ...]:
        """What it decides by besides the fold of the journal and what it heard: nothing, unless it is wrong."""
        return ()

    def fork(self, run: ScriptedRun) -> "ScriptedOperator":
        """The same process beside a fork of its run."""
        clock = copy(self.clock)
        return rebound(
            self,
            run=run,
            clock=clock,
            journal=rebound(self.journal, _store=run.store, _now=run.clock),
            lease=rebound(self.lease, _store=MemoryLease(run), _clock=clock),
            anchors=rebound(self.anchors, _cluster=MemoryAnchors(run)),
        )

    def turn(self) -> None:
        """Do all that can be done now; a failure ends the turn, the next one goes on, as the supervisor has it."""
        self.due = self.opened and (self.phase is not self.journal.state.phase or not self.lease.valid())
        self.phase = self.journal.state.phase
        try:
            if self.leads():
                self.open()
                self.lead()
        except (Fenced, JournalBroken):
            raise
        except OperatorError:
            pass
        if self.due:
            self.renew()

    def leads(self) -> bool:
        """Whether the Lease is this process's now; the first time it takes it from whoever is dead."""
        if self.clock.waits:
            self.clock.waits = not _ends(self.lease.acquire())
        return not self.clock.waits and self.lease.valid()

    def open(self) -> None:
        """Take the run over, once, and keep its anchor, which is due when the timers fire."""
        if not self.opened:
            now(self.journal.take_over(self.lease.epoch, *now(self.anchors.vouchers())))
            self.opened, self.phase = True, self.journal.state.phase
        now(self.anchors.keep(self.clock.seconds, self.journal.state))
        if self.due:
            self.clock.seconds += TIMER_SECONDS
            now(self.anchors.keep(self.clock.seconds, self.journal.state))

    def renew(self) -> None:
        """What runs beside the reconcilers; raises Fenced where the Lease is somebody else's."""
        try:
            now(self.lease.renew())
        except TemporaryError:
            return

    def lead(self) -> None:
        """Keep the directive in force, and do what is to be done."""
        self._keep_directive()
        self.settle()
        self._drive()

    def _keep_directive(self) -> None:
        """The directive in force under this operator's epoch, as the reconciler publishes it again."""
        state = self.journal.state
        if state.directive is None or state.pending is not None:
            return
        if self.run.bus is None or decode(Directive, self.run.bus).order < state.directive.order:
            now(publish(surroundings(self.run, state, self.lease).bus, RUN, state.directive))

    def _drive(self) -> None:
        command, pods = None, self.run.pods(self.journal.state)
        for _ in range(COMMANDS_PER_TURN):
            for ack in self.run.acks[self.read :]:
                self.read += 1
                self.acks = self.acks.hear(f"{self.read}-0", ack, self.journal.state)
            command = self.decide(self.journal.state, self.run.observe(self.journal.state, self.acks, pods))
            if command is None:
                return
            self._check_lease()
            if isinstance(command, Append):
                if command.draft.action in ENDS and not now(self.anchors.write(self.journal.state)):
                    return
                self.append(command)
            else:
                self.perform(command.effect)
                self.finish(command.effect)
                pods = self.run.pods(self.journal.state)
        raise AssertionError(f"no rest after {COMMANDS_PER_TURN} commands; the last was {command}")

    def _check_lease(self) -> None:
        if not self.lease.valid():
            message = "the Lease has run out"
            raise Conflict(message)

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        """Ask the state machine."""
        return advance(state, observation)

    def settle(self) -> None:
        """What became of an append whose reply was lost?"""
        now(self.journal.settle())

    def append(self, command: Append) -> None:
        """Write a record."""
        now(self.journal.append(command.draft))

    def perform(self, effect: PendingEffect) -> None:
        """Carry an effect out."""
        state = self.journal.state
        now(perform(effect, state, surroundings(self.run, state, self.lease)))

    def finish(self, effect: PendingEffect) -> None:
        """The result of an effect."""
        now(
            self.journal.append(
                Draft(action=effect.action, phase=Phase.RESULT, id=effect.id, incident=effect.incident, outcome="done")
            )
        )


@dataclass
class Playing:
    """A run that is being played: its outside, the operator that leads it, and for how long nothing has changed."""

    run: ScriptedRun
    process: ScriptedOperator
    start: Callable[[ScriptedRun], ScriptedOperator]
    on_tick: Callable[[ScriptedRun], None] | None = None
    at_least: int = 0
    ticks: int = 600
    quiet: int = 0

    @property
    def over(self) -> bool:
        """Whether the run rests for good: ended with its pods, or nothing has changed for a while."""
        state = self.process.journal.state
        ended = state.ended and state.pending is None and not self.run.living and self.run.ticks > 0
        return ended or self.quiet >= 12 or self.run.ticks >= self.ticks

    def fork(self) -> "Playing":
        """The same run, to be continued in another way."""
        run = self.run.fork()
        return rebound(self, run=run, process=self.process.fork(run))

    def step(self) -> None:
        """One turn of the operator, and time passes; one that dies or is fenced is followed by another."""
        run = self.run
        before = _size(run)
        try:
            self.process.turn()
        except (Killed, Fenced):
            self._succeed()
        self._end_turn(before)

    def died(self, run: ScriptedRun) -> "Playing":
        """What follows when the operator dies in the turn that begins here, and leaves the run as it is in `run`."""
        branch = rebound(self, run=run)
        branch._succeed()
        branch._end_turn(_size(self.run))
        return branch

    def failed(self, process: ScriptedOperator) -> "Playing":
        """What follows when an act of the turn that begins here fails, behind which `process` does nothing more."""
        branch = rebound(self, run=process.run, process=process)
        branch._end_turn(_size(self.run))
        return branch

    def _succeed(self) -> None:
        self.process = self.start(self.run)
        for _ in range(self.run.scenario.downtime):
            self._pass()

    def _end_turn(self, before: tuple[int, ...]) -> None:
        self._pass()
        self.quiet = self.quiet + 1 if self.run.ticks > self.at_least and before == _size(self.run) else 0

    def _pass(self) -> None:
        self.run.tick()
        if self.on_tick is not None:
            self.on_tick(self.run)


def _size(run: ScriptedRun) -> tuple[int, ...]:
    return (len(run.store.bodies), len(run.records), len(run.acks))


def play(
    scenario: Scenario,
    *,
    kills: Iterable[tuple[int, str]] = (),
    on_record: Callable[[ScriptedRun, JournalRecord], None] | None = None,
    on_tick: Callable[[ScriptedRun], None] | None = None,
    operator: Callable[[ScriptedRun], ScriptedOperator] = ScriptedOperator,
    world: Callable[[Scenario], ScriptedRun] = ScriptedRun,
    at_least: int = 0,
    ticks: int = 600,
) -> ScriptedRun:
    """Play a run until it rests for good, but for `at_least` ticks."""
    run = world(scenario)
    run.kills = frozenset(kills)
    if on_record is not None:
        run.on_record = lambda record: on_record(run, record)
    playing = Playing(run, operator(run), operator, on_tick, at_least, ticks)
    while not playing.over:
        playing.step()
    return run
