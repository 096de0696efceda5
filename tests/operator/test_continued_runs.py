"""A run that continues another one, played whole: where it begins, what it goes back to, and what it leaves alone."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from played_trainer import Saved, Scenario
from run_checks import check, surviving_windows
from run_fates import at, crash, records
from run_states import attempts, checkpoint, incident, latch, run_state
from scripted_operator import ScriptedOperator, play
from scripted_ports import JOB
from scripted_world import ScriptedRun, directive_of
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Action, CheckpointReference, LearningRateOverride
from trimtab_contract.journal import Evidence, Phase
from trimtab_contract.keys import RunId
from trimtab_operator.observation import Acks, Observation, Pods, RetentionSettings
from trimtab_operator.resources import parse_training_job_spec
from trimtab_operator.retention import review
from trimtab_operator.run_state import CheckpointState, RunPhase, RunState, Source
from trimtab_operator.selection import select_restart, select_rollback
from trimtab_operator.status import Situation, job_status
from trimtab_operator.workload import WorkloadDefaults, world_objects

STEP = 10
OLDER = "lab/older/uid-0"
SOURCE = Source(
    run=OLDER,
    checkpoint=CheckpointReference(key=f"{OLDER}/checkpoints/10-a3/manifest.json", sha256="5" * 64, step=STEP),
    state=CheckpointState.CERTIFIED,
    why="no rule that acts fired up to step 40",
    skip=((3, 5),),
    lr=LearningRateOverride(scale=0.5, until_step=20),
)
EVIDENCE = (Evidence(key=f"journal/{OLDER}/000000000099.json", sha256="9" * 64),)
WHOLE = Scenario()
WINDOWS = [*range(13, 48)]
"""Of steps 11 to 45, behind a checkpoint that skipped three."""


class ContinuedRun(ScriptedRun):
    """A run that continues `SOURCE`, which lies in the bucket."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        target = SOURCE.checkpoint
        self.saved[target.key] = Saved(target, 3, SkipLedger(SOURCE.skip), spoiled=False)

    def observe(self, state: RunState, acks: Acks, pods: Pods) -> Observation:
        seen = super().observe(state, acks, pods)
        return seen if state.attempts else replace(seen, source=SOURCE, source_evidence=EVIDENCE)


def continued(scenario: Scenario = WHOLE, **how: Any) -> ScriptedRun:
    run = play(scenario, world=ContinuedRun, **how)
    check(run)
    return run


def test_its_first_intent_names_the_run_and_the_hash_and_it_trains_what_comes_next() -> None:
    run = continued()
    first = records(run, "StartWorld")[0]
    assert first.phase is Phase.INTENT
    directive = directive_of((first.after or {})["directive"])
    assert (directive.action, directive.restore) == (Action.HOLD, SOURCE.checkpoint)
    assert (directive.skip, directive.lr) == (SOURCE.skip, SOURCE.lr)
    assert (first.after or {})["source"]["run"] == OLDER
    assert first.evidence == EVIDENCE
    said = str((first.reason or {})["message"])
    assert f"world 1 continues run {OLDER} behind step 10" in said
    assert "5" * 64 in said

    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert min(step for _, step in run.records) == STEP + 1
    assert surviving_windows(run) == WINDOWS
    assert state.ledger.ranges == SOURCE.skip
    assert state.directive is not None
    assert state.directive.lr == SOURCE.lr
    assert (state.owner(STEP), state.owner(STEP + 1)) == (0, 1)
    assert [one.of_source for one in state.checkpoints] == [True] + [False] * (len(state.checkpoints) - 1)


def test_a_fault_before_its_own_first_checkpoint_starts_again_from_the_same_one() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.worlds and run.world.number == 1 and run.world.step == STEP + 2:
            crash(run)

    run = continued(on_tick=fate)
    assert [directive_of((one.after or {})["directive"]).restore for one in records(run, "StartWorld")] == [
        SOURCE.checkpoint
    ] * 2
    assert run.state.phase is RunPhase.COMPLETED
    assert surviving_windows(run) == WINDOWS
    assert run.state.owner(STEP) == 0


def test_damage_right_behind_it_is_rolled_back_to_it_whatever_the_margin() -> None:
    run = continued(Scenario(damaged=frozenset(range(15, 19))))
    (incident,) = run.state.closed
    assert incident.plans[0].target == SOURCE.checkpoint
    assert run.state.phase is RunPhase.COMPLETED
    assert [window for window in surviving_windows(run) if 14 <= window <= 20] == []
    selected = records(run, "TargetSelected")[0].reason or {}
    (chosen,) = [one for one in selected["candidates"] if one["chosen"]]
    assert "the checkpoint that this run continues" in chosen["why"]


def test_where_it_cannot_be_restored_the_run_fails_and_never_begins_from_its_seed() -> None:
    def edit(run: ScriptedRun) -> None:
        run.generation = 2

    run = continued(Scenario(unrestorable=frozenset({STEP})), on_tick=at({30: edit}), at_least=40)
    assert run.state.phase is RunPhase.FAILED
    assert not run.records
    assert f"step 10 of run {OLDER}, which this run continues, cannot be restored" in run.state.failure
    assert len(records(run, "Failed")) == 2
    assert len(run.worlds) == 1


@pytest.mark.parametrize("way", ["before", "after", "lost", "undone"])
def test_an_operator_that_dies_around_any_of_its_first_acts_begins_the_same_run(way: str) -> None:
    whole = continued(Scenario(steps=16))
    for number in range(12):
        run = continued(Scenario(steps=16), kills=((number, way),))
        assert run.state.phase is RunPhase.COMPLETED, number
        assert surviving_windows(run) == surviving_windows(whole)
        assert run.state.source == SOURCE
        assert len(run.worlds) == 1


def test_an_operator_that_takes_over_knows_what_was_continued_from_the_journal_alone() -> None:
    run = continued(Scenario(steps=16))
    successor = ScriptedOperator(run)
    successor.turn()
    assert successor.journal.state.source == SOURCE


def test_its_retention_never_deletes_what_belongs_to_the_other_run() -> None:
    settings = RetentionSettings(keep_last=1, keep_every=None, certify_steps=5, near=5, reach=10)
    own = tuple(checkpoint(step) for step in range(200, 5000, 100))
    state = run_state(attempts=attempts((None, 100)), checkpoints=own)
    source = Source(run=OLDER, checkpoint=checkpoint(100).reference, state=CheckpointState.CERTIFIED, why="w")
    alone = [fate for fate in review(state, settings, 5000) if fate.kept]
    foreign, *others = [fate for fate in review(state.continuing(source), settings, 5000) if fate.kept]
    assert foreign.checkpoint.reference == source.checkpoint
    assert foreign.kept == "it belongs to the run that this one continues"
    assert others == alone


@pytest.mark.parametrize("bad", [101, 130, 180])
def test_it_is_the_last_candidate_of_all(bad: int) -> None:
    source = Source(run=OLDER, checkpoint=checkpoint(100).reference, state=CheckpointState.COMMITTED, why="w")
    own = (checkpoint(120), checkpoint(150))
    opened = incident(latch=latch(first_bad_step=bad))
    state = run_state(attempts=attempts((None, 100)), checkpoints=own, incident=opened)
    expected = {101: 100, 130: 120, 180: 150}[bad]
    target = select_rollback(state.continuing(source)).target
    assert target is not None
    assert target.reference.step == expected
    restart = select_restart(state.continuing(source))
    assert restart is not None
    assert restart.reference.step == 150


def test_after_several_attempts_it_still_belongs_to_the_surviving_history() -> None:
    state = run_state(attempts=attempts((None, 100), (1, 150), (2, 100)))
    source = Source(run=OLDER, checkpoint=checkpoint(100).reference, state=CheckpointState.COMMITTED, why="w")
    continuing = state.continuing(source)
    assert continuing.surviving(continuing.checkpoints[0])
    assert [state.owner(step) for step in (1, 100, 101, 150)] == [0, 0, 3, 3]


def test_people_see_no_checkpoint_of_it_until_it_has_saved_one_of_its_own() -> None:
    source = Source(run=OLDER, checkpoint=checkpoint(100).reference, state=CheckpointState.CERTIFIED, why="w")
    state = run_state(attempts=attempts((None, 100))).continuing(source)

    def shown(state: RunState) -> object:
        return job_status(JOB, state, Situation(pods=Pods()), now="2026-01-01T00:00:00+00:00", before=())["checkpoint"]

    assert shown(state) is None
    assert shown(replace(state, checkpoints=(*state.checkpoints, checkpoint(120)))) == "120 Verified"


def test_its_pods_are_told_whose_checkpoints_they_may_restore() -> None:
    def told(source: str) -> list[str]:
        made = world_objects(JOB, WorkloadDefaults("image", "redis://redis"), 1, "password", (), source).job
        (container,) = made["spec"]["template"]["spec"]["containers"]
        return [one["value"] for one in container["env"] if one["name"] == "TRIMTAB_RESUME_FROM"]

    assert told(OLDER) == [OLDER]
    assert told("") == []


def test_the_example_of_the_documentation_is_a_job_that_is_accepted() -> None:
    page = (Path(__file__).parents[2] / "docs/checkpoints.md").read_text()
    (example,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "resumeFrom" in text]
    for text in (example, example.replace("    # manifestSHA256", "    manifestSHA256")):
        source = parse_training_job_spec(yaml.safe_load(text)["spec"]).resume_from
        assert source is not None
        assert (RunId.parse(source.run).name, source.step) == ("first-half", 12000)
        assert (source.manifest_sha256 is None) is (text is example)
