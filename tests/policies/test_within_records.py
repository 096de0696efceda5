"""`withinRecords`: so many of the last records, not in a row."""

from typing import Any

import pytest
from judged_runs import accepted, judged, losses, new_run
from trimtab_policies.errors import InvalidPolicy
from trimtab_policies.explanation import explain
from trimtab_policies.policy import AcceptedPolicy, parse_policy
from trimtab_policies.reach import reach
from trimtab_policies.verdicts import State, Verdict

SHARE: dict[str, Any] = {"range": {"max": 1}, "forRecords": 3, "withinRecords": 5}


def verdicts(values: list[float | None], **settings: Any) -> list[Verdict]:
    return judged(accepted(SHARE | settings), losses(values))


def letters(found: list[Verdict]) -> str:
    return "".join(verdict.state.value[0] for verdict in found)


def test_a_rule_fires_while_enough_of_the_last_records_breach() -> None:
    assert letters(verdicts([2, 0, 2, 0, 2, 0, 0, 0, 2])) == "PHPHFHHHP"


def test_a_healthy_record_ends_nothing_while_enough_still_breach() -> None:
    found = verdicts([2, 2, 2, 0, 0, 0])
    assert letters(found) == "PPFFFH"
    assert found[4].streak == 3


def test_the_event_keeps_its_first_step_while_the_rule_fires() -> None:
    found = verdicts([2, 0, 2, 2, 2, 2, 2, 2])
    assert {verdict.first_bad_step for verdict in found if verdict.state is State.FIRING} == {1}
    assert verdicts([2, 2, 2, 0, 0, 0, 2, 2, 2])[-1].first_bad_step == 7


def test_a_record_without_the_metric_takes_no_place_among_the_last_ones() -> None:
    assert letters(verdicts([2, None, None, None, None, 2, None, 2])) == "PNNNNPNF"


def test_a_new_attempt_begins_the_count_anew() -> None:
    run = new_run(policy := accepted(SHARE))
    judged(policy, losses([2, 2]), run)
    run.rebase(2, 1, 2)
    assert letters(judged(policy, losses([2, 2, 2], first=3, attempt=2), run)) == "PPF"


def test_the_explanation_says_of_how_many() -> None:
    assert explain(verdicts([2, 0, 2, 2])[-1]).endswith("3 records of the last 5 since step 1")


def test_it_counts_what_a_composite_finds_too() -> None:
    parts = [{"name": name, "metric": "loss", "range": {"max": 1}, "action": "Record"} for name in ("one", "two")]
    both = {"name": "both", "allOf": ["one", "two"], "forRecords": 2, "withinRecords": 3, "action": "Notify"}
    spec = parse_policy({"rules": [both, *parts]})
    policy = AcceptedPolicy.of(spec, kind="GuardPolicy", namespace="lab", name="both", uid="uid", generation=1)
    assert letters(judged(policy, losses([2, 0, 2, 0, 0]))) == "PHFHH"


def test_the_window_is_looked_back_over() -> None:
    assert reach(accepted(SHARE | {"withinRecords": 900}).spec.rules[0]) == 900


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            {"range": {"max": 1}, "forRecords": 5, "withinRecords": 3},
            "must be at least forRecords, which is 5; it is 3",
        ),
        ({"stale": {"after": "5m"}, "withinRecords": 3}, "must be left out with stale"),
    ],
)
def test_what_could_never_fire_is_refused(rule: dict[str, Any], words: str) -> None:
    metric = {} if "stale" in rule else {"metric": "loss"}
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy({"rules": [{"name": "share", "action": "Notify", **metric, **rule}]})
    assert [(error.path, words in error.message) for error in refused.value.errors] == [
        ("spec.rules[0].withinRecords", True)
    ]


def test_the_probe_has_room_for_the_whole_window() -> None:
    rule = {"name": "share", "metric": "loss", "action": "Rollback", **SHARE, "withinRecords": 60}
    with pytest.raises(InvalidPolicy, match=r"at least withinRecords \+ 8 = 68 of rule share; it is 64"):
        parse_policy({"rules": [rule]})
