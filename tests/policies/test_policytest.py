"""Cases of a test file run through the engine: what passes, what fails and how it is told, what cannot be run."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_runs import SPIKE, accepted
from trimtab_policies.errors import FieldError, InvalidPolicyTest
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.policytest import Case, CaseResult, parse_suite, run_case

GUARD = accepted(
    {"name": "loss-spike", "spike": SPIKE, "forRecords": 3, "action": "Rollback"},
    {"name": "lone-spike", "spike": SPIKE, "action": "Record"},
)
HEALTHY = "(2.1 1.9 2.05 1.95 2.13 1.87)x20"
"""120 records of a gently moving loss."""


def case(**fields: Any) -> dict[str, Any]:
    return {"name": "a case", **fields}


def run(one: Mapping[str, Any], *policies: AcceptedPolicy) -> CaseResult:
    under_test = policies or (GUARD,)
    [parsed] = parse_suite({"cases": [one]}, under_test)
    return run_case(parsed, under_test)


def told(result: CaseResult) -> list[tuple[str, str, str]]:
    return [(failure.path, failure.expected, failure.found) for failure in result.failures]


def errors_of(*cases: object, policies: tuple[AcceptedPolicy, ...] = (GUARD,)) -> dict[str, str]:
    with pytest.raises(InvalidPolicyTest) as caught:
        parse_suite({"cases": list(cases)}, policies)
    return {error.path: error.message for error in caught.value.errors}


ROLLBACK_TOLD = "step 123: loss-spike of guard decides action Rollback, firstBadStep 121, notAfter 21"
SPIKES = {"loss": f"{HEALTHY} 9.5 9.8x3 2.0x6"}
RECORDED = {"step": 121, "rule": "lone-spike", "action": "Record"}
ROLLED_BACK = {"step": 123, "rule": "loss-spike", "action": "Rollback"}


def test_a_case_passes_when_all_comes_as_expected() -> None:
    verdicts = [
        {"at": 1, "to": 10, "rule": "loss-spike", "state": "Pending", "reason": "WarmingUp"},
        {"at": 120, "rule": "loss-spike", "state": "Healthy", "says": "std"},
        {"at": 123, "rule": "loss-spike", "state": "Firing", "reason": "Spike", "firstBadStep": 121, "streak": 3},
        {"at": 123, "rule": "loss-spike", "state": "Firing", "observed": 9.8},
    ]
    result = run(case(series=SPIKES, verdicts=verdicts, decisions=[RECORDED, ROLLED_BACK]))
    assert result.passed, told(result)
    assert result.decisions == 2


def test_a_decision_that_is_not_listed_fails_the_case_with_its_sentence() -> None:
    result = run(case(series=SPIKES, decisions=[RECORDED]))
    assert told(result) == [
        (
            "cases[0].decisions",
            "",
            f"a decision that is not listed: {ROLLBACK_TOLD}, target 0",
        )
    ]
    assert result.failures[0].sentence.startswith("loss 9.8 > 2.4")


def test_a_decision_that_does_not_come_fails_the_case() -> None:
    result = run(case(series={"loss": HEALTHY}, decisions=[{**ROLLED_BACK, "step": 100}]))
    assert told(result) == [
        ("cases[0].decisions[0]", "step 100: loss-spike decides action Rollback", "no such decision")
    ]


def test_a_decision_that_differs_is_told_beside_the_one_expected() -> None:
    result = run(case(series=SPIKES, decisions=[RECORDED, {**ROLLED_BACK, "firstBadStep": 120}]))
    [(path, expected, found)] = told(result)
    assert path == "cases[0].decisions[1]"
    assert expected == "step 123: loss-spike decides action Rollback, firstBadStep 120"
    assert "firstBadStep 121" in found


def test_a_verdict_that_differs_is_told_with_what_the_rule_says() -> None:
    verdict = {"at": 122, "rule": "loss-spike", "state": "Firing"}
    result = run(case(series=SPIKES, verdicts=[verdict], decisions=[RECORDED, ROLLED_BACK]))
    [failure] = result.failures
    assert failure.path == "cases[0].verdicts[0]"
    assert (failure.expected, failure.found) == (
        "step 122: loss-spike state Firing",
        "state Pending, reason Breaching",
    )
    assert "2 records in a row of 3 since step 121" in failure.sentence


def test_a_stretch_of_verdicts_fails_at_its_first_wrong_step() -> None:
    verdict = {"at": 5, "to": 60, "rule": "loss-spike", "state": "Pending"}
    [failure] = run(case(series={"loss": HEALTHY}, verdicts=[verdict])).failures
    assert failure.expected.startswith("step 11:")


def test_a_sentence_that_is_not_said_fails_the_case() -> None:
    verdict = {"at": 100, "rule": "loss-spike", "state": "Healthy", "says": "grad_norm"}
    [failure] = run(case(series={"loss": HEALTHY}, verdicts=[verdict])).failures
    assert failure.expected.endswith("saying 'grad_norm'")


def test_a_case_that_lists_nothing_promises_that_nothing_is_decided() -> None:
    assert run(case(series={"loss": HEALTHY})).passed
    assert not run(case(series=SPIKES)).passed


def test_firing_on_and_on_is_one_decision_and_a_new_row_of_breaches_another() -> None:
    series = {"loss": f"{HEALTHY} 9.8x10 2.0x2 9.8x4 2.0"}
    again = [{**RECORDED, "step": 133}, {**ROLLED_BACK, "step": 135}]
    assert run(case(series=series, decisions=[RECORDED, ROLLED_BACK, *again])).passed


@pytest.mark.parametrize(
    ("checkpoints", "target"),
    [
        ({"checkpointEvery": 10}, 20),
        ({"checkpoints": [5, 15, 22]}, 15),
        ({"checkpoints": [22, 100]}, 0),
    ],
)
def test_the_target_is_the_newest_checkpoint_a_margin_before_the_first_bad_step(
    checkpoints: dict[str, object], target: int
) -> None:
    decision = {**ROLLED_BACK, "notAfter": 21, "target": target}
    result = run(case(series=SPIKES, decisions=[RECORDED, decision], **checkpoints))
    assert result.passed, told(result)


def test_a_run_that_began_later_has_no_state_at_step_0_to_go_back_to() -> None:
    one = case(startStep=140_749, series=SPIKES, checkpoints=[140_800])
    recorded = {**RECORDED, "step": 140_870}
    decision = {**ROLLED_BACK, "step": 140_872, "firstBadStep": 140_870, "notAfter": 140_770, "target": 0}
    [failure] = run({**one, "decisions": [recorded, decision]}).failures
    assert failure.found.endswith("notAfter 140770, target none")


def test_under_observation_a_rollback_is_recorded_and_says_what_it_would_have_been() -> None:
    decisions = [RECORDED, {**ROLLED_BACK, "action": "Record", "wouldHave": "Rollback", "notAfter": 21}]
    result = run(case(series=SPIKES, mode="Observe", decisions=decisions))
    assert result.passed, told(result)


def test_an_element_is_named_by_its_index() -> None:
    rule = {
        "name": "clipped",
        "metric": "qk_clip_gamma",
        "reduce": {"longestStreakBelow": 1},
        "range": {"max": 19},
        "action": "Notify",
    }
    gamma = {"shape": [2, 4], "base": "1x60", "elements": {"[1,2]": "_x10 0.9x25", "[0,0]": "0.5x5"}}
    verdict = {"at": 30, "rule": "clipped", "state": "Firing", "element": [1, 2], "streak": 1, "observed": 20}
    decision = {"step": 30, "rule": "clipped", "action": "Notify"}
    policy = accepted(rule)
    result = run(case(series={"qk_clip_gamma": gamma}, verdicts=[verdict], decisions=[decision]), policy)
    assert result.passed, told(result)


def test_a_log_written_every_k_steps_counts_records_and_names_steps() -> None:
    decisions = [{**RECORDED, "step": 605}, {**ROLLED_BACK, "step": 615, "firstBadStep": 605}]
    result = run(case(series=SPIKES, everySteps=5, decisions=decisions))
    assert result.passed, told(result)


def test_a_later_attempt_continues_the_surviving_records_and_its_streak_begins_anew() -> None:
    later = {"attempt": 2, "from": 1, "branchStep": 122, "series": {"loss": "9.8x3 2.0x4"}}
    verdicts = [
        {"at": 122, "attempt": 1, "rule": "loss-spike", "state": "Pending", "streak": 2},
        {"at": 123, "attempt": 2, "rule": "loss-spike", "state": "Pending", "streak": 1},
        {"at": 125, "attempt": 2, "rule": "loss-spike", "state": "Firing", "firstBadStep": 123},
    ]
    decisions = [
        RECORDED,
        {**RECORDED, "attempt": 2, "step": 123},
        {**ROLLED_BACK, "attempt": 2, "step": 125, "target": 10},
    ]
    one = case(
        series={"loss": f"{HEALTHY} 9.8x2"},
        attempts=[later],
        verdicts=verdicts,
        decisions=decisions,
        checkpoints=[10, 60],
    )
    result = run(one)
    assert result.passed, told(result)


def test_what_a_rollback_undid_is_not_judged_again_and_enters_no_baseline() -> None:
    later = {"attempt": 2, "from": 1, "branchStep": 100, "series": {"loss": "2.0x10"}}
    verdict = {"at": 101, "attempt": 2, "rule": "loss-spike", "state": "Healthy", "says": "mean 2 +"}
    one = case(series=SPIKES, attempts=[later], verdicts=[verdict], decisions=[RECORDED, ROLLED_BACK])
    result = run(one)
    assert result.passed, told(result)


def test_a_checkpoint_of_an_undone_stretch_is_never_the_target() -> None:
    later = {"attempt": 2, "from": 1, "branchStep": 10, "series": SPIKES, "checkpoints": [25]}
    decisions = [
        RECORDED,
        ROLLED_BACK,
        {**RECORDED, "attempt": 2, "step": 131},
        {**ROLLED_BACK, "attempt": 2, "step": 133, "notAfter": 31, "target": 25},
    ]
    result = run(case(series=SPIKES, checkpoints=[10, 30], attempts=[later], decisions=decisions))
    assert result.passed, told(result)


def test_judgement_stops_at_a_missing_record() -> None:
    verdict = {"at": 60, "rule": "loss-spike", "state": "Healthy"}
    [failure] = run(case(series=SPIKES, missingSteps=[50], verdicts=[verdict])).failures
    assert failure.found == "no verdict: judgement stops at the missing step 50"
    assert run(case(series=SPIKES, missingSteps=[50])).passed


STALE = accepted(
    {"name": "silence", "metric": None, "stale": {"after": "5m"}, "action": "Pause"},
    {"name": "no-loss", "range": {"max": 100}, "onNoData": "Breach", "noDataFor": "2m", "action": "Rollback"},
)


def test_time_passes_by_the_step_and_by_pauses_and_absence_is_judged_by_it() -> None:
    one = case(
        series={"loss": "2x20 _x13 2x10"},
        secondsPerStep=10,
        pauses=[{"afterStep": 40, "seconds": 400}],
        verdicts=[
            {"at": 31, "rule": "no-loss", "state": "NoData"},
            {"at": 32, "rule": "no-loss", "state": "Firing", "reason": "AbsentTooLong", "firstBadStep": 21},
            {"at": 40, "rule": "silence", "state": "Healthy"},
            {"at": 40, "waited": True, "rule": "silence", "state": "Firing", "reason": "Stale"},
        ],
        decisions=[
            {"step": 31, "rule": "no-loss", "action": "Rollback"},
            {"step": 40, "rule": "no-loss", "action": "Rollback"},
        ],
    )
    result = run(one, STALE)
    assert result.passed, told(result)


def test_without_seconds_per_step_no_time_passes() -> None:
    verdict = {"at": 43, "rule": "silence", "state": "NoData"}
    assert run(case(series={"loss": "2x20 _x23"}, verdicts=[verdict]), STALE).passed


def test_a_policy_is_named_where_two_have_a_rule_of_the_same_name() -> None:
    twin = accepted({"name": "lone-spike", "range": {"max": 5}, "action": "Notify"}, name="twin")
    found = errors_of(case(series=SPIKES, decisions=[RECORDED]), policies=(GUARD, twin))
    assert found == {
        "cases[0].decisions[0].policy": "is required, since more than one policy has a rule lone-spike; "
        "choose among guard, twin"
    }
    decisions = [{**RECORDED, "policy": "twin", "action": "Notify"}, {**ROLLED_BACK, "policy": "guard"}]
    assert run(case(series=SPIKES, decisions=[*decisions, {**decisions[0], "step": 124}]), GUARD, twin).decisions == 2


LATER = {"attempt": 2, "from": 1, "branchStep": 10, "series": {"loss": "2x5"}}


@pytest.mark.parametrize(
    ("fields", "path", "says"),
    [
        ({"series": {"los": "2x3"}}, "series.los", "no rule under test reads los; they read loss; did you mean loss?"),
        ({"series": {"Loss": "2x3"}}, "series.Loss", "must be a metric's name"),
        ({"series": {"loss": "2y3"}}, "series.loss", "at character 1 (2y3): is none of"),
        ({"series": {"loss": "2"}}, "series", "has no end"),
        ({"series": "2x3"}, "series", "must be an object; it is '2x3'"),
        ({}, "series", "is required"),
        ({"seires": {}}, "seires", "known are series, missingSteps"),
        ({"verdicts": [{"at": 1, "rule": "loss-spiek", "state": "Firing"}]}, "verdicts[0].rule", "did you mean loss-"),
        ({"verdicts": [{"at": 1, "rule": "loss-spike", "state": "Fire"}]}, "verdicts[0].state", "it is 'Fire'"),
        ({"verdicts": [{"at": 9, "rule": "loss-spike", "state": "Firing"}]}, "verdicts[0].at", "steps 1 to 3; it is 9"),
        ({"verdicts": [{"at": 3, "to": 2, "rule": "loss-spike", "state": "Firing"}]}, "verdicts[0].to", "at least at"),
        ({"verdicts": [{"at": 1, "waited": True, "rule": "loss-spike", "state": "Firing"}]}, "verdicts[0].waited", "s"),
        ({"decisions": [{**RECORDED, "step": 2, "target": 1}]}, "decisions[0].target", "needs checkpoints"),
        ({"decisions": [{**RECORDED, "step": 2, "attempt": 2}]}, "decisions[0].attempt", "must be one of 1; it is 2"),
        ({"decisions": [{**RECORDED, "step": 2, "policy": "gaurd"}]}, "decisions[0].policy", "did you mean guard?"),
        ({"pauses": [{"afterStep": 1, "seconds": 5}]}, "pauses", "needs secondsPerStep"),
        ({"secondsPerStep": 1, "pauses": [{"afterStep": 7, "seconds": 5}]}, "pauses[0].afterStep", "steps 1 to 3"),
        ({"missingSteps": [4]}, "missingSteps[0]", "steps 1 to 3; it is 4"),
        ({"attempts": [LATER]}, "attempts[0].branchStep", "between 0 and 3, the last step of attempt 1; it is 10"),
        ({"attempts": [{**LATER, "from": 3}]}, "attempts[0].from", "one of 1; it is 3"),
        ({"attempts": [{**LATER, "attempt": 1}]}, "attempts[0].attempt", "at least 2"),
        ({"mode": "Act"}, "mode", "must be 'Observe' or 'Enforce'; it is 'Act'"),
        ({"name": ""}, "name", "must not be empty"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_path(fields: dict[str, Any], path: str, says: str) -> None:
    found = errors_of(
        {"name": "a case", **({"series": {"loss": "2x3"}} if "seires" not in fields and fields else {}), **fields}
    )
    assert says in found[f"cases[0].{path}"], found


@pytest.mark.parametrize(
    ("vector", "path", "says"),
    [
        ({"base": 1}, "shape", "is required"),
        ({"shape": [2, 0], "base": 1}, "shape[1]", "at least 1; it is 0"),
        ({"shape": [100_000], "base": 1}, "shape[0]", "at most 65536"),
        ({"shape": [1000, 1000], "base": 1}, "shape", "at most 65536 elements; it has 1000000"),
        ({"shape": [2, 2]}, "base", "is required"),
        ({"shape": [2, 2], "base": 1, "elements": {"[2,0]": "1x3"}}, "elements[2,0]", "such as [0, 0] in shape [2, 2]"),
        ({"shape": [2, 2], "base": 1, "elements": {"first": "1x3"}}, "elements[first]", "it is first"),
        ({"shape": [2, 2], "base": "1x2", "elements": {"[0,0]": "1x3"}}, "elements[0,0]", "where base has 2"),
        ({"shape": [2, 2], "base": 1, "element": {}}, "element", "known are shape, base, elements"),
    ],
)
def test_a_wrong_vector_is_refused_with_its_path(vector: dict[str, Any], path: str, says: str) -> None:
    found = errors_of(case(series={"loss": vector}))
    assert says in found[f"cases[0].series.loss.{path}"], found


def test_a_series_that_ends_before_the_others_is_refused() -> None:
    policy = accepted({"range": {"max": 5}}, {"metric": "grad_norm", "range": {"max": 5}})
    found = errors_of(case(series={"loss": "2x10", "grad_norm": "1x4"}), policies=(policy,))
    assert found["cases[0].series.grad_norm"].startswith("has 4 values where the longest series has 10; add `x*`")
    assert run(case(series={"loss": "2x10", "grad_norm": "1x3 2x*"}), policy).passed


def test_all_errors_of_a_file_come_at_once() -> None:
    first = case(series={"los": "2x3", "loss": "2y"}, verdicts=[{"at": 0, "rule": "nobody", "state": "Up"}], mode="On")
    second = {"name": "another", "series": {"loss": "2x3"}, "decisions": [{"step": 9, "rule": "lone-spike"}]}
    assert set(errors_of(first, second, 3)) == {
        "cases[0].mode",
        "cases[0].series.los",
        "cases[0].series.loss",
        "cases[0].verdicts[0].at",
        "cases[0].verdicts[0].rule",
        "cases[0].verdicts[0].state",
        "cases[1].decisions[0].action",
        "cases[2]",
    }


def test_two_cases_of_one_name_are_refused() -> None:
    one = case(series={"loss": "2x3"})
    assert errors_of(one, one) == {"cases[1].name": "'a case' is already the name of cases[0]; rename one"}


@pytest.mark.parametrize("content", [None, [], "cases", {}, {"cases": []}, {"cases": {}}, {"cases": 3, "policy": "x"}])
def test_what_is_no_test_file_is_refused(content: object) -> None:
    with pytest.raises(InvalidPolicyTest):
        parse_suite(content, (GUARD,))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("name", "series", "attempts", "verdicts", "decisions", "pauses", "missingSteps", "checkpoints", "everySteps")


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6), st.text(max_size=12))
@settings(deadline=None, max_examples=150)
def test_content_of_any_shape_is_run_or_refused(fields: dict[str, Any], loss: str) -> None:
    one = {"name": "a", "series": {"loss": loss or "2x3"}, **fields}
    cases: tuple[Case, ...] = ()
    refused: tuple[FieldError, ...] = ()
    try:
        cases = parse_suite({"cases": [one]}, (GUARD,))
    except InvalidPolicyTest as error:
        refused = error.errors
    assert len(cases) == (0 if refused else 1)
    assert all(run_case(parsed, (GUARD,)).name == one["name"] for parsed in cases)
