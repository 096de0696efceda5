"""Of all firing rules the strongest allowed action wins."""

from judged_runs import accepted, new_run, record
from trimtab_policies.decision import Decision, decide
from trimtab_policies.policy import AcceptedPolicy, Mode
from trimtab_policies.rules import Action


def rule(action: str, limit: float = 5) -> dict[str, object]:
    return {"range": {"max": limit}, "action": action}


def decided(*policies: AcceptedPolicy, mode: Mode = Mode.ENFORCE, loss: float = 9) -> Decision:
    run = new_run(*policies)
    run.append(record(1, loss=loss))
    return decide(run.judge(), guard_mode=mode)


def test_nothing_happens_while_nothing_fires() -> None:
    assert decided(accepted(rule("Stop")), loss=2) == Decision()


def test_pending_no_data_and_error_never_act() -> None:
    quiet = accepted(rule("Stop"), {"metric": "other", "reduce": {"max": True}, "range": {"max": 0}, "action": "Stop"})
    run = new_run(quiet)
    run.append(record(1, other=1))
    assert decide(run.judge(), guard_mode=Mode.ENFORCE).action is None


def test_actions_rise_from_record_to_stop() -> None:
    assert [action.severity for action in Action] == list(range(5))


def test_the_highest_action_wins_and_the_others_are_kept() -> None:
    decision = decided(accepted(rule("Notify"), rule("Rollback"), rule("Record"), rule("Stop", limit=50)))
    assert decision.action is Action.ROLLBACK
    assert decision.winner is not None
    assert decision.winner.rule.name == "rule-1"
    assert [verdict.rule.name for verdict in decision.also] == ["rule-0", "rule-2"]
    assert decision.would_have is None


def test_ties_go_to_the_first_and_its_policy_supplies_the_remediation() -> None:
    decision = decided(accepted(rule("Rollback"), name="first"), accepted(rule("Rollback"), name="second"))
    assert decision.policy is not None
    assert decision.policy.name == "first"


def test_an_observing_policy_records_and_says_what_it_would_have_done() -> None:
    decision = decided(accepted(rule("Rollback"), mode="Observe"))
    assert (decision.action, decision.would_have) == (Action.RECORD, Action.ROLLBACK)


def test_an_observing_job_disarms_every_policy() -> None:
    decision = decided(accepted(rule("Stop")), mode=Mode.OBSERVE)
    assert (decision.action, decision.would_have) == (Action.RECORD, Action.STOP)


def test_an_enforced_notice_beats_an_observed_rollback() -> None:
    decision = decided(accepted(rule("Rollback"), mode="Observe", name="tried"), accepted(rule("Notify")))
    assert (decision.action, decision.policy.name if decision.policy else None) == (Action.NOTIFY, "guard")
    assert [verdict.policy.name for verdict in decision.also] == ["tried"]
