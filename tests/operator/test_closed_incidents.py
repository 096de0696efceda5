"""What people are shown of an incident that is over: what was done, and never what was only planned."""

from dataclasses import replace
from typing import Any

import msgspec
from run_fates import DAMAGED, at
from run_states import incident, reference
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_operator.incident_view import incident_status
from trimtab_operator.incidents import Incident, SkipRange

WAITING = replace(DAMAGED, approval=50)
REJECTED = "plan 1 is not carried out: ada rejects it (seen and understood)"
TAKEN, WIDER = SkipRange(first=23, last=31, bad=6), SkipRange(first=23, last=60, bad=30)


def shown(run: ScriptedRun) -> dict[str, Any]:
    (closed,) = run.state.closed
    return incident_status(closed, run.state)


def ended(one: Incident) -> dict[str, Any]:
    closed = msgspec.structs.replace(one, outcome="Stopped")
    return incident_status(closed, play(DAMAGED).state)


def test_while_a_plan_waits_it_is_shown_with_what_it_would_do() -> None:
    run = play(WAITING, at_least=40, ticks=60)
    assert run.state.incident is not None
    status = incident_status(run.state.incident, run.state)
    assert (status["target"], status["skip"], status["failedPlans"]) == (20, "23-44 at most", None)


def test_a_rejected_plan_restored_and_skipped_nothing() -> None:
    run = play(WAITING, on_tick=at({60: lambda run: run.ask("Reject"), 65: lambda run: run.ask("Stop")}), at_least=90)
    status = shown(run)
    assert status["outcome"] == "Stopped"
    assert (status["target"], status["skip"], status["skipped"]) == (None, None, None)
    assert status["failedPlans"] == [{"number": 1, "reason": REJECTED}]


def test_a_plan_that_is_rejected_is_shown_as_such_at_once_and_its_target_may_be_chosen_again() -> None:
    rejected = {60: lambda run: run.ask("Reject")}
    run = play(WAITING, on_tick=at(rejected), at_least=70, ticks=70)
    assert run.state.incident is not None
    status = incident_status(run.state.incident, run.state)
    assert (status["target"], status["skip"]) == (None, None)
    assert status["failedPlans"] == [{"number": 1, "reason": REJECTED}]
    run = play(
        WAITING,
        on_tick=at({**rejected, 75: lambda run: run.ask("Rollback"), 85: lambda run: run.ask("Approve")}),
        at_least=120,
    )
    (closed,) = run.state.closed
    # It was never tried, so it is as good as it was.
    assert [plan.target.step for plan in closed.plans] == [20, 20]


def test_a_run_stopped_while_its_plan_waits_restored_nothing() -> None:
    status = shown(play(WAITING, on_tick=at({60: lambda run: run.ask("Stop")}), at_least=90))
    assert (status["target"], status["skip"]) == (None, None)


def test_an_incident_that_was_mended_shows_what_was_restored_and_skipped() -> None:
    status = shown(play(DAMAGED))
    assert status["outcome"] == "Recovered"
    assert (status["target"], status["skip"], status["failedPlans"]) == (20, "23-31", None)
    assert status["skipped"] == {"first": 23, "last": 31, "bad": 6}


def test_a_plan_that_nobody_approved_leaves_what_the_one_before_it_did() -> None:
    mended = incident(targets=(reference(170),), extent=TAKEN).gone_on()
    relapsed = msgspec.structs.replace(
        mended, extent=None, plans=incident(targets=(reference(170), reference(160))).plans
    )
    status = ended(relapsed)
    assert (status["target"], status["skip"]) == (170, "23-31")
    assert status["failedPlans"] == [{"number": 2, "reason": "it was not carried out"}]


def test_a_wider_range_that_nobody_approved_was_not_skipped() -> None:
    restored = incident(targets=(reference(170),)).put_in_place()
    asked = msgspec.structs.replace(
        restored, extent=WIDER, extent_done=True, plans=incident(targets=(reference(170), reference(170))).plans
    )
    status = ended(asked)
    assert (status["target"], status["skip"], status["skipped"]) == (170, None, None)


def test_a_checkpoint_that_proved_bad_once_it_was_in_place_is_not_what_was_restored() -> None:
    restored = incident(targets=(reference(170),)).put_in_place()
    (plan,) = restored.plans
    failed = msgspec.structs.replace(restored, plans=(msgspec.structs.replace(plan, failed="its control is bad"),))
    status = ended(failed)
    assert status["target"] is None
    assert status["failedPlans"] == [{"number": 1, "reason": "its control is bad"}]
