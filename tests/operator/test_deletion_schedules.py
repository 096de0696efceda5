"""Deleting under interruptions: an operator that dies, is cut off or freezes at any act of a run, and the next one.

The state machine, the journal and the removal are the real ones; trainer and bucket are played.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pytest
from played_trainer import RUN, Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, crash
from scripted_operator import ScriptedOperator, now, play
from scripted_world import ScriptedRun
from trimtab_contract.directives import CheckpointReference, Directive
from trimtab_contract.journal import Phase
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_operator.adapters.ports import Upload
from trimtab_operator.checkpoint_remover import remove_checkpoint
from trimtab_operator.commands import Command
from trimtab_operator.deletion import being_deleted, may_go
from trimtab_operator.errors import OperatorError, StoreRefused, StoreUnavailable
from trimtab_operator.observation import Observation, Removal, RetentionSettings
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import RESTORABLE, CheckpointState, JournalAction, RunState

LEASE_TICKS = 3
SHARDS = ("__0_0.distcp", "__1_0.distcp")
SETTINGS = RetentionSettings(keep_last=2, keep_every=None, certify_steps=10, near=8, reach=20)
LONG = Scenario(steps=50, certify=10)
BROKEN = replace(DAMAGED, steps=55)
WAYS = {"healthy": ("before", "after", "lost", "undone", "frozen"), "damaged": ("after", "undone", "frozen")}
SCENARIOS = {"healthy": LONG, "damaged": BROKEN}


class KeepingRun(ScriptedRun):
    """A run whose checkpoints lie in a bucket; deleting is an act that can be interrupted, and is watched."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.gone: set[str] = set()

    def there(self, manifest: str) -> list[str]:
        """The objects of a saved checkpoint that are left."""
        prefix = manifest.removesuffix(MANIFEST_NAME)
        return [key for key in (manifest, *(prefix + name for name in SHARDS)) if key not in self.gone]

    def delete(self, key: str) -> None:
        def act() -> None:
            manifest = key.rpartition("/")[0] + "/" + MANIFEST_NAME
            intents = [
                one for one in self.announced if one.action == JournalAction.DELETING and one.phase is Phase.INTENT
            ]
            if manifest not in [(one.after or {})["checkpoint"]["key"] for one in intents]:
                self.violations.append(f"{key} was deleted without an earlier intent")
            if key != manifest and manifest not in self.gone:
                self.violations.append(f"{key} was deleted before its manifest")
            self.gone.add(key)

        self.operation(act, away=StoreUnavailable, denied=StoreRefused)

    def check_restore(self, directive: Directive, target: CheckpointReference) -> None:
        super().check_restore(directive, target)
        if len(self.there(target.key)) < 1 + len(SHARDS):
            self.violations.append(f"attempt {directive.attempt} restores {target.key}, of which objects are gone")


class PlayedBucket:
    """`CheckpointStore` over the checkpoints of a played run."""

    root = ""

    def __init__(self, run: KeepingRun) -> None:
        self._run = run

    async def check(self) -> None:
        raise AssertionError("unused")

    async def get(self, key: str, limit: int = 0) -> bytes:
        return b"a played manifest"

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        saved = [key for key in self._run.saved if key.startswith(prefix)]
        return dict.fromkeys((key for manifest in saved for key in self._run.there(manifest)), 1)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._run.delete(key)

    async def times(self, prefix: str) -> Mapping[str, datetime]:
        raise AssertionError("unused")

    async def uploads(self, prefix: str) -> tuple[Upload, ...]:
        return ()

    async def abort(self, uploads: Sequence[Upload]) -> None:
        assert not uploads


class KeepingOperator(ScriptedOperator):
    """Deletes at the end of its turns what the journal says is being deleted."""

    def __init__(self, run: KeepingRun) -> None:
        super().__init__(run)
        self.kept = run
        self.seen: dict[str, int] = {}
        self.removals: dict[str, Removal] = {}

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        limits = replace(observation.limits, retention=SETTINGS)
        removals = tuple(self.removals.values())
        return advance(state, replace(observation, limits=limits, removals=removals))

    def turn(self) -> None:
        super().turn()
        for one in being_deleted(self.journal.state):
            since = self.seen.setdefault(one.reference.key, self.run.ticks)
            if self.run.ticks - since >= LEASE_TICKS and may_go(self.journal.state, one):
                self.remove(one.reference)

    def remove(self, reference: CheckpointReference) -> None:
        try:
            removal = now(remove_checkpoint(PlayedBucket(self.kept), RUN, reference, lambda: True))
        except OperatorError:
            return
        if removal is not None:
            self.removals[reference.key] = removal


class Impatient(KeepingOperator):
    """Deletes a checkpoint before its journal says so."""

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        command = super().decide(state, observation)
        draft = getattr(command, "draft", None)
        if draft is not None and draft.action is JournalAction.DELETING and draft.phase is Phase.INTENT:
            self.remove(draft.after["checkpoint"])
        return command


def wake_the_frozen(run: ScriptedRun) -> None:
    """What a frozen operator was about to do happens twelve ticks later, when another one leads."""
    if run.under_way and run.ticks % 12 == 0:
        for act in run.under_way:
            act()
        run.under_way.clear()


def kept_well(run: KeepingRun) -> None:
    """Every invariant, and a bucket that agrees with the journal."""
    check(run)
    for one in run.state.checkpoints:
        left = run.there(one.reference.key)
        if one.state in RESTORABLE:
            assert len(left) == 1 + len(SHARDS), f"{one.reference.key} is not whole"
        if 0 < len(left) <= len(SHARDS):
            assert one.state is CheckpointState.DELETING
            assert one.reference.key not in left, "a half-deleted checkpoint looks whole"
    assert not [key for key in run.state.deleted if run.there(key)]


def play_keeping(scenario: Scenario, *kills: tuple[int, str], crashes_at: int | None = None) -> KeepingRun:
    def on_tick(run: ScriptedRun) -> None:
        wake_the_frozen(run)
        if run.ticks == crashes_at:
            crash(run)

    run = play(scenario, kills=kills, on_tick=on_tick, operator=KeepingOperator, world=KeepingRun)  # pyright: ignore[reportArgumentType] both are made for each other
    assert isinstance(run, KeepingRun)
    return run


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_an_operator_interrupted_at_any_act_loses_no_checkpoint_and_leaves_no_half_of_one(name: str) -> None:
    scenario = SCENARIOS[name]
    undisturbed = play_keeping(scenario)
    kept_well(undisturbed)
    assert len(undisturbed.state.deleted) > 3
    for number in range(undisturbed.operations):
        for way in WAYS[name]:
            run = play_keeping(scenario, (number, way))
            try:
                kept_well(run)
                assert run.state.phase == undisturbed.state.phase
                assert surviving_windows(run) == surviving_windows(undisturbed)
                assert [one.extent for one in run.state.closed] == [one.extent for one in undisturbed.state.closed]
            except AssertionError as error:
                raise AssertionError(f"interrupted at ({number}, {way}): {error}") from error


def test_a_first_plan_goes_back_to_where_it_would_go_had_nothing_been_deleted() -> None:
    everything, little = play(BROKEN), play_keeping(BROKEN)
    assert little.state.deleted
    assert [one.target for one in little.state.closed] == [one.target for one in everything.state.closed]


def test_a_world_that_crashes_at_any_time_finds_its_newest_checkpoint() -> None:
    for tick in range(5, 55, 4):
        run = play_keeping(LONG, crashes_at=tick)
        kept_well(run)
        assert surviving_windows(run) == list(range(LONG.steps))


def test_the_journal_says_of_each_deletion_what_and_why_first_and_what_became_of_it() -> None:
    run = play_keeping(LONG)
    deletions = [one for one in run.announced if one.action == JournalAction.DELETING]
    intents = [one.id for one in deletions if one.phase is Phase.INTENT]
    results = [one.id for one in deletions if one.phase is Phase.RESULT]
    assert results == intents[: len(results)]
    assert len(intents) - len(results) <= 1, "more than one at a time"
    assert {one.outcome for one in deletions if one.phase is Phase.RESULT} == {"Deleted"}


def test_an_operator_that_deletes_before_its_journal_says_so_is_caught() -> None:
    run = play(LONG, operator=Impatient, world=KeepingRun)  # pyright: ignore[reportArgumentType] both are made for each other
    assert any("without an earlier intent" in one for one in run.violations)
