"""What the trainer refuses is written down once, told, and a skip of what is trained already is taken out again."""

from dataclasses import replace
from typing import Any

import pytest
from run_checks import check
from run_fates import DAMAGED, crash, last_directive, records
from run_states import ack, run_state
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import AckState, Action, Directive
from trimtab_contract.journal import Actor, JournalRecord
from trimtab_operator.adapters.ports import EventType
from trimtab_operator.bookkeeping import next_record
from trimtab_operator.commands import Append
from trimtab_operator.journal_fold import fold
from trimtab_operator.observation import Acks, Limits, Observation
from trimtab_operator.reasons import Reason
from trimtab_operator.run_state import JournalAction, RunPhase, RunState
from trimtab_operator.story import event_of

LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)
REFUSING = replace(DAMAGED, refuses_skips=True)


def rests_without_the_skip(run: ScriptedRun) -> None:
    check(run, refuses=True)
    state = run.state
    assert state.phase is RunPhase.NEEDS_HUMAN
    assert state.question.startswith("the plan skips nothing, so it would change nothing: Run of attempt 2 is refused")
    assert state.question.endswith("the windows to skip were trained")
    directive = last_directive(run)
    assert (directive.action, directive.skip, directive.attempt) == (Action.HOLD, (), 2)
    assert state.incident is not None
    assert state.incident.extent is None
    assert not [attempt for attempt, _, _ in run.trained if attempt > 1]


def test_a_skip_that_reaches_into_what_is_trained_is_written_down_and_taken_out_again() -> None:
    run = play(REFUSING)
    rests_without_the_skip(run)
    assert run.living == [1]
    (refused,) = records(run, "DirectiveRefused")
    assert refused.phase is None
    assert (refused.reason or {})["reason"] == "RangeAlreadyTrained"
    sent = next(one for one in records(run, "Directive") if (one.after or {})["directive"]["skip"])
    assert ((refused.after or {})["epoch"], (refused.after or {})["seq"]) == (sent.actor.epoch, sent.seq)


@pytest.mark.parametrize("way", ["before", "after", "lost"])
def test_an_operator_killed_anywhere_takes_the_skip_out_all_the_same(way: str) -> None:
    for number in range(play(REFUSING).operations):
        run = play(REFUSING, kills=[(number, way)])
        rests_without_the_skip(run)
        assert len(records(run, "DirectiveRefused")) == 1, number


def test_a_skip_refused_by_a_world_that_dies_of_it_costs_no_checkpoint_its_trust() -> None:
    """The next world would restore under a ledger that trained otherwise, if the skip were still in it."""

    def fate(run: ScriptedRun) -> None:
        if run.refusals:
            crash(run)

    run = play(REFUSING, on_tick=fate)
    rests_without_the_skip(run)
    assert not run.living
    assert not run.state.restore_failures


def test_the_border_of_a_skip_ends_where_the_restored_state_has_trained() -> None:
    run = play(replace(DAMAGED, before=10))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert last_directive(run).skip == ((20, 31),)


def refusing(state: RunState, **fields: Any) -> Append | None:
    """What is written of a refusal that names the given directive."""
    order = {"epoch": 1, "seq": 28, **fields}
    acks = Acks().fold("1-0", ack(AckState.REFUSED, reason="RestoreRequired", detail="send Hold first", **order))
    observation = Observation(job="demo", now="2026-01-01T00:00:00+00:00", limits=LIMITS, acks=acks)
    command = next_record(state, observation)
    assert command is None or isinstance(command, Append)
    return command


def written(command: Append) -> JournalRecord:
    actor = Actor(service_account="s", pod="p", pod_uid="u", image="i", epoch=1)
    draft = command.draft
    return JournalRecord(
        seq=31,
        prev="0",
        id=draft.id,
        time="2026-01-01T00:00:00+00:00",
        actor=actor,
        action=draft.action,
        reason=draft.reason,
        after=draft.after,
    )


def test_a_refusal_is_written_once_and_told_as_a_warning_with_the_trainers_words() -> None:
    state = run_state()
    command = refusing(state)
    assert command is not None
    assert command.draft.action is JournalAction.DIRECTIVE_REFUSED
    assert command.draft.id == "run/DirectiveRefused/1.28"
    record = written(command)
    assert event_of(record) == (
        EventType.WARNING,
        Reason.DIRECTIVE_REFUSED,
        "Run of attempt 1 is refused: send Hold first",
    )
    assert refusing(fold(state, record)) is None


def test_a_refusal_of_what_a_new_leader_repeats_is_not_written_again() -> None:
    command = refusing(run_state())
    assert command is not None
    state = fold(run_state(), written(command))
    repeated = replace(state, epoch=2, directive=Directive(epoch=2, seq=32, world=1, attempt=1, action=Action.RUN))
    assert refusing(repeated, epoch=2, seq=32) is None
    other = replace(state, directive=Directive(epoch=1, seq=32, world=1, attempt=1, action=Action.HOLD))
    assert refusing(other, seq=32) is not None


@pytest.mark.parametrize("order", [{"seq": 27}, {"seq": 29}, {"epoch": 2}])
def test_a_refusal_of_another_directive_than_the_one_in_force_changes_nothing(order: dict[str, int]) -> None:
    assert refusing(run_state(), **order) is None


def test_a_refusal_for_another_reason_leaves_the_run_where_it_is() -> None:
    command = refusing(run_state())
    assert command is not None
    state = fold(run_state(), written(command))
    assert state.phase is RunPhase.WATCHING
    assert state.directive == run_state().directive
