"""Jobs in words."""

import pytest
from trimtab_cli.job_view import age, job_row, job_summary, status_line

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
