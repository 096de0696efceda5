"""One operator process over a run in memory, in the order of the reconciler: settle, observe, advance, journal, act.

It can be killed before and after every append and every effect, or lose the reply of an append.
"""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from played_trainer import RUN, Scenario
from scripted_world import Killed, ScriptedRun
from trimtab_contract.directives import Directive, decode
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.commands import Append, Command, Draft
from trimtab_operator.errors import Conflict, StoreUnavailable
from trimtab_operator.journal import Identity, RunJournal
from trimtab_operator.observation import Acks, Observation
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import JournalAction, PendingEffect, RunState

COMMANDS_PER_TURN = 60
"""No turn needs more; a state machine that never comes to rest is a defect."""

_T = TypeVar("_T")


def now(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("something waited")


class ScriptedOperator:
    """One operator process; what it knows dies with it."""

    def __init__(self, run: ScriptedRun) -> None:
        self.run = run
        identity = Identity(service_account="operator", pod="p", pod_uid="u", image="i")
        self.journal = RunJournal(run.store, RUN, identity, now=run.clock)
        self.opened = False
        self._acks = Acks()
        self._read = 0

    def turn(self) -> None:
        """Do all that can be done now; a temporary failure ends the turn, the next one goes on."""
        try:
            if not self.opened:
                now(self.journal.take_over(0))
                self.opened = True
            self._keep_directive()
            self.settle()
            self._drive()
        except (Conflict, StoreUnavailable):
            return

    def _keep_directive(self) -> None:
        """The directive in force under this operator's epoch, as the reconciler publishes it again."""
        state = self.journal.state
        if state.directive is None or state.pending is not None:
            return
        if self.run.bus is None or decode(Directive, self.run.bus).order < state.directive.order:
            self.run.publish(state.directive)

    def _drive(self) -> None:
        command, pods = None, self.run.pods(self.journal.state)
        for _ in range(COMMANDS_PER_TURN):
            for ack in self.run.acks[self._read :]:
                self._read += 1
                self._acks = self._acks.hear(f"{self._read}-0", ack, self.journal.state)
            command = self.decide(self.journal.state, self.run.observe(self.journal.state, self._acks, pods))
            if command is None:
                return
            if isinstance(command, Append):
                self.append(command)
            else:
                self.perform(command.effect)
                self.finish(command.effect)
                pods = self.run.pods(self.journal.state)
        raise AssertionError(f"no rest after {COMMANDS_PER_TURN} commands; the last was {command}")

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
        directive = self.journal.state.directive
        assert directive is not None
        if effect.action is JournalAction.END_WORLD:
            self.run.end_pods(int(effect.after["world"]))
            return
        self.run.publish(directive)
        if effect.action is JournalAction.START_WORLD:
            self.run.create_job(directive.world, directive.attempt)

    def finish(self, effect: PendingEffect) -> None:
        """The result of an effect."""
        now(
            self.journal.append(
                Draft(action=effect.action, phase=Phase.RESULT, id=effect.id, incident=effect.incident, outcome="done")
            )
        )


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
    """Play a run until it rests for good: ended with its pods, or nothing changed for a while after `at_least`."""
    run = world(scenario)
    run.kills = frozenset(kills)
    if on_record is not None:
        run.on_record = lambda record: on_record(run, record)
    process = operator(run)
    quiet = 0
    while run.ticks < ticks and quiet < 12:
        before = (len(run.store.bodies), len(run.records), len(run.acks))
        try:
            process.turn()
        except Killed:
            process = operator(run)
            for _ in range(scenario.downtime):
                _pass(run, on_tick)
        _pass(run, on_tick)
        quiet = (
            quiet + 1
            if run.ticks > at_least and before == (len(run.store.bodies), len(run.records), len(run.acks))
            else 0
        )
        if process.journal.state.ended and process.journal.state.pending is None and not run.living:
            break
    return run


def _pass(run: ScriptedRun, on_tick: Callable[[ScriptedRun], None] | None) -> None:
    run.tick()
    if on_tick is not None:
        on_tick(run)
