"""The scenarios whose every act is interrupted, in what ways, and what each schedule must come to.

An act is interrupted in one of the ways of `ScriptedRun.operation`: the operator dies before or after it, the reply is
lost, or it is reported as failed, done or not done. A new operator takes over with a higher epoch and continues from
the journal. Whatever the schedule, the run has the same sequence of (action, phase, command index), the same rules,
first bad steps, targets and skip ranges, and breaks no invariant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import process_time

import msgspec
from played_trainer import Scenario
from run_checks import check, decisions, story, surviving_windows
from schedule_search import Search
from scripted_operator import ScriptedOperator, play
from scripted_world import ScriptedRun
from trimtab_operator.incidents import Vitals, Wishes
from trimtab_operator.run_state import RunPhase

DAMAGED = Scenario(steps=30, damaged=frozenset(range(14, 18)))
HEALTHY = Scenario(steps=20)
HELD = (("WorldRunning", "Hold"),)
VITALS = Vitals(
    records=20, loss_mean=2.0, loss_std=0.1, clip_records=0, clip_rate=None, speed_records=0, tokens_per_second=None
)
UNATTENDED = {
    "damaged": DAMAGED,
    "last-steps": Scenario(steps=30, damaged=frozenset({27, 28, 29})),
    "transient": Scenario(steps=30, mismatch=18),
    "relapse": Scenario(steps=27, latent=(8, 18), margin=3),
    "diagnosis-late": replace(DAMAGED, diagnosis="Late"),
    "diagnosis-unusable": replace(DAMAGED, diagnosis="Unusable"),
    "nonfinite": Scenario(steps=27, nonfinite=frozenset({(1, 18)})),
    "glitch": Scenario(steps=30, glitches=frozenset({(1, 18)})),
    "no-progress": Scenario(steps=12, diverges=8, margin=1, max_rollbacks=100),
    "lower-rate": Scenario(steps=24, diverges=14, margin=2, rate=(0.1, 100)),
    "probation-extended": replace(
        DAMAGED, steps=40, healthy=VITALS, vitals=(msgspec.structs.replace(VITALS, loss_mean=9.0), VITALS)
    ),
    "target-fails": replace(DAMAGED, unrestorable=frozenset({10})),
    "control-bad": replace(DAMAGED, control_bad=frozenset({10})),
    "needs-human": Scenario(steps=30, damaged=frozenset(range(14, 200))),
    "stop-rule": replace(DAMAGED, action="Stop"),
    "bad-config": replace(DAMAGED, bad_config=True),
}
"""Incidents that nobody is asked about."""
ATTENDED = {
    "paused-resumed": replace(DAMAGED, action="Pause", damaged=frozenset({14, 15, 16}), answers=(("Held", "Resume"),)),
    "paused-rolled-back": replace(DAMAGED, action="Pause", answers=(("Held", "Rollback"),)),
    "paused-stopped": replace(DAMAGED, action="Pause", answers=(("IncidentOpened", "Stop"),)),
    "human-resumes": replace(DAMAGED, max_rollbacks=0, answers=(("NeedsHuman", "Resume"),)),
    "human-rolls-back": replace(DAMAGED, max_rollbacks=0, answers=(("NeedsHuman", "Rollback"),)),
    "refused": replace(DAMAGED, answers=(("IncidentOpened", "Resume"), ("TargetSelected", "Rollback"))),
    "held-resumed": replace(HEALTHY, answers=(*HELD, ("Held", "Resume"))),
    "held-rolled-back": replace(HEALTHY, answers=(*HELD, ("Held", "Rollback", Wishes(skip=(10, 11))))),
    "rolled-back": replace(HEALTHY, answers=(("Committed", "Rollback", Wishes(unchanged=True)),)),
    "skipped": replace(HEALTHY, answers=(("WorldRunning", "Skip", Wishes(skip=(12, 13))),)),
    "skipped-in-incident": replace(DAMAGED, answers=(("TargetSelected", "Skip", Wishes(skip=(27, 28))),)),
    "approved": replace(DAMAGED, approval=99, answers=(("TargetSelected", "Approve"),)),
    "approved-again": replace(
        DAMAGED,
        approval=99,
        unrestorable=frozenset({10}),
        answers=(("TargetSelected", "Approve"), ("TargetSelected", "Approve")),
    ),
    "rejected": replace(DAMAGED, approval=99, answers=(("TargetSelected", "Reject"), ("NeedsHuman", "Stop"))),
    "not-approved": replace(DAMAGED, approval=5),
}
"""Incidents and runs that people have a hand in."""
SCENARIOS: Mapping[str, Scenario] = {**UNATTENDED, **ATTENDED}
PAIRED_WAYS = ("before", "after", "lost", "denied")
WAYS = (*PAIRED_WAYS, "undone")


def same(disturbed: ScriptedRun, undisturbed: ScriptedRun) -> None:
    check(disturbed)
    assert story(disturbed) == story(undisturbed)
    assert decisions(disturbed) == decisions(undisturbed)
    assert answers(disturbed) == answers(undisturbed)
    assert disturbed.state.phase is undisturbed.state.phase
    if undisturbed.state.phase is RunPhase.COMPLETED:
        assert surviving_windows(disturbed) == surviving_windows(undisturbed)


def answers(run: ScriptedRun) -> list[tuple[str, ...]]:
    """What became of every request, and that it was answered once."""
    uids = [one.uid for one in run.state.requests]
    assert len(uids) == len(set(uids)), "a request was answered twice"
    return [(one.uid, one.action, one.state) for one in run.state.requests]


def search(
    scenario: Scenario,
    ways: tuple[str, ...],
    operator: type[ScriptedOperator] = ScriptedOperator,
    alone: tuple[str, ...] = (),
) -> Search:
    """The schedules of a scenario, each compared with the run that nothing interrupts."""
    undisturbed = play(scenario)
    check(undisturbed)
    return Search(scenario, ways, lambda run: same(run, undisturbed), operator, alone)


@dataclass
class Enumeration:
    """What was enumerated so far, to be printed."""

    single: int = 0
    pairs: int = 0
    ends: int = 0
    turns: int = 0
    seconds: float = 0.0

    def add(self, name: str) -> None:
        """All single interruptions of a scenario in all ways, and all pairs of the paired ways; raises Violation."""
        began = process_time()
        found = search(SCENARIOS[name], PAIRED_WAYS, alone=("undone",))
        counts = found.schedules(2)
        assert not any(wrong for _, wrong in counts)
        own = Enumeration(counts[1][0], counts[2][0], found.ends, found.turns, process_time() - began)
        print(f"{name}: {own}")
        self.single, self.pairs = self.single + own.single, self.pairs + own.pairs
        self.ends, self.turns = self.ends + own.ends, self.turns + own.turns
        self.seconds += own.seconds

    def __str__(self) -> str:
        return (
            f"{self.single} schedules of one interruption and {self.pairs} of two, 0 violations; {self.ends} played to "
            f"their end, the others to where one of these stood: {self.turns} turns in {self.seconds:.1f} s of one core"
        )
