"""Which checkpoints stay: enough for every rollback that may come, and no more than a few however long the run."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log2

from hypothesis import given, settings
from hypothesis import strategies as st
from run_states import attempts, checkpoint, incident, latch, reference, run_state
from trimtab_contract.directives import Action, CheckpointReference, Directive
from trimtab_operator.observation import RetentionSettings
from trimtab_operator.retention import LEAST_REACH, retention_settings, review
from trimtab_operator.run_state import Attempt, Checkpoint, CheckpointState, RunState
from trimtab_operator.selection import select_restart, select_rollback
from trimtab_policies.policy import parse_policy

SETTINGS = RetentionSettings(keep_last=3, keep_every=None, certify_steps=300, near=103, reach=LEAST_REACH)
EVERY = 200


def kept(state: RunState, judged: int, settings: RetentionSettings = SETTINGS) -> dict[int, str]:
    """Step and reason of every checkpoint that stays."""
    return {fate.checkpoint.reference.step: fate.kept for fate in review(state, settings, judged) if fate.kept}


def history(last: int, state: str = "Certified", every: int = EVERY) -> tuple[Checkpoint, ...]:
    return tuple(checkpoint(step, state=state) for step in range(0, last + 1, every))


def test_the_newest_stay_whatever_their_state() -> None:
    newest = (checkpoint(9_000, state="Verified"), checkpoint(9_200, state="Committed"))
    told = kept(run_state(checkpoints=(*history(8_800), *newest)), 9_200)
    assert [step for step, why in told.items() if "keepLast" in why] == [8_800, 9_000, 9_200]


def test_the_checkpoint_that_a_first_plan_would_choose_is_always_there() -> None:
    close = replace(SETTINGS, keep_last=1, near=100)
    there: tuple[Checkpoint, ...] = ()
    for step in range(0, 4_000, 20):
        there = (*there, checkpoint(step, state="Certified"))
        for judged in (step, step + 7, step + 19):
            fates = review(run_state(checkpoints=there), close, judged)
            there = tuple(fate.checkpoint for fate in fates if fate.kept)
            old_enough = [one.reference.step for one in there if one.reference.step <= judged - close.near]
            assert max(old_enough, default=0) == max(0, judged - close.near) // 20 * 20


def test_two_certified_stay_however_old() -> None:
    certified = (checkpoint(200, state="Certified"), checkpoint(400, state="Certified"))
    later = tuple(checkpoint(step, state="Committed") for step in range(600, 40_000, 200))
    told = kept(run_state(checkpoints=(*certified, *later)), 40_000)
    assert {200, 400} <= told.keys()
    assert len(told) < 12


def test_milestones_stay_for_good() -> None:
    told = kept(run_state(checkpoints=history(40_000)), 40_000, replace(SETTINGS, keep_every=10_000))
    assert [step for step, why in told.items() if "keepEvery" in why] == [10_000, 20_000, 30_000]


def test_a_milestone_that_no_checkpoint_hits_is_the_first_one_behind_it() -> None:
    told = kept(run_state(checkpoints=history(20_000, every=300)), 20_000, replace(SETTINGS, keep_every=5_000))
    assert [step for step, why in told.items() if "keepEvery" in why] == [5_100, 10_200, 15_000]


def test_the_state_before_the_first_step_stays_until_two_are_certified() -> None:
    early = (checkpoint(0), checkpoint(200, state="Certified"), *history(20_000, "Committed")[2:])
    assert 0 in kept(run_state(checkpoints=early), 20_000)
    later = (checkpoint(0), *history(20_000)[1:])
    assert 0 not in kept(run_state(checkpoints=later), 20_000)


def test_while_nothing_is_certified_the_ladder_is_made_of_all_that_can_be_restored() -> None:
    told = kept(run_state(checkpoints=history(20_000, "Verified")), 20_000)
    assert 0 in told
    ages = sorted(20_000 - step for step in told)
    assert all(older <= max(2 * newer, newer + EVERY) for newer, older in pairwise(ages))


def test_what_is_too_young_to_be_certified_is_no_gap_in_the_ladder_to_come() -> None:
    slow = replace(SETTINGS, certify_steps=3_000, keep_last=1)
    told = kept(run_state(checkpoints=(*history(2_000), *history(8_000, "Verified")[11:])), 8_000, slow)
    ages = sorted(8_000 - step for step in told if 8_000 - step < 6_000)
    assert all(older <= max(2 * newer, newer + EVERY) for newer, older in pairwise(ages))


def test_everything_stays_while_an_incident_is_open() -> None:
    bad = (checkpoint(9_000, state="Quarantined"), checkpoint(9_200, attempt=2))
    state = run_state(checkpoints=(*history(8_800), *bad), incident=incident(targets=(reference(8_000),)))
    assert len(kept(state, 9_200)) == len(state.checkpoints)


def test_what_the_directive_in_force_restores_stays() -> None:
    directive = Directive(epoch=1, seq=3, world=1, attempt=2, action=Action.RUN, restore=reference(5_000))
    state = run_state(checkpoints=history(30_000), directive=directive)
    assert "directive" in kept(state, 30_000)[5_000]


def test_what_was_quarantined_or_abandoned_goes_when_the_incident_is_over() -> None:
    old = (checkpoint(8_900, state="Quarantined"), checkpoint(8_950, attempt=1))
    state = run_state(attempts=attempts((None, 0), (1, 8_800)), checkpoints=(*history(8_800), *old))
    assert not {8_900, 8_950} & kept(state, 9_000).keys()


def test_what_is_as_it_was_saved_and_did_not_behave_so_stays_for_somebody_to_look_at() -> None:
    failed = checkpoint(8_950)
    state = run_state(checkpoints=(*history(8_800), failed), restore_failures=(failed.reference.key,))
    assert "did not behave so" in kept(state, 30_000)[8_950]


def test_while_nothing_behind_the_start_may_be_restored_nothing_is_deleted() -> None:
    condemned = tuple(checkpoint(step, state="Quarantined") for step in (100, 200, 300))
    assert kept(run_state(checkpoints=(checkpoint(0), *condemned)), 30_000).keys() == {0, 100, 200, 300}


def test_a_checkpoint_that_could_not_be_deleted_is_not_tried_again() -> None:
    lost = checkpoint(8_900, state="Quarantined")
    state = run_state(checkpoints=(*history(8_800), lost), spared=(lost.reference.key,))
    assert kept(state, 9_000)[8_900] == "it could not be deleted"


def test_what_is_being_deleted_is_neither_kept_nor_deleted_again() -> None:
    going = checkpoint(8_900, state="Deleting")
    fates = review(run_state(checkpoints=(*history(8_800), going)), SETTINGS, 9_000)
    assert going not in [fate.checkpoint for fate in fates]


def test_the_settings_follow_from_the_policies_that_roll_back() -> None:
    rules = [
        {"name": "spike", "metric": "loss", "spike": {"sigma": 4}, "forRecords": 5, "action": "Rollback"},
        {"name": "told", "metric": "loss", "spike": {"sigma": 4}, "forRecords": 90, "action": "Notify"},
    ]
    policy = parse_policy({"rules": rules, "remediation": {"margin": 2_000, "escalate": {"marginFactor": 2}}})
    found = retention_settings(keep_last=3, keep_every=None, certify_steps=300, max_rollbacks=3, policies=[policy])
    assert found.near == 2_005
    assert 16_000 < found.reach < 18_000
    nobody = retention_settings(keep_last=3, keep_every=None, certify_steps=300, max_rollbacks=3, policies=[])
    assert (nobody.near, nobody.reach) == (0, LEAST_REACH)


def test_margins_that_grow_beyond_every_run_are_no_trouble() -> None:
    rule = {"name": "spike", "metric": "loss", "spike": {"sigma": 4}, "action": "Rollback"}
    remediation = {"margin": 1_000_000, "escalate": {"marginFactor": 100}}
    policy = parse_policy({"rules": [rule], "remediation": remediation})
    found = retention_settings(keep_last=3, keep_every=None, certify_steps=300, max_rollbacks=8, policies=[policy])
    assert len(kept(run_state(checkpoints=history(100_000)), 100_000, found)) > 0


# Whole runs ---------------------------------------------------------------------------------------------------------

LONG = RetentionSettings(keep_last=3, keep_every=None, certify_steps=300, near=13, reach=LEAST_REACH, plans=3)
MARGINS = 10 + 20 + 40
"""What the tests' margin grows to with two relapses, taken together."""


@dataclass
class Keeper:
    """A run's checkpoints with retention at work, and beside it what there would be had nothing been deleted."""

    every: int
    step: int = 0
    lineage: list[Attempt] = field(default_factory=lambda: list(attempts((None, 0))))
    all: dict[tuple[int, int], Checkpoint] = field(default_factory=lambda: {(0, 1): checkpoint(0)})
    gone: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    most: int = 0

    def state(self, *, whole: bool = False) -> RunState:
        there = [one for key, one in self.all.items() if whole or key not in self.gone]
        ordered = sorted(there, key=lambda one: (one.reference.step, one.attempt))
        return run_state(attempts=tuple(self.lineage), checkpoints=tuple(ordered))

    def train(self, saves: int, *, certifies: bool, deletes: int) -> None:
        for _ in range(saves):
            self.step += self.every
            self.all[self.step, len(self.lineage)] = checkpoint(self.step, attempt=len(self.lineage))
            state = self.state()
            for one in state.checkpoints if certifies else ():
                old = self.step - one.reference.step >= LONG.certify_steps
                if old and one.state is CheckpointState.VERIFIED and state.surviving(one):
                    self.change(one, "Certified")
            if deletes:
                self.delete(deletes)

    def delete(self, most: int) -> None:
        """As many as the operator gets around to."""
        fates = review(self.state(), LONG, self.step)
        self.most = max(self.most, sum(bool(fate.kept) for fate in fates))
        for fate in [fate for fate in fates if not fate.kept][:most]:
            self.gone.add((fate.checkpoint.reference.step, fate.checkpoint.attempt))

    def break_down(self, late: int, relapses: int) -> None:
        """A rule fires now, of what began `late` steps ago, and again behind each of the first plans."""
        began, reached = self.lineage[-1].branch_step, self.step
        first_bad = max(began + 1, self.step - late)
        target: CheckpointReference | None = None
        for relapse in range(relapses + 1):
            targets = () if target is None else (target,)
            broken = incident(latch=latch(first_bad_step=first_bad), relapses=relapse, targets=targets)
            held = replace(self.state(), incident=broken)
            assert all(fate.kept for fate in review(held, LONG, self.step))
            there = select_rollback(replace(self.state(whole=True), incident=broken))
            here = select_rollback(held)
            assert here.target is not None or there.target is None, f"no way back from {self.step}, {late} steps late"
            if here.target is None:
                return
            if relapse == 0 and self.step - there.bound <= LONG.near:
                assert here.target == there.target, "a first plan goes further back than it would have to"
            target = here.target.reference
        assert target is not None
        for one in self.state(whole=True).checkpoints:
            if one.attempt == len(self.lineage) and one.reference.step >= first_bad:
                self.change(one, "Quarantined")
        number = len(self.lineage) + 1
        self.lineage.append(Attempt(number=number, world=1, parent=number - 1, branch_step=target.step))
        self.step = target.step
        assert select_restart(self.state()) == select_restart(self.state(whole=True)), "a fault would cost more steps"
        self.train((reached - target.step) // self.every + 1, certifies=False, deletes=0)  # the probation

    def change(self, one: Checkpoint, state: str) -> None:
        key = (one.reference.step, one.attempt)
        self.all[key] = checkpoint(*key, state=state)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 40), st.booleans()),
        st.tuples(st.just("break"), st.integers(0, LEAST_REACH - MARGINS), st.integers(0, 2)),
    ),
    min_size=4,
    max_size=14,
)


@given(EVENTS, st.sampled_from([1, 3, 50]), st.sampled_from([50, 100, 170]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_whatever_happens_every_plan_finds_its_way_back_and_little_is_kept(
    events: list[tuple[str, int, int]], deletes: int, every: int
) -> None:
    keeper = Keeper(every)
    for name, number, choice in events:
        if name == "train":
            keeper.train(number, certifies=bool(choice), deletes=deletes)
        else:
            keeper.break_down(number, choice)
    assert keeper.most <= 10 + 2 * log2(4 * LEAST_REACH / every) + 2 * log2(2 * LONG.certify_steps / every)


def test_a_slow_divergence_that_is_noticed_2000_steps_late_finds_a_certified_checkpoint_from_before_it() -> None:
    keeper = Keeper(every=100)
    for _ in range(200):
        keeper.train(1, certifies=True, deletes=50)
        late = [one for one in keeper.state().checkpoints if keeper.step - one.reference.step >= 2_010]
        if keeper.step > 2_500:
            newest = late[-1]
            assert newest.state is CheckpointState.CERTIFIED or newest.reference.step == 0
            assert keeper.step - newest.reference.step <= 2 * 2_010 + 100
    assert keeper.step == 20_000
    assert len(keeper.state().checkpoints) <= 25


def test_a_run_of_a_million_steps_keeps_no_more_than_one_of_twenty_thousand() -> None:
    short = Keeper(every=200)
    short.train(100, certifies=True, deletes=50)
    long = Keeper(every=200, step=980_000, all={(980_000, 1): checkpoint(980_000)})
    long.train(100, certifies=True, deletes=50)
    assert abs(len(long.state().checkpoints) - len(short.state().checkpoints)) <= 4


def test_what_another_run_goes_on_from_stays_as_long_as_that_does() -> None:
    state = run_state(checkpoints=history(8_800))
    gone = next(fate.checkpoint for fate in review(state, SETTINGS, 9_000) if not fate.kept)
    fates = review(state, SETTINGS, 9_000, {gone.reference.key: "lab/fork/uid"})
    (kept_for_it,) = [fate for fate in fates if fate.checkpoint == gone]
    assert (kept_for_it.kept, kept_for_it.until) == ("run lab/fork/uid goes on from it", "that run is over")
