"""Jobs in words."""

import pytest
from trimtab_cli.job_view import age, event_order, job_row, job_summary, status_line

NEW = {
    "metadata": {"name": "demo", "namespace": "lab", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"checkpoint": {"uri": "s3://b/p"}},
}
MIDNIGHT = 1767225600.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d"), (-5, "0s")],
)
def test_ages_are_told_in_their_largest_unit(seconds: float, words: str) -> None:
    assert age("2026-01-01T00:00:00Z", MIDNIGHT + seconds) == words


def test_a_job_that_nobody_has_looked_at_yet_is_pending() -> None:
    assert job_summary(NEW)["phase"] == "Pending"
    assert job_row(NEW, MIDNIGHT + 7) == ("demo", "lab", "Pending", "-", "-", "-", "-", "-", "7s")
    assert status_line(NEW) == "Pending, step 0, attempt 0"


def test_step_zero_and_no_rollbacks_are_numbers_and_not_absent() -> None:
    row = job_row({**NEW, "status": {"step": 0, "rollbacks": 0, "attempt": 1}}, MIDNIGHT)
    assert (row[3], row[5], row[6]) == ("0", "1", "0")


def test_events_of_one_second_come_in_the_order_they_were_made() -> None:
    made = ("Diagnosed", "9"), ("TargetSelected", "10"), ("Held", "8"), ("Old", "11")
    events = [
        {
            "reason": reason,
            "firstTimestamp": "2026-01-01T00:00:00Z" if reason == "Old" else "2026-01-01T00:00:01Z",
            "metadata": {"resourceVersion": version},
        }
        for reason, version in made
    ]
    assert [one["reason"] for one in sorted(events, key=event_order)] == ["Old", "Held", "Diagnosed", "TargetSelected"]


def test_an_event_with_parts_of_a_second_is_no_earlier_than_the_others_of_its_second() -> None:
    plain = {"firstTimestamp": "2026-01-01T00:00:01Z", "metadata": {"resourceVersion": "7"}}
    fine = {"eventTime": "2026-01-01T00:00:01.900000Z", "metadata": {"resourceVersion": "8"}}
    assert sorted([fine, plain], key=event_order) == [plain, fine]


@pytest.mark.parametrize(("stored", "told"), [("1.4200", 1.42), ("0.0000", 0.0), ("nan", "nan"), (None, None)])
def test_a_loss_is_a_number_for_programs_and_as_it_was_stored_for_people(stored: str | None, told: object) -> None:
    job = {**NEW, "status": {"loss": stored}}
    assert job_summary(job)["loss"] == told
    assert job_row(job, MIDNIGHT)[4] == (stored or "-")
    assert ("loss" in status_line(job)) is (stored is not None)
