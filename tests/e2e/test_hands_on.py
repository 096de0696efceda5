"""People's hands on a run on the real node: a hold, data skipped ahead of time, a plan that waits for approval."""

import pytest
from training_jobs import Namespace, guard_policy, prepare_data, training_job
from typed_commands import trimtab

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

STEPS = 600
SKIPPED_AHEAD = (420, 425)
DAMAGED = (480, 485)


def test_a_run_is_held_let_go_and_rolled_back_only_when_a_person_approves_the_plan(namespace: Namespace) -> None:
    policy = guard_policy()
    policy["spec"]["remediation"]["approval"] = "Required"
    namespace.apply(policy, training_job("asked", prepare_data(damage=[DAMAGED]), steps=STEPS))
    namespace.wait_step("asked", 20)

    held = trimtab(namespace, "job", "hold", "asked", "--reason", "a look at it")
    assert held.returncode == 0, held.stderr
    namespace.wait_action("asked", "Held")
    first, last = SKIPPED_AHEAD
    ahead = trimtab(namespace, "job", "skip", "asked", f"{first}-{last}", "--reason", "a shard known to be bad")
    assert ahead.returncode == 0, ahead.stderr
    again = trimtab(namespace, "job", "skip", "asked", "0-5", "--reason", "too late")
    assert again.returncode == 1
    assert "RangeAlreadyTrained" in again.stdout
    gone_on = trimtab(namespace, "job", "resume", "asked", "--reason", "it looks well")
    assert gone_on.returncode == 0, gone_on.stderr

    namespace.wait_phase("asked", "AwaitingApproval")
    wrong = trimtab(namespace, "job", "approve", "asked", "--plan", "0" * 64, "--yes", "--reason", "unseen")
    assert wrong.returncode == 1
    (incident,) = [one for one in namespace.items("guardincidents") if one["spec"]["trigger"].get("rule")]
    (plan,) = incident["spec"]["plans"]
    assert plan["hash"] in wrong.stderr
    agreed = trimtab(namespace, "job", "approve", "asked", "--plan", plan["hash"], "--yes", "--reason", "as expected")
    assert agreed.returncode == 0, agreed.stderr
    namespace.wait_phase("asked", "Completed")

    trail = namespace.trail("asked")
    answers = trail.of("RunRequested")
    told = [((one.after or {})["request"]["action"], one.outcome) for one in answers]
    assert told == [
        ("Hold", "Accepted"),
        ("Skip", "Accepted"),
        ("Skip", "Refused"),
        ("Resume", "Accepted"),
        ("Approve", "Accepted"),
    ]
    assert len({one.on_behalf_of for one in answers} - {None, ""}) == 1
    assert [one.outcome for one in trail.of("IncidentClosed")] == ["Recovered"]
    (extent,) = trail.of("ExtentFound")
    skip = (extent.after or {})["skip"]
    bound = plan["skipBound"]
    assert bound["first"] <= skip["first"] <= DAMAGED[0]
    assert DAMAGED[1] <= skip["last"] <= bound["last"]

    trained = {record.window for record in namespace.surviving("asked").values()}
    assert not trained & {*range(first, last + 1), *range(DAMAGED[0], DAMAGED[1] + 1)}
    read = {(entry.attempt, entry.window) for _, entry in namespace.batch_log("asked")}
    assert not {window for _, window in read} & set(range(first, last + 1))
    assert {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods("asked")} == {"1"}
