"""From the batch logs alone it can be told what a run was trained on."""

import random
from collections.abc import Iterator

import pytest
from rollback_trail import STEPS, rollback_trail
from trimtab_cli.exactness import MAX_PROBLEMS, ExactnessReport, skipped_since, trained_windows
from trimtab_cli.trail import read_trail
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.evidence import BatchLogEntry

LEDGER = SkipLedger(((319, 333),))


def entry(attempt: int, step: int, window: int, rank: int) -> BatchLogEntry:
    return BatchLogEntry(attempt=attempt, step=step, window=window, sha256=f"{rank}-{window}")


def honest_log(rank: int) -> Iterator[BatchLogEntry]:
    """Steps 1 to 323, then from step 301 on again without the skipped windows."""
    yield from (entry(1, step, step - 1, rank) for step in range(1, 324))
    yield from (entry(2, step, LEDGER.window_of_step(step), rank) for step in range(301, STEPS + 1))


Logs = dict[int, list[BatchLogEntry]]


@pytest.fixture
def logs() -> Logs:
    return {rank: list(honest_log(rank)) for rank in range(2)}


def report(logs: Logs) -> ExactnessReport:
    trail = read_trail(rollback_trail())
    return trained_windows(logs, trail.state.attempts, LEDGER, STEPS, skipped_since(trail.counted), ranks=2)


def test_an_honest_run_is_exact(logs: Logs) -> None:
    found = report(logs)
    assert found.exact
    assert (found.ranks, found.windows, found.skipped) == (2, STEPS, 15)
    assert found.retrained == 319 - 300


def test_the_order_in_which_segments_are_read_does_not_matter(logs: Logs) -> None:
    shuffled = {rank: random.Random(rank).sample(entries, len(entries)) for rank, entries in logs.items()}
    assert report(shuffled) == report(logs)


def test_a_skipped_window_trained_on_after_the_rollback_is_found(logs: Logs) -> None:
    logs[1] = [entry(2, 320, 321, 1) if (one.attempt, one.step) == (2, 320) else one for one in logs[1]]
    problems = report(logs).problems
    assert any("trained on window 321, which is skipped from attempt 2 on" in problem for problem in problems)
    assert any("rank 1: step 320 trained on window 321 instead of 334" in problem for problem in problems)


def test_a_skipped_window_counts_also_in_an_attempt_that_was_abandoned_later(logs: Logs) -> None:
    logs[0].append(entry(2, STEPS + 1, 325, 0))
    assert any("window 325, which is skipped" in problem for problem in report(logs).problems)


def test_what_was_trained_on_before_the_rollback_is_no_problem(logs: Logs) -> None:
    assert any(one.window == 321 and one.attempt == 1 for one in logs[0])
    assert report(logs).exact


def test_a_step_without_an_entry_is_found(logs: Logs) -> None:
    logs[0] = [one for one in logs[0] if (one.attempt, one.step) != (2, 450)]
    assert report(logs).problems == ("rank 0: nothing says which window step 450 trained on; 464 was due",)


def test_a_rank_without_a_log_is_found(logs: Logs) -> None:
    del logs[1]
    assert report(logs).problems == ("rank 1: it has no batch log",)


def test_a_step_that_was_withheld_and_computed_again_is_one_step(logs: Logs) -> None:
    logs[0].append(entry(2, 400, LEDGER.window_of_step(400), 0))
    assert report(logs).exact


def test_a_step_that_read_two_windows_is_found(logs: Logs) -> None:
    logs[0].append(entry(2, 400, 7, 0))
    assert any("step 400 of attempt 2 read windows 414 and 7" in problem for problem in report(logs).problems)


def test_bytes_that_changed_between_two_readings_of_a_step_are_found(logs: Logs) -> None:
    logs[0].append(BatchLogEntry(attempt=2, step=400, window=414, sha256="other"))
    assert any("or different bytes" in problem for problem in report(logs).problems)


def test_a_flood_of_problems_is_counted_and_cut(logs: Logs) -> None:
    logs[0] = [one for one in logs[0] if one.attempt == 1]
    problems = report(logs).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1] == "and 280 more"
