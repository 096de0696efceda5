"""What a person asks of a run with `trimtab job`: in their own name, with a reason, and as it was typed."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from job_laboratory import AGE, Laboratory
from operator_objects import guard_incident, incident_plan
from trimtab_cli.__main__ import app
from trimtab_cli.errors import UsageError
from typer.testing import CliRunner

PLAN = "abc123" + "0" * 58


@contextmanager
def answering(laboratory: Laboratory, status: dict[str, Any]) -> Generator[None]:
    """Somebody who answers the first request of the namespace, as the operator does."""

    def answer() -> None:
        while not ended.wait(0.1):
            names = laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name").split()
            if names:
                laboratory.status("rr", names[0].partition("/")[2], status)
                return

    ended = threading.Event()
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("command", "state", "code"),
    [("resume", "Accepted", 0), ("rollback", "Done", 0), ("stop", "Accepted", 0), ("resume", "Refused", 1)],
)
def test_a_person_asks_in_their_own_name_and_waits_for_the_answer(
    laboratory: Laboratory, command: str, state: str, code: int
) -> None:
    with answering(laboratory, {"state": state, "message": "it is so", "answeredTime": AGE}):
        result = laboratory.trimtab("job", command, "demo", "--reason", "the spike is known", "-o", "json")
    assert result.exit_code == code, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["job"], answer["action"], answer["by"]) == ("demo", command.capitalize(), "admin")
    assert (answer["state"], answer["message"]) == (state, "it is so")
    stored = json.loads(laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=json"))["items"]
    (request,) = stored
    assert request["spec"]["reason"] == "the spike is known"
    assert [owner["uid"] for owner in request["metadata"]["ownerReferences"]] == [laboratory.run.uid]


def test_the_answer_is_told_in_one_line(laboratory: Laboratory) -> None:
    with answering(laboratory, {"state": "Refused", "message": "Resume is refused in phase Watching"}):
        result = laboratory.trimtab("job", "resume", "demo", "--reason", "why not")
    assert (result.exit_code, result.stdout) == (1, "Refused: Resume is refused in phase Watching\n")


def test_a_request_that_nobody_answers_is_said_to_stay(laboratory: Laboratory) -> None:
    result = laboratory.trimtab("job", "stop", "demo", "--reason", "enough", "--timeout", "0")
    assert result.exit_code == 1
    assert "No operator has answered runrequest demo-stop-" in str(result.exception)


def asked(laboratory: Laboratory, *command: str) -> dict[str, Any]:
    """The spec of the RunRequest that a command makes; nobody answers."""
    before = set(laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name").split())
    result = laboratory.trimtab("job", *command, "--reason", "because", "--timeout", "0")
    assert "No operator has answered runrequest demo-" in str(result.exception), (result.exception, result.stderr)
    after = set(laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name").split())
    (made,) = after - before
    spec = json.loads(laboratory.plane.kubectl("get", made, f"-n={laboratory.namespace}", "-o=json"))["spec"]
    assert (spec.pop("job"), spec.pop("by"), spec.pop("reason")) == ("demo", "admin", "because")
    return spec


def test_every_verb_asks_for_what_was_typed(laboratory: Laboratory) -> None:
    assert asked(laboratory, "hold", "demo") == {"action": "Hold"}
    assert asked(laboratory, "skip", "demo", "480-505") == {
        "action": "Skip",
        "args": {"skip": {"first": 480, "last": 505}},
    }
    changes = ("--to", "300", "--skip", "480-505", "--lr-scale", "0.5", "--lr-steps", "100")
    assert asked(laboratory, "rollback", "demo", *changes) == {
        "action": "Rollback",
        "args": {
            "toStep": 300,
            "skip": {"first": 480, "last": 505},
            "learningRate": {"scale": 0.5, "forSteps": 100},
        },
    }
    assert asked(laboratory, "rollback", "demo", "--to", "root/x/manifest.json", "--unchanged") == {
        "action": "Rollback",
        "args": {"toKey": "root/x/manifest.json", "unchanged": True},
    }
    assert asked(laboratory, "reject", "demo") == {"action": "Reject"}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("skip", "demo", "480"), "'480' are no windows: write them as FIRST-LAST, such as 480-505."),
        (("skip", "demo", "505-480"), "'505-480' are no windows"),
        (("rollback", "demo", "--lr-scale", "0.5"), "--lr-scale and --lr-steps belong together"),
        (("approve", "demo", "--yes"), "--yes would approve whatever waits by then: name the plan with --plan HASH."),
    ],
)
def test_what_was_typed_wrongly_is_said_before_anything_is_asked(command: tuple[str, ...], why: str) -> None:
    result = CliRunner().invoke(app, ["job", *command, "--reason", "x", "--kubeconfig=/dev/null"])
    assert isinstance(result.exception, UsageError)
    assert why in str(result.exception)


def test_what_contradicts_itself_is_refused_by_the_api_server(laboratory: Laboratory) -> None:
    result = laboratory.trimtab("job", "rollback", "demo", "--unchanged", "--skip", "1-2", "--reason", "x")
    assert isinstance(result.exception, UsageError)
    assert "spec.args.unchanged" in str(result.exception)


def test_a_plan_is_shown_before_it_is_approved_by_its_hash(laboratory: Laboratory) -> None:
    nothing = laboratory.trimtab("job", "approve", "demo", "--reason", "x")
    assert str(nothing.exception) == "No plan of demo waits for approval: it is Completed."
    plan = {**incident_plan(1), "hash": PLAN, "skipBound": {"first": 318, "last": 387}}
    laboratory.plane.apply(guard_incident(laboratory.namespace, job={"uid": laboratory.run.uid}, plans=[plan]))
    waits = {"planHash": PLAN, "deadline": AGE}
    message = "plan 1 waits for approval"
    laboratory.status("gi", "demo-a1-s320", {"phase": "AwaitingApproval", "approval": waits, "message": message})
    laboratory.status("tj", "demo", {"phase": "AwaitingApproval", "incident": "demo-a1-s320"})
    unseen = laboratory.trimtab("job", "approve", "demo", "--reason", "x")
    assert str(unseen.exception) == f"Nothing is approved; where nobody can be asked, give --plan {PLAN} --yes."
    for line in ("plan 1: restore step 200", "nothing outside windows 318 to 387 is skipped", PLAN, message):
        assert line in unseen.stderr
    declined = laboratory.trimtab("job", "approve", "demo", "--reason", "x", typed="n\n")
    assert declined.exit_code == 1
    assert declined.stderr.endswith("Nothing was asked for: the plan still waits.\n")
    assert laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name") == ""
    seen = laboratory.trimtab("job", "approve", "demo", "--reason", "x", "--timeout", "0", typed="y\n")
    assert "No operator has answered runrequest demo-approve-" in str(seen.exception)
    stale = laboratory.trimtab("job", "approve", "demo", "--plan", "0" * 64, "--yes", "--reason", "x")
    assert str(stale.exception) == f"Plan {'0' * 64} is not the one that waits: that is {PLAN}; look at it again."
    assert asked(laboratory, "approve", "demo", "--plan", PLAN[:12], "--yes") == {"action": "Approve", "planHash": PLAN}
    assert asked(laboratory, "reject", "demo", "--plan", PLAN) == {"action": "Reject", "planHash": PLAN}
    told = laboratory.trimtab("job", "describe", "demo").stdout
    assert f"hash {PLAN}" in told


def test_nothing_is_asked_without_a_reason_or_of_nobody(laboratory: Laboratory) -> None:
    assert laboratory.trimtab("job", "stop", "demo").exit_code == 2
    nobody = laboratory.trimtab("job", "stop", "nobody", "--reason", "enough")
    assert "There is no trainingjob nobody" in str(nobody.exception)
    empty = laboratory.trimtab("job", "stop", "demo", "--reason", "")
    assert isinstance(empty.exception, UsageError)
    assert "spec.reason" in str(empty.exception)
    assert laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name") == ""
