"""The fold of the journal: attempts, effects, checkpoints and ends, record by record."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from run_states import POLICY, ack, attempts, checkpoint, incident, latch, reference, run_state
from trimtab_contract.directives import Ack, AckState, Action, Directive
from trimtab_contract.journal import Actor, JournalRecord, Phase, canonical_bytes, parse_record
from trimtab_operator.bookkeeping import next_record
from trimtab_operator.commands import Append
from trimtab_operator.journal_fold import fold
from trimtab_operator.observation import Acks, FiringRule, Limits, MissingMetric, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import (
    AcceptedGuard,
    CheckpointState,
    JournalAction,
    RunPhase,
    RunState,
    World,
)

LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)


def written(action: JournalAction, *, seq: int = 31, **fields: Any) -> JournalRecord:
    """A record as a reader of the journal sees it."""
    actor = Actor(service_account="s", pod="p", pod_uid="u", image="i", epoch=1)
    record = JournalRecord(
        seq=seq,
        prev="0",
        id=fields.pop("id", "x"),
        time="2026-01-01T00:00:00+00:00",
        actor=actor,
        action=action.value,
        **fields,
    )
    return parse_record(canonical_bytes(record))


def directive(attempt: int, step: int | None = None, *, world: int = 1, action: Action = Action.HOLD) -> Directive:
    restore = reference(step) if step is not None else None
    return Directive(epoch=1, seq=31, world=world, attempt=attempt, action=action, restore=restore)


def observed(**changes: Any) -> Observation:
    base: dict[str, Any] = {
        "job": "demo",
        "now": "2026-01-01T00:10:00+00:00",
        "limits": LIMITS,
        "pods": Pods(world=1, state=PodsState.LIVE, names=("demo-1-0",)),
    }
    return Observation(**{**base, **changes})


def acks(*said: Ack) -> Acks:
    state = Acks()
    for number, one in enumerate(said, 1):
        state = state.fold(f"{number}-0", one)
    return state


def drafted(state: RunState, observation: Observation) -> tuple[JournalAction, dict[str, Any]] | None:
    command = next_record(state, observation)
    if command is None:
        return None
    assert isinstance(command, Append)
    return command.draft.action, dict(command.draft.after or {})


# Attempts ------------------------------------------------------------------------------------------------------------


def test_a_restore_continues_its_predecessor_up_to_and_including_its_step() -> None:
    state = fold(
        run_state(), written(JournalAction.DIRECTIVE, phase=Phase.INTENT, after={"directive": directive(2, 170)})
    )
    assert (state.attempts[1].parent, state.attempts[1].branch_step) == (1, 170)
    assert [state.owner(step) for step in (1, 169, 170, 171)] == [1, 1, 1, 2]
    assert state.surviving(checkpoint(170))
    assert not state.surviving(checkpoint(180))
    assert not state.surviving(checkpoint(170, attempt=2))


def test_a_later_directive_of_the_same_attempt_begins_none() -> None:
    state = run_state(attempts=attempts((None, 0), (1, 170)))
    again = fold(state, written(JournalAction.DIRECTIVE, phase=Phase.INTENT, after={"directive": directive(2, 170)}))
    assert again.attempts == state.attempts


def test_a_world_from_the_seed_continues_nothing() -> None:
    intent = written(
        JournalAction.START_WORLD, phase=Phase.INTENT, after={"directive": directive(2, world=2, action=Action.RUN)}
    )
    state = fold(run_state(checkpoints=(checkpoint(0, attempt=1),)), intent)
    assert (state.attempts[1].parent, state.attempts[1].branch_step) == (None, 0)
    assert state.owner(0) == 2
    assert not state.surviving(state.checkpoints[0])


def test_owners_follow_every_branch() -> None:
    state = run_state(attempts=attempts((None, 0), (1, 100), (2, 150), (3, 120)))
    assert [state.owner(step) for step in (100, 101, 120, 121, 500)] == [1, 2, 2, 4, 4]


# Effects -------------------------------------------------------------------------------------------------------------


def test_an_effect_is_pending_until_its_own_result() -> None:
    intent = written(JournalAction.DIRECTIVE, phase=Phase.INTENT, id="run#1", after={"directive": directive(1)})
    state = fold(run_state(), intent)
    assert state.pending is not None
    assert (state.pending.id, state.next_id(None)) == ("run#1", "run#2")
    other = fold(state, written(JournalAction.DIRECTIVE, phase=Phase.RESULT, id="run#9", seq=32))
    assert other.pending == state.pending
    done = fold(state, written(JournalAction.DIRECTIVE, phase=Phase.RESULT, id="run#1", seq=32))
    assert done.pending is None


def test_effects_are_counted_within_their_incident() -> None:
    state = run_state(incident=incident(), effects={"run": 4})
    intent = written(
        JournalAction.DIRECTIVE,
        phase=Phase.INTENT,
        id="i#1",
        incident="demo-a1-s181",
        after={"directive": directive(1)},
    )
    assert state.next_id("demo-a1-s181") == "demo-a1-s181#1"
    assert fold(state, intent).effects == {"run": 4, "demo-a1-s181": 1}


# Policies in force ---------------------------------------------------------------------------------------------------


def test_each_record_finds_the_guard_then_in_force_across_rollbacks() -> None:
    guards = tuple(
        AcceptedGuard(
            policies=(msgspec.structs.replace(POLICY, generation=generation),),
            mode="Enforce",
            from_attempt=attempt,
            from_step=step,
        )
        for generation, attempt, step in ((1, 1, 1), (2, 1, 300), (3, 2, 180))
    )
    state = run_state(guards=guards)

    def generation(attempt: int, step: int) -> int:
        guard = state.guard_at(attempt, step)
        assert guard is not None
        return guard.policies[0].generation

    assert [generation(1, step) for step in (1, 299, 300, 400)] == [1, 1, 2, 2]
    assert [generation(2, step) for step in (171, 179, 180, 500)] == [2, 2, 3, 3]
    assert generation(3, 1) == 3
    assert run_state().guard_at(1, 1) is None


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_a_verification_counts_only_for_the_very_manifest_the_journal_knows() -> None:
    state = run_state(checkpoints=(checkpoint(80, state="Committed"),))
    good = ack(AckState.VERIFIED, checkpoint=reference(80), by="b")
    forged = msgspec.structs.replace(good, checkpoint=msgspec.structs.replace(reference(80), sha256="f" * 64))
    assert drafted(state, observed(acks=acks(forged))) is None
    found = drafted(state, observed(acks=acks(good)))
    assert found is not None
    assert found[0] is JournalAction.VERIFIED
    assert found[1]["checkpoint"] == reference(80)


def test_a_verification_of_what_the_journal_does_not_know_yet_waits() -> None:
    said = acks(ack(AckState.VERIFIED, checkpoint=reference(90), by="b"))
    assert drafted(run_state(), observed(acks=said)) is None
    known = run_state(checkpoints=(checkpoint(90, state="Committed"),))
    assert drafted(known, observed(acks=said)) is not None


@pytest.mark.parametrize("before", ["Committed", "Verified", "Certified"])
def test_a_failed_verification_quarantines_whatever_was_thought_before(before: str) -> None:
    said = acks(ack(AckState.VERIFY_FAILED, checkpoint=reference(80), detail="object rank-0 differs"))
    found = drafted(run_state(checkpoints=(checkpoint(80, state=before),)), observed(acks=said))
    assert found is not None
    assert (found[0], found[1]["why"]) == (JournalAction.QUARANTINED, "object rank-0 differs")
    assert drafted(run_state(checkpoints=(checkpoint(80, state="Quarantined"),)), observed(acks=said)) is None


@pytest.mark.parametrize(
    ("changes", "judged", "green", "certified"),
    [
        ({}, 120, 120, True),
        ({}, 125, 120, True),
        ({}, 119, 119, False),
        ({}, 400, 119, False),
        ({}, 400, 81, False),
        ({}, 120, 0, False),
        ({"phase": RunPhase.PROBATION, "incident": incident(held_step=300)}, 120, 120, False),
        ({"attempts": attempts((None, 0), (1, 70))}, 120, 120, False),
        ({"checkpoints": (checkpoint(80, state="Committed"),)}, 120, 120, False),
    ],
    ids=[
        "old enough",
        "absent for a moment",
        "too new",
        "absent too early",
        "seen once",
        "never seen",
        "in probation",
        "abandoned",
        "not verified",
    ],
)
def test_a_checkpoint_is_certified_after_enough_green_steps_of_the_surviving_history(
    changes: dict[str, Any], judged: int, green: int, certified: bool
) -> None:
    state = run_state(**{"checkpoints": (checkpoint(80),), **changes})
    found = drafted(state, observed(judged_step=judged, green_step=green))
    assert (found is not None and found[0] is JournalAction.CERTIFIED) is certified


def test_nothing_is_certified_while_a_rule_fires() -> None:
    assert drafted(run_state(checkpoints=(checkpoint(80),)), observed(judged_step=120, firing=latch())) is None


def test_checkpoints_of_the_suspect_stretch_are_quarantined_once_the_run_holds() -> None:
    held = run_state(
        phase=RunPhase.DIAGNOSING,
        incident=incident(held_step=190),
        checkpoints=tuple(checkpoint(step) for step in (180, 181, 190, 191)),
    )
    quarantined: list[int] = []
    state = held
    while (found := drafted(state, observed())) is not None:
        assert found[0] is JournalAction.QUARANTINED
        quarantined.append(found[1]["checkpoint"].step)
        state = fold(state, written(JournalAction.QUARANTINED, after=found[1]))
    assert quarantined == [181, 190]
    assert [one.state for one in state.checkpoints] == [
        CheckpointState.VERIFIED,
        CheckpointState.QUARANTINED,
        CheckpointState.QUARANTINED,
        CheckpointState.VERIFIED,
    ]


def test_a_blind_rule_is_written_down_once_for_each_policy_and_metric() -> None:
    missing = MissingMetric(policy="GuardPolicy/guard", rule="guard/high", metric="los", message="did you mean loss?")
    found = drafted(run_state(), observed(missing_metrics=(missing,)))
    assert found is not None
    assert found[0] is JournalAction.METRIC_MISSING
    state = fold(run_state(), written(JournalAction.METRIC_MISSING, after=found[1]))
    assert drafted(state, observed(missing_metrics=(missing,))) is None
    for other in (replace(missing, policy="GuardPolicy/other"), replace(missing, metric="gradnorm")):
        assert drafted(state, observed(missing_metrics=(missing, other))) is not None


def test_a_note_is_written_once() -> None:
    note = FiringRule(
        policy="guard",
        rule="loud",
        action="Notify",
        would_have="",
        attempt=1,
        step=5,
        observed=9.0,
        threshold=4.0,
        message="loss 9 > 4",
        policy_hash="h",
    )
    found = drafted(run_state(), observed(notes=(note,)))
    assert found is not None
    assert found[0] is JournalAction.RULE_FIRED
    state = fold(run_state(), written(JournalAction.RULE_FIRED, after=found[1]))
    assert drafted(state, observed(notes=(note,))) is None


# Ends ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "after", "outcome"),
    [
        (JournalAction.FAILED, {"phase": "Failed", "message": "spent", "generation": 1}, "Failed"),
        (JournalAction.STOPPED, {"phase": "Stopped", "directive": directive(1, action=Action.STOP)}, "Stopped"),
    ],
)
def test_a_run_that_ends_closes_its_incident(action: JournalAction, after: dict[str, Any], outcome: str) -> None:
    state = fold(run_state(incident=incident()), written(action, after=after))
    assert state.incident is None
    assert [(one.name, one.outcome) for one in state.closed] == [("demo-a1-s181", outcome)]


def test_a_reopened_run_begins_with_a_clean_account() -> None:
    state = run_state(
        phase=RunPhase.FAILED,
        world=World(number=1, live=False),
        failure="spent",
        failed_generation=1,
        restarts=3,
        stuck_steps=(7, 7),
    )
    assert advance(state, observed(pods=Pods(world=1, state=PodsState.GONE))) is None
    state = fold(state, written(JournalAction.REOPENED, after={"phase": "Pending"}))
    assert (state.phase, state.failure, state.restarts, state.stuck_steps) == (RunPhase.PENDING, "", 0, ())


def test_an_extent_that_cannot_be_read_asks_a_human_and_says_why() -> None:
    state = run_state(
        phase=RunPhase.DIAGNOSING_RESTORED,
        incident=incident(targets=(reference(170),), restoring_attempt=2, held_step=190),
        attempts=attempts((None, 0), (1, 170)),
        directive=directive(2, 170),
    )
    assert advance(state, observed()) is None
    command = advance(state, observed(probe_problem="the probe's evidence does not exist"))
    assert isinstance(command, Append)
    assert command.draft.action is JournalAction.NEEDS_HUMAN
    asked = fold(state, written(JournalAction.NEEDS_HUMAN, after=command.draft.after, reason=command.draft.reason))
    assert asked.phase is RunPhase.NEEDS_HUMAN
    assert asked.question == "the extent of the damage is unknown: the probe's evidence does not exist"


def test_a_job_that_somebody_deleted_is_a_lost_world() -> None:
    command = advance(run_state(), observed(pods=Pods(world=1, state=PodsState.ABSENT)))
    assert isinstance(command, Append)
    assert command.draft.action is JournalAction.WORLD_LOST
    assert command.draft.reason == {"message": "its Job does not exist any more"}


def test_pods_that_were_told_to_end_are_told_once() -> None:
    hung = observed(hung="no progress")
    command = advance(run_state(), hung)
    assert isinstance(command, Append)
    assert command.draft.action is JournalAction.END_WORLD
    ending = observed(hung="no progress", pods=Pods(world=1, state=PodsState.ENDING))
    assert advance(run_state(), ending) is None
