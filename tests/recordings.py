"""The recorded incidents: what is kept, how the scripted ones are made, and how a changed decision is agreed to.

PYTHONPATH=tests .venv/bin/python -m recordings check            decide all again, and show what differs
PYTHONPATH=tests .venv/bin/python -m recordings accept           write down what DECISION_VERSION decides otherwise
PYTHONPATH=tests .venv/bin/python -m recordings record [NAME …]  play the scripted incidents anew
PYTHONPATH=tests .venv/bin/python -m recordings keep FILE NAME   keep the run of a file of `trimtab audit export`
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from incident_recorder import DecisionTap, Played, record
from judged_world import JudgedRun
from played_trainer import RUN, Scenario
from recording import AcceptedLine, Header, Recording, read_recording, write_recording
from redecision import redecide, table
from run_checks import check
from run_fates import DAMAGED, at, crash, hang
from scripted_operator import ScriptedOperator, play
from scripted_world import ScriptedRun
from trail_recording import trail_recording
from trimtab_cli.trail_file import unpack
from trimtab_contract.journal import JournalRecord
from trimtab_operator.commands import DECISION_VERSION, Command
from trimtab_operator.incidents import Wishes
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import AutomationHold, RunState

FOLDER = Path(__file__).parent / "recorded"
SCRIPTED = "the operator's state machine, judge and journal; trainer and pods are played"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m recordings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A scripted incident: what happens, beside the scenario, at ticks and behind records."""

    title: str
    scenario: Scenario
    mild: frozenset[int] = frozenset()
    slow_until: int = 0
    kills: tuple[tuple[int, str], ...] = ()
    on_record: Callable[[ScriptedRun, JournalRecord], None] | None = None
    on_tick: Callable[[ScriptedRun], None] | None = None
    at_least: int = 0
    ticks: int = 600
    refuses: bool = False
    """Whether the trainer refuses a directive."""


def _crash_in_the_hold(run: ScriptedRun, record: JournalRecord) -> None:
    if record.action == "IncidentOpened":
        crash(run)


def _edit(run: ScriptedRun) -> None:
    run.generation += 1


def _hold_automation(run: ScriptedRun) -> None:
    message = "3 runs failed within 300 s (a, b, c)"
    run.automation = AutomationHold(id="breaker-100", message=message, since=100.0, runs=("a", "b", "c"))


def _release_automation(run: ScriptedRun) -> None:
    run.automation = None


SCRIPTS: dict[str, Script] = {
    "loss-spike": Script(
        title="a loss spike: held, rolled back in place, its extent measured, skipped, and a probation passed",
        scenario=DAMAGED,
        mild=frozenset({33}),
    ),
    "non-finite": Script(
        title="a batch that stays non-finite: the world holds by itself, and the batch is skipped",
        scenario=Scenario(nonfinite=frozenset({(1, 23)})),
    ),
    "non-finite-glitch": Script(
        title="a batch that is non-finite once: transient, and nothing is skipped",
        scenario=Scenario(glitches=frozenset({(1, 23)})),
    ),
    "replica-mismatch": Script(
        title="replicas that differ: transient, and nothing is skipped", scenario=Scenario(mismatch=23)
    ),
    "relapse": Script(
        title="a state that was spoiled long before it showed: two relapses, each going further back",
        scenario=Scenario(latent=(12, 28), steps=40),
    ),
    "unrestorable-target": Script(
        title="a target that fails to restore: quarantined, and the next older one is taken",
        scenario=replace(DAMAGED, unrestorable=frozenset({20})),
    ),
    "pause-and-resume": Script(
        title="a pause that a person ends twice, for the rule breaches on",
        scenario=replace(DAMAGED, action="Pause", answers=(("Held", "Resume"), ("Held", "Resume"))),
    ),
    "world-lost-in-holding": Script(
        title="a world that crashes before it holds: the next one starts held on the target",
        scenario=DAMAGED,
        on_record=_crash_in_the_hold,
    ),
    "rollback-by-hand": Script(
        title="a person goes back before windows that are to be skipped, where no rule fired",
        scenario=Scenario(steps=30),
        on_tick=at({22: lambda run: run.ask("Rollback", wishes=Wishes(skip=(12, 13)))}),
        at_least=60,
    ),
    "skip-by-hand": Script(
        title="a person takes windows out ahead of a run that trains",
        scenario=Scenario(steps=30),
        on_tick=at({8: lambda run: run.ask("Skip", wishes=Wishes(skip=(20, 22)))}),
        at_least=60,
    ),
    "approved-plan": Script(
        title="a plan that waits until a person approves it",
        scenario=replace(DAMAGED, approval=50, answers=(("TargetSelected", "Approve"),)),
    ),
    "unanswered-plan": Script(
        title="a plan that nobody approves in time",
        scenario=replace(DAMAGED, approval=50),
        at_least=120,
    ),
    "control-bad": Script(
        title="a restored state on which the control is bad, too: quarantined, and an older one is taken",
        scenario=replace(DAMAGED, control_bad=frozenset({20})),
    ),
    "world-crashed": Script(
        title="a world that crashes: the next one starts from the newest checkpoint",
        scenario=Scenario(steps=30),
        on_tick=at({20: crash}),
    ),
    "world-hung": Script(
        title="a world that hangs: it is ended, and the next one starts from the newest checkpoint",
        scenario=Scenario(steps=30),
        on_tick=at({20: hang}),
    ),
    "restarts-spent": Script(
        title="a world that crashes again and again: the run fails, and goes on when its job is edited",
        scenario=Scenario(steps=20, max_restarts=1),
        on_tick=at({8: crash, 16: crash, 30: _edit}),
        at_least=40,
    ),
    "automation-held": Script(
        title="a breaker over all runs that opens before the plan, and closes",
        scenario=DAMAGED,
        on_tick=at({1: _hold_automation, 60: _release_automation}),
        at_least=70,
    ),
    "probation-extended": Script(
        title="a run that is slow behind its rollback: its probation is made longer twice",
        scenario=DAMAGED,
        slow_until=33,
    ),
    "refused-skip": Script(
        title="a trainer that refuses the skip: a person is asked",
        scenario=replace(DAMAGED, refuses_skips=True),
        refuses=True,
    ),
    "stopped": Script(title="a rule that stops the run", scenario=replace(DAMAGED, action="Stop")),
    "operator-killed": Script(
        title="an operator that dies around its writes, and others that go on from the journal",
        scenario=DAMAGED,
        kills=((20, "after"), (31, "before"), (44, "lost")),
    ),
}


def play_script(name: str) -> Recording:
    """Play a scripted incident and record it."""
    script, tap = SCRIPTS[name], DecisionTap()

    class Recorded(ScriptedOperator):
        def decide(self, state: RunState, observation: Observation) -> Command | None:
            return tap(state, observation)

    def world(scenario: Scenario) -> ScriptedRun:
        return JudgedRun(scenario, script.mild, script.slow_until)

    run = play(
        script.scenario,
        kills=script.kills,
        on_record=script.on_record,
        on_tick=script.on_tick,
        operator=Recorded,
        world=world,
        at_least=script.at_least,
        ticks=script.ticks,
    )
    check(run, refuses=script.refuses)
    assert isinstance(run, JudgedRun)
    header = Header(
        name=name, title=script.title, source=SCRIPTED, run=str(RUN), job=RUN.name, decision_version=DECISION_VERSION
    )
    acks = tuple((f"{number}-0", ack) for number, ack in enumerate(run.acks, 1))
    return record(header, tap, Played(run.store.bodies, acks, run.metrics, (run.policy,)))


def paths() -> list[Path]:
    """The files."""
    return sorted(FOLDER.glob("*.jsonl"))


def unaccepted(recording: Recording) -> tuple[list[AcceptedLine], list[AcceptedLine]]:
    """What is decided otherwise and nobody agreed to, and what was agreed to and is not so any more."""
    found = set(redecide(recording).differences)
    return sorted(found - set(recording.accepted)), sorted(set(recording.accepted) - found)


def complaint(recording: Recording) -> str:
    """What a person must know and do about a recording; empty where nothing."""
    fresh, gone = unaccepted(recording)
    name, version = recording.header.name, recording.header.decision_version
    if not fresh and not gone and version == DECISION_VERSION:
        return ""
    told = [table((name, one) for one in fresh)] if fresh else []
    told += ["accepted, and not so any more:\n" + table((name, one) for one in gone)] if gone else []
    if version == DECISION_VERSION:
        told.append("If it is meant, raise DECISION_VERSION in trimtab_operator/commands.py, say why in CHANGELOG.md,")
    else:
        told.append(f"{name} was last compared with version {version} of the decisions; this is {DECISION_VERSION}.")
    told.append(f"and run `{COMMAND} accept`, which writes the difference into tests/recorded/{name}.jsonl.")
    return "\n".join(told)


def _check() -> int:
    complaints = [text for path in paths() if (text := complaint(read_recording(path)))]
    for path in paths():
        again = redecide(read_recording(path))
        compared = (
            f"{again.records} records, {again.effects} effects, {again.rests} rests, {again.judgements} judgements"
        )
        given = ", ".join(sorted({one.what for one in again.given}))
        print(f"{again.name}: {compared}; {again.reworded} words differ; not decided again: {given}")
    print("\n\n".join(complaints) or "all decided as recorded, or as accepted")
    return 1 if complaints else 0


def _accept() -> int:
    for path in paths():
        recording = read_recording(path)
        fresh, gone = unaccepted(recording)
        if (fresh or gone) and recording.header.decision_version == DECISION_VERSION:
            print(complaint(recording))
            return 1
        write_recording(path, recording.agreed(DECISION_VERSION, redecide(recording).differences))
    return 0


def _record(names: Sequence[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in names or SCRIPTS:
        write_recording(FOLDER / f"{name}.jsonl", play_script(name))
    return 0


def _keep(file: str, name: str) -> int:
    recording = trail_recording(name, f"the run {name}, as far as its trail tells", unpack(Path(file)))
    write_recording(FOLDER / f"{name}.jsonl", recording)
    again = redecide(recording)
    print(f"{again.records} of {len(recording.bodies)} records are decided again from the trail")
    print(table((name, one) for one in again.differences))
    return 1 if again.differences else 0


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands; the exit status."""
    match list(arguments):
        case ["check"]:
            return _check()
        case ["accept"]:
            return _accept()
        case ["keep", file, name]:
            return _keep(file, name)
        case ["record", *names] if set(names) <= SCRIPTS.keys():
            return _record(names)
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
