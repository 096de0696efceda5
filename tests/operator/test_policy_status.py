"""A policy's owner sees in its status whether the newest text is valid, and which text is the last valid one."""

from typing import Any

from trimtab_operator.policy_reporter import policy_status
from trimtab_policies.policy import parse_policy, policy_hash

NOW, LATER = "2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"
VALID: dict[str, Any] = {
    "rules": [{"name": "finite", "metric": "nonfinite", "range": {"max": 0}, "action": "Rollback"}],
}
INVALID: dict[str, Any] = {
    "rules": [{"name": "finite", "metric": "nonfinite", "range": {"min": 2, "max": 0}, "action": "Rollback"}],
}


def guard(spec: dict[str, Any], generation: int, status: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "guard", "generation": generation}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_valid_text_is_accepted_under_its_hash() -> None:
    status = policy_status(guard(VALID, 1), NOW)
    assert status["hash"] == policy_hash(parse_policy(VALID))
    (accepted,) = status["conditions"]
    assert (accepted["type"], accepted["status"], accepted["reason"]) == ("Accepted", "True", "PolicyAccepted")


def test_an_invalid_edit_names_the_field_and_keeps_the_hash_of_the_last_valid_text() -> None:
    before = policy_status(guard(VALID, 1), NOW)
    status = policy_status(guard(INVALID, 2, before), LATER)
    assert status["hash"] == before["hash"]
    (accepted,) = status["conditions"]
    assert (accepted["status"], accepted["reason"]) == ("False", "PolicyInvalid")
    assert "spec.rules[0].range" in accepted["message"]
    assert accepted["lastTransitionTime"] == LATER


def test_nothing_new_changes_nothing() -> None:
    before = policy_status(guard(VALID, 1), NOW)
    assert policy_status(guard(VALID, 1, before), LATER) == before
