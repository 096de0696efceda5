"""A policy may ask that a person sees each plan first: what waits, what answers it, and what no answer leads to."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from judged_runs import record
from run_checks import check, surviving_windows
from run_fates import DAMAGED, SKIPPED, actions, at, crash, last_directive, records
from run_states import SETTINGS, incident, latch, reference, run_state
from scripted_operator import ScriptedOperator, play
from scripted_world import ScriptedRun
from trimtab_contract.directives import AckState, Action
from trimtab_contract.journal import JournalRecord
from trimtab_operator.commands import Append
from trimtab_operator.incidents import Plan, PolicyIdentity, SkipRange, Wishes, hashed
from trimtab_operator.judge import Judge
from trimtab_operator.phases import approval
from trimtab_operator.run_state import AcceptedGuard, RequestState, RunPhase
from trimtab_operator.story import event_of, sentence
from trimtab_policies.policy import AcceptedPolicy, parse_policy

WAITING = replace(DAMAGED, approval=50)
APPROVED = replace(WAITING, answers=(("TargetSelected", "Approve"),))


def plan_of(run: ScriptedRun) -> Plan:
    incident = run.state.incident
    assert incident is not None
    assert incident.plan is not None
    return incident.plan


def answer(action: str, **changes: object) -> ScriptedRun:
    """A run whose plan is answered while it waits."""
    run = play(WAITING, on_tick=at({60: lambda run: run.ask(action, **changes)}), at_least=70)
    check(run)
    return run


def test_a_plan_waits_held_with_all_that_it_would_do() -> None:
    run = play(WAITING, at_least=40, ticks=60)
    check(run)
    state = run.state
    assert state.phase is RunPhase.AWAITING_APPROVAL
    plan = plan_of(run)
    assert (plan.target.step, plan.bound) == (20, (23, 26 + 16 + 2))
    assert plan == hashed("demo-a1-s25", plan)
    assert last_directive(run).action is Action.HOLD
    assert last_directive(run).restore is None
    (selected,) = records(run, "TargetSelected")
    event = event_of(selected)
    assert event is not None
    assert event[1] == "ApprovalRequired"
    assert plan.hash in event[2]


def test_an_approved_plan_is_carried_out_and_names_who_approved_it() -> None:
    run = play(APPROVED)
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert not set(surviving_windows(run)) & SKIPPED
    assert [plan.approved_by for plan in state.closed[0].plans] == ["ada"]
    assert [(one.action, one.state) for one in state.requests] == [("Approve", "Done")]
    assert actions(run, "TargetSelected", "RunRequested", "Restored") == ["TargetSelected", "RunRequested", "Restored"]


def test_an_approved_rollback_costs_no_budget_and_is_counted() -> None:
    run = play(replace(APPROVED, max_rollbacks=0))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert (run.state.rollback_times, run.state.rollbacks_asked) == ((), 1)


def test_without_an_answer_a_person_is_asked_again_and_the_run_stays_held() -> None:
    run = play(WAITING, at_least=120)
    check(run)
    state = run.state
    assert state.phase is RunPhase.NEEDS_HUMAN
    assert state.question.startswith("nobody approved plan 1 by 2026-01-01T00:01:")
    assert state.question.endswith("the run is held")
    assert run.living == [1]
    assert state.attempt == 1


def test_a_deadline_goes_on_while_no_operator_is_there() -> None:
    """People count by the clock on the wall, whoever leads the run."""
    undisturbed = play(WAITING, at_least=120)
    selected = next(index for index, one in enumerate(undisturbed.announced) if one.action == "TargetSelected")
    points = [number for number in range(undisturbed.operations) if number > selected]
    for number in points:
        run = play(replace(WAITING, downtime=70), kills=[(number, "before")], at_least=160)
        assert run.state.phase is RunPhase.NEEDS_HUMAN


def test_an_approval_that_was_given_while_no_operator_was_there_counts_behind_the_deadline() -> None:
    asked = play(WAITING, at_least=40, ticks=45)
    approved_at = asked.operations

    def ask(run: ScriptedRun) -> None:
        if run.ticks == 80:
            run.ask("Approve")

    # The operator goes at its next act, the deadline, and comes back behind it.
    run = play(replace(WAITING, downtime=90), kills=[(approved_at, "before")], on_tick=ask, at_least=200)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    (answered,) = records(run, "RunRequested")
    incident = run.state.closed[0]
    assert answered.time > incident.deadline


def test_a_rejected_plan_is_not_carried_out_and_the_reason_is_the_question() -> None:
    run = answer("Reject", reason="that is my experiment")
    state = run.state
    assert state.phase is RunPhase.NEEDS_HUMAN
    assert state.question == "plan 1 is not carried out: ada rejects it (that is my experiment)"
    assert state.attempt == 1
    assert [one.state for one in state.requests] == [RequestState.DONE]


def test_an_approval_of_another_plan_is_refused_with_the_one_that_waits() -> None:
    run = answer("Approve", plan_hash="0" * 64)
    (request,) = run.state.requests
    assert request.state is RequestState.REFUSED
    (waiting,) = records(run, "TargetSelected")
    hashed_as = (waiting.after or {})["plan"]["hash"]
    assert f"it names plan {'0' * 64}, and what waits is plan 1, {hashed_as}: look at it again" in request.message
    assert run.state.phase is RunPhase.NEEDS_HUMAN


def test_an_approval_without_a_hash_is_refused() -> None:
    assert "it names no plan, and what waits is plan 1" in answer("Approve", plan_hash="").state.requests[0].message


@pytest.mark.parametrize("action", ["Resume", "Rollback", "Hold"])
def test_what_is_legal_while_a_plan_waits(action: str) -> None:
    message = answer(action).state.requests[0].message
    assert message == (
        f"{action} is refused in phase AwaitingApproval; what is legal there: Approve, Reject, Skip and Stop"
    )


def test_a_plan_that_waits_can_be_ended_with_the_run() -> None:
    assert answer("Stop").state.phase is RunPhase.STOPPED


def test_another_target_for_one_that_failed_is_another_plan_and_needs_another_approval() -> None:
    once = (("TargetSelected", "Approve"),)
    scenario = replace(WAITING, unrestorable=frozenset({20}), answers=once)
    run = play(scenario, at_least=40, ticks=70)
    assert run.state.phase is RunPhase.AWAITING_APPROVAL
    first, second = run.state.incident.plans if run.state.incident else ()
    assert (first.target.step, second.target.step) == (20, 15)
    assert first.hash != second.hash
    run = play(replace(scenario, answers=(*once, *once)))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert run.state.rollbacks_asked == 1
    stale = replace(scenario, answers=())
    run = play(stale, on_record=_approves_twice(first.hash), at_least=100, ticks=140)
    assert [one.state.value for one in run.state.requests][1:] == ["Refused"]
    assert f"what waits is plan 2, {second.hash}" in run.state.requests[1].message


def _approves_twice(hashed_as: str) -> Callable[[ScriptedRun, JournalRecord], None]:
    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "TargetSelected":
            run.ask("Approve", plan_hash=hashed_as)

    return ask


def test_a_target_that_is_found_damaged_while_it_waits_is_replaced_at_once() -> None:
    def damage(run: ScriptedRun) -> None:
        if run.ticks == 50:
            target = plan_of(run).target
            run.acked(run.world, AckState.VERIFY_FAILED, checkpoint=target, detail="another SHA-256")

    run = play(WAITING, on_tick=damage, at_least=55, ticks=70)
    check(run)
    assert run.state.phase is RunPhase.AWAITING_APPROVAL
    assert [plan.target.step for plan in (run.state.incident.plans if run.state.incident else ())] == [20, 15]


def test_a_world_that_is_lost_while_its_plan_waits_does_not_end_the_waiting() -> None:
    run = play(WAITING, on_tick=at({50: crash, 60: lambda run: run.ask("Approve")}), at_least=70)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert list(run.worlds) == [1, 2]
    assert not set(surviving_windows(run)) & SKIPPED


def test_a_person_who_asks_for_the_rollback_of_a_run_whose_policy_wants_plans_seen_sees_the_plan() -> None:
    run = play(replace(WAITING, action="Pause", answers=(("Held", "Rollback"), ("TargetSelected", "Approve"))))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert run.state.rollbacks_asked == 1


def test_a_rollback_of_a_run_that_no_rule_stopped_needs_no_second_person() -> None:
    scenario = replace(WAITING, damaged=frozenset())
    run = play(scenario, on_tick=at({20: lambda run: run.ask("Rollback", wishes=Wishes(unchanged=True))}), at_least=40)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert len(run.state.closed) == 1


# A range beyond its bound ---------------------------------------------------------------------------------------------

NEEDING = msgspec.structs.replace(SETTINGS, approval_seconds=3600)


def test_a_range_beyond_its_bound_is_another_plan() -> None:
    one = incident(latch=latch(remediation=NEEDING))
    plan = hashed(one.name, Plan(number=1, target=reference(160), bound=(179, 200), approved_by="ada"))
    state = run_state(phase=RunPhase.DIAGNOSING_RESTORED, incident=msgspec.structs.replace(one, plans=(plan,)))
    assert approval.wider_plan(state, SkipRange(first=179, last=200, bad=3)) is None
    wider = approval.wider_plan(state, SkipRange(first=179, last=201, bad=3))
    assert wider is not None
    assert (wider.number, wider.target, wider.bound, wider.approved_by) == (2, plan.target, (179, 201), "")
    assert wider.hash not in {"", plan.hash}


class PlansTooNarrowly(ScriptedOperator):
    """Looks for damage further out than its plans say."""

    def append(self, command: Append) -> None:
        plan = (command.draft.after or {}).get("plan")
        if isinstance(plan, Plan) and command.draft.action == "TargetSelected":
            narrow = hashed("demo-a1-s25", msgspec.structs.replace(plan, bound=(23, 27)))
            after = {**(command.draft.after or {}), "plan": narrow}
            command = Append(replace(command.draft, after=after))
        super().append(command)


@pytest.mark.parametrize("approved", [True, False])
def test_a_range_beyond_its_bound_waits_and_is_skipped_only_when_it_is_approved(approved: bool) -> None:
    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "TargetSelected" or (record.action == "ExtentFound" and approved):
            run.ask("Approve")

    run = play(WAITING, on_record=ask, operator=PlansTooNarrowly, at_least=150)
    check(run)
    (found,) = records(run, "ExtentFound")
    assert sentence(found).startswith("the damage reaches beyond what was approved: plan 2 waits for approval until ")
    if approved:
        assert run.state.phase is RunPhase.COMPLETED
        assert not set(surviving_windows(run)) & SKIPPED
        assert [plan.bound for plan in run.state.closed[0].plans] == [(23, 27), (23, 31)]
        assert run.state.rollbacks_asked == 1
    else:
        assert run.state.phase is RunPhase.NEEDS_HUMAN
        assert not [attempt for attempt, _, _ in run.trained if attempt > 1]


def test_the_hash_of_a_plan_is_of_all_that_would_be_done_and_of_nothing_else() -> None:
    plan = Plan(number=1, target=reference(160), bound=(179, 200))
    hashes = {
        hashed(name, changed).hash
        for name in ("demo-a1-s181", "demo-a1-s182")
        for changed in (
            plan,
            msgspec.structs.replace(plan, number=2),
            msgspec.structs.replace(plan, target=reference(140)),
            msgspec.structs.replace(plan, bound=(179, 201)),
            msgspec.structs.replace(plan, bound=None),
        )
    }
    assert len(hashes) == 10
    same = msgspec.structs.replace(plan, approved_by="ada", failed="gone", hash="x")
    assert hashed("demo-a1-s181", same).hash == hashed("demo-a1-s181", plan).hash


def test_the_trail_tells_an_approval_in_words() -> None:
    run = play(APPROVED)
    (asked,) = records(run, "RunRequested")
    assert sentence(asked) == "ada asks for Approve (seen and understood), which is accepted: plan 1 is carried out"


# Who asks for an approval ---------------------------------------------------------------------------------------------

SPIKE = {"name": "high", "metric": "loss", "range": {"max": 5}, "forRecords": 3}
LOUD = {"name": "loud", "metric": "loss", "range": {"max": 4}, "forRecords": 1}


def policy(
    name: str, rule: dict[str, object], action: str, *, mode: str = "Enforce", **remediation: str
) -> AcceptedPolicy:
    spec = parse_policy({"mode": mode, "rules": [{**rule, "action": action}], "remediation": remediation})
    return AcceptedPolicy.of(spec, kind="GuardPolicy", namespace="lab", name=name, uid=name, generation=1)


def wait_asked_for(*policies: AcceptedPolicy) -> int | None:
    """How long the plan of a run with a level of 9 from step 21 on waits for its approval."""
    identities = tuple(
        PolicyIdentity(kind="GuardPolicy", namespace="lab", name=one.name, uid=one.uid, generation=1, hash=one.hash)
        for one in policies
    )
    guard = AcceptedGuard(policies=identities, mode="Enforce", from_attempt=1, from_step=1)
    judge = Judge()
    judge.texts.update({one.hash: one for one in policies})
    losses = [*[2.0] * 20, *[9.0] * 4]
    judge.begin(run_state(guards=(guard,)), tuple(record(step, loss=loss) for step, loss in enumerate(losses, 1)))
    assert judge.firing is not None
    assert judge.firing.action == "Rollback"
    return judge.firing.remediation.approval_seconds


def test_the_winning_policys_approval_counts_for_a_day_unless_it_says_how_long() -> None:
    assert wait_asked_for(policy("one", SPIKE, "Rollback")) is None
    assert wait_asked_for(policy("one", SPIKE, "Rollback", approval="Required")) == 86400
    assert wait_asked_for(policy("one", SPIKE, "Rollback", approval="Required", approvalDeadline="1h30m")) == 5400


def test_any_firing_policy_may_ask_for_an_approval() -> None:
    rolls_back = policy("one", SPIKE, "Rollback")
    shy = {"approval": "Required", "approvalDeadline": "1h"}
    assert wait_asked_for(rolls_back, policy("two", LOUD, "Notify", **shy)) == 3600
    assert wait_asked_for(rolls_back, policy("two", {**LOUD, "forRecords": 4}, "Notify", **shy)) == 3600


def test_a_policy_that_does_not_fire_or_may_only_observe_asks_for_none() -> None:
    rolls_back = policy("one", SPIKE, "Rollback")
    quiet = {**LOUD, "range": {"max": 50}}
    assert wait_asked_for(rolls_back, policy("two", quiet, "Notify", approval="Required")) is None
    assert wait_asked_for(rolls_back, policy("two", LOUD, "Notify", mode="Observe", approval="Required")) is None


def test_a_rule_that_joins_a_held_run_and_wants_the_plan_seen_is_heard() -> None:
    """It fires on a record that is read when the run holds already."""
    shy = latch(first_bad_step=25, fired_step=27, flagged=(24, 26), remediation=NEEDING, rule="shy")

    def fire(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "IncidentOpened":
            run.stronger = shy

    run = play(DAMAGED, on_record=fire, at_least=40, ticks=80)
    check(run)
    assert run.state.phase is RunPhase.AWAITING_APPROVAL
    assert len(records(run, "Upgraded")) == 1
