"""Two jobs at once: the trouble of one never touches the other, and nobody's secrets show anywhere."""

import pytest
from secret_search import assert_no_secret_shows
from surviving_history import assert_each_window_once, losses, worlds
from training_jobs import Namespace, guard_policy, prepare_data, training_job

pytestmark = pytest.mark.node

STEPS, DAMAGE = 190, (150, 155)


def test_a_damaged_job_leaves_its_neighbour_as_it_would_be_alone(namespace: Namespace) -> None:
    """The healthy one is trained twice: beside a damaged one, and alone; its losses are the same, bit for bit."""
    damaged = training_job("damaged", prepare_data(damage=[DAMAGE]), steps=STEPS)
    namespace.apply(guard_policy(), damaged, training_job("healthy", prepare_data(), steps=STEPS))
    namespace.wait_phase("damaged", "Completed")
    namespace.wait_phase("healthy", "Completed")

    assert len(namespace.trail("damaged").of("IncidentOpened")) == 1
    trail = namespace.trail("healthy")
    assert trail.state.attempt == 1
    assert not trail.state.incident_names
    assert not trail.state.rollback_times
    directives = [(one.after or {})["directive"] for one in trail.records if "directive" in (one.after or {})]
    assert [one["action"] for one in directives] == ["Run", "Finish"]
    assert worlds(namespace, "healthy") == {"1"}
    assert_each_window_once(namespace, "healthy", STEPS)
    assert [one["metadata"]["name"] for one in namespace.items("guardincident")] == [f"damaged-a1-s{DAMAGE[0] + 1}"]

    namespace.apply(training_job("alone", prepare_data(), steps=STEPS))
    namespace.wait_phase("alone", "Completed")
    assert losses(namespace, "alone") == losses(namespace, "healthy")

    assert_no_secret_shows(namespace, "damaged", "healthy", "alone")
