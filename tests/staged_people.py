"""What people and the platform do to a run in the middle of an incident: the same in a simulated run and on real parts.

A deed follows a record of the journal, or a step of the trainer. Where what comes of it depends on when it is done, it
is done while the run waits for a person, or at a step at which the trainer stands still until it is answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from played_trainer import Scenario
from scripted_world import ScriptedRun, directive_of
from staged_run import StagedRun
from trimtab_contract.directives import AckState
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.incidents import Wishes

Deed = Callable[[ScriptedRun], None]

DAMAGED = Scenario(steps=30, damaged=frozenset(range(14, 18)), read_back=AckState.VERIFIED)
PAUSED = replace(DAMAGED, action="Pause")
APPROVED = replace(DAMAGED, approval=100_000)
WITHOUT_BUDGET = replace(DAMAGED, max_rollbacks=0)
IN_INCIDENT = ("IncidentOpened", "Held", "Diagnosed", "TargetSelected", "Restored", "ExtentFound")
PROBATION = (2, 13)
"""An attempt and step of the probation of DAMAGED."""
LATER = ("Skip", Wishes(skip=(27, 28)))
"""Windows that a person wants to have skipped besides."""


def asks(action: str, wishes: Wishes | None = None) -> Deed:
    """A person creates a RunRequest."""
    return lambda run: run.ask(action, **({"wishes": wishes} if wishes is not None else {}))


def suspends(run: ScriptedRun, *, to: bool = True) -> None:
    """A person sets `spec.suspend`."""
    run.suspend = to
    if isinstance(run, StagedRun):
        run.edit_job({"suspend": to})


goes_on: Deed = partial(suspends, to=False)


def drains(run: ScriptedRun) -> None:
    """A person deletes a pod, or drains its node: its trainer is told to end."""
    if isinstance(run, StagedRun):
        run.delete_pod()
    run.world.terminate()


def deletes_policy(run: ScriptedRun) -> None:
    """A person deletes the policy: what it last said stays in force."""
    if isinstance(run, StagedRun):
        run.delete_policy()


def deletes_job(run: ScriptedRun) -> None:
    """A person deletes the TrainingJob."""
    if isinstance(run, StagedRun):
        run.delete_job()


@dataclass(frozen=True)
class Script:
    """A scenario, and what is done to it: after one record and then another, or at an (attempt, step) of a trainer."""

    name: str
    scenario: Scenario
    after: tuple[tuple[str, tuple[Deed, ...]], ...] = ()
    at: tuple[tuple[int, int], Deed] | None = None

    @property
    def first(self) -> str:
        """The record after which interruptions begin."""
        return self.after[0][0] if self.at is None else "ExtentFound"


@dataclass
class Acting:
    """A script that is being acted in one run."""

    script: Script
    done: int = 0
    stepped: bool = False
    due: list[Deed] = field(default_factory=list[Deed])

    @property
    def over(self) -> bool:
        """Whether all of it was done."""
        return self.done == len(self.script.after) and self.stepped is (self.script.at is not None)

    def hear(self, run: ScriptedRun, record: JournalRecord) -> None:
        """A record was written; on real parts deeds wait until the tick."""
        waiting = self.script.after[self.done :]
        if not waiting or waiting[0][0] != record.action or record.phase is Phase.RESULT:
            return
        self.done += 1
        self.due += waiting[0][1]
        if not isinstance(run, StagedRun):
            self._act(run)

    def tick(self, run: ScriptedRun) -> None:
        """Time passed."""
        at = self.script.at
        if at is not None and not self.stepped and run.worlds and (run.world.attempt, run.world.step) == at[0]:
            self.stepped = True
            self.due.append(at[1])
        self._act(run)

    def _act(self, run: ScriptedRun) -> None:
        due, self.due = self.due, []
        for deed in due:
            deed(run)


def stands_still_and(deed: Deed) -> Deed:
    """The same, and the trainer stays at its step until it is told to hold."""

    def done(run: ScriptedRun) -> None:
        deed(run)
        if isinstance(run, StagedRun):
            run.stands_still = True

    return done


def people(chance: Random) -> list[Script]:
    """One script for each thing that people do, where and how they do it drawn."""
    answers: Mapping[str, tuple[Scenario, str]] = {
        "Held": (PAUSED, "Rollback"),
        "TargetSelected": (APPROVED, "Approve"),
        "NeedsHuman": (WITHOUT_BUDGET, "Rollback"),
    }

    def waiting(name: str, deed: Deed, *besides: Deed) -> Script:
        """While the run waits for a person, who answers when its world is gone."""
        record = chance.choice(list(answers))
        scenario, answer = answers[record]
        return Script(name, scenario, ((record, (deed,)), ("WorldLost", (*besides, asks(answer)))))

    return [
        Script("resume", replace(PAUSED, damaged=frozenset({14, 15, 16})), (("Held", (asks("Resume"),)),)),
        Script("rollback", PAUSED, (("Held", (asks("Rollback"),)),)),
        Script("skip", APPROVED, (("TargetSelected", (asks(*LATER),)), ("RunRequested", (asks("Approve"),)))),
        Script(
            "reject",
            APPROVED,
            (
                ("TargetSelected", (asks("Reject"),)),
                ("RunRequested", (asks("Rollback"),)),
                ("TargetSelected", (asks("Approve"),)),
            ),
        ),
        Script(
            "hold",
            DAMAGED,
            (("RunRequested", ()), ("Held", (asks("Resume"),))),
            at=(PROBATION, stands_still_and(asks("Hold"))),
        ),
        waiting("suspend", suspends, goes_on),
        waiting("drain", drains),
        Script("drain-probation", DAMAGED, at=(PROBATION, drains)),
        Script("no-policy", DAMAGED, ((chance.choice(IN_INCIDENT), (deletes_policy,)),)),
    ]


def clocks(chance: Random, jump: Callable[[float], Deed]) -> list[Script]:
    """The wall clock jumps ahead in one run and back in another; `jump` makes the deed of so many seconds."""
    return [
        Script(f"clock-{name}", DAMAGED, ((chance.choice(IN_INCIDENT), (jump(sign * chance.choice((600, 7200))),)),))
        for name, sign in (("ahead", 1), ("back", -1))
    ]


def writes_after(run: ScriptedRun, first: str) -> tuple[list[str], int]:
    """The writes that the records of a run tell of, in order, and how many of them come before a record's own."""
    found: list[str] = []
    before: int | None = None
    for record in run.announced:
        found.append(f"append {record.action}{f' {record.phase.value}' if record.phase is not None else ''}")
        if record.action == first and record.phase is not Phase.RESULT and before is None:
            before = len(found)
        if record.phase is Phase.INTENT and record.action == "StartWorld":
            found += ["create ConfigMap", "create Service", "create Job"]
        if record.phase is Phase.INTENT and record.action == "EndWorld":
            found.append("delete pod")
        if record.phase is Phase.INTENT and (wire := (record.after or {}).get("directive")) is not None:
            found.append(f"publish {directive_of(wire).action.value}")
    assert before is not None
    return found, before
