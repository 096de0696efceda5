"""What may happen to a scripted run from outside, and how to ask what was written and done."""

from collections.abc import Callable

from played_trainer import Scenario
from run_checks import check, surviving_windows
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Directive, Reason, decode
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.run_state import RunPhase, RunState

DAMAGED = Scenario(damaged=frozenset(range(24, 30)))
SKIPPED = set(range(23, 32))


def actions(run: ScriptedRun, *only: str) -> list[str]:
    """The actions of the journal in order, results left out."""
    return [one.action for one in run.announced if one.phase is not Phase.RESULT and (not only or one.action in only)]


def records(run: ScriptedRun, action: str) -> list[JournalRecord]:
    return [one for one in run.announced if one.action == action and one.phase is not Phase.RESULT]


def number_of(scenario: Scenario, action: str, phase: Phase | None = None) -> int:
    """The number of the act that first writes such a record in a run that nothing interrupts."""
    numbers: list[int] = []

    def look(run: ScriptedRun, record: JournalRecord) -> None:
        if (record.action, record.phase) == (action, phase):
            numbers.append(run.operations - 1)

    play(scenario, on_record=look)
    return numbers[0]


def at(events: dict[int, Callable[[ScriptedRun], None]]) -> Callable[[ScriptedRun], None]:
    """Things that happen at a tick."""
    return lambda run: events.get(run.ticks, lambda _run: None)(run)


def crash(run: ScriptedRun) -> None:
    if run.world.alive:
        run.world.die(Reason.PEER_LOST)


def drain(run: ScriptedRun) -> None:
    if run.world.alive:
        run.world.terminate()


def hang(run: ScriptedRun) -> None:
    run.world.hung = True


def last_directive(run: ScriptedRun) -> Directive:
    assert run.bus is not None
    return decode(Directive, run.bus)


def finished_healthy(run: ScriptedRun) -> RunState:
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert surviving_windows(run) == list(range(run.scenario.steps))
    assert not run.living
    return state
