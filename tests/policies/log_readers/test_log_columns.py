"""Which column of a log is which metric."""

import io
import json

import pytest
from trimtab_policies.errors import InvalidMapping, UnreadableLog
from trimtab_policies.log_readers.naming import metric_name
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.log_readers.reading import ReadingSummary
from trimtab_policies.log_readers.registry import reader_named


def read(rows: list[dict[str, object]], mapping: dict[str, str] | None = None) -> tuple[list[LogPoint], ReadingSummary]:
    body = "".join(json.dumps(row) + "\n" for row in rows)
    reading = reader_named("jsonl").read(io.BytesIO(body.encode()), mapping)
    return list(reading), reading.summary


@pytest.mark.parametrize(
    ("column", "metric"),
    [
        ("loss", "loss"),
        ("lm loss", "loss"),
        ("train/loss", "loss"),
        ("Training Loss", "loss"),
        ("loss_metrics/global_avg_loss", "loss"),
        ("train/grad_norm", "grad_norm"),
        ("gnorm", "grad_norm"),
        ("grad norm", "grad_norm"),
        ("Learning Rate", "lr"),
        ("optim/learning_rate", "lr"),
        ("number of nan iterations", "nonfinite"),
        ("tokens/sec", "tokens_per_second"),
        ("val/loss", "val_loss"),
        ("Layer 7 / max-logit", "layer_7_max_logit"),
        ("2d_loss", "metric_2d_loss"),
        ("损失", None),
        ("x" * 64, None),
    ],
)
def test_a_column_has_the_metric_that_people_mean_by_its_name(column: str, metric: str | None) -> None:
    assert metric_name(column, {}) == metric


def test_a_columns_own_name_goes_before_an_alias() -> None:
    points, summary = read([{"step": 1, "train_loss": 9.0, "loss": 5.0}])
    assert points[0].scalars == {"loss": 5.0, "train_loss": 9.0}
    assert summary.columns == {"loss": "loss", "train_loss": "train_loss"}


def test_two_columns_never_give_one_metric_silently() -> None:
    advice = "choose one with --map 'my_metric=COLUMN'"
    points, summary = read([{"step": 1, "my metric": 1.0, "my_metric": 2.0}, {"step": 2, "my-metric": 3.0, "lr": 1.0}])
    assert points[0].scalars == {"my_metric": 2.0}
    assert points[1].scalars == {"lr": 1.0}
    assert [str(reason) for reason in summary.reasons] == [
        f"line {line}: column '{column}' is left out: my_metric is read from 'my_metric' already; {advice}"
        for line, column in ((1, "my metric"), (2, "my-metric"))
    ]


def test_a_column_without_a_name_for_a_metric_is_reported_once() -> None:
    _, summary = read([{"step": step, "loss": 1.0, "损失": 2.0} for step in (1, 2)])
    assert [reason.line for reason in summary.reasons] == [1]
    assert "give it one with --map" in summary.reasons[0].reason


def test_a_mapped_column_replaces_the_one_that_bears_the_name() -> None:
    points, summary = read([{"step": 1, "loss": 5.0, "损失": 2.0}], {"loss": "损失"})
    assert points[0].scalars == {"loss": 2.0}
    assert summary.unreadable == 0


def test_the_step_may_be_mapped() -> None:
    points, _ = read([{"step": 1, "batch": 70, "loss": 5.0}], {"step": "batch"})
    assert points[0].step == 70


def test_a_mapped_column_that_never_appears_is_an_error_that_lists_the_columns() -> None:
    with pytest.raises(InvalidMapping, match=r"no column is called 'train/los'; the log has: lr, step, train/loss"):
        read([{"step": 1, "train/loss": 5.0, "lr": 1.0}], {"loss": "train/los"})


def test_columns_without_end_cost_their_rows_and_no_memory() -> None:
    rows = [
        {"step": 1, "loss": 1.0},
        {"step": 2, "x" * 1001: 1.0},
        {"step": 3, **dict.fromkeys(map(str, range(10_000)), 1)},
    ]
    points, summary = read([*rows, {"step": 4, "loss": 1.0}])
    assert [point.step for point in points] == [1, 4]
    assert [str(reason) for reason in summary.reasons] == [
        "line 2: has a column whose name is longer than 1000 characters",
        "line 3: brings the log to over 10000 columns",
    ]


def test_an_empty_log_is_that_and_no_matter_of_its_mapping() -> None:
    with pytest.raises(UnreadableLog, match="the log is empty"):
        read([], {"loss": "train/loss"})


def test_every_flaw_of_a_mapping_is_named_at_once() -> None:
    with pytest.raises(InvalidMapping, match=r"'Loss' is no metric name.*'a' is mapped twice"):
        read([{"step": 1}], {"Loss": "a", "lr": "a"})


def test_the_trainers_own_step_goes_before_other_counters() -> None:
    points, _ = read([{"_step": 3, "iteration": 9, "train/global_step": 70, "loss": 5.0}])
    assert points[0].step == 70
    assert points[0].scalars["iteration"] == 9.0


def test_a_log_without_a_step_says_how_to_name_one() -> None:
    with pytest.raises(UnreadableLog, match=r"no column that counts steps; name it with --map 'step=COLUMN'"):
        read([{"epoch": 0.5, "loss": 5.0}])


def test_times_are_read_in_seconds_milliseconds_and_iso_8601() -> None:
    points, summary = read(
        [
            {"step": 1, "time": 1767950000.5, "loss": 1.0},
            {"step": 2, "time": 1767950000500, "loss": 1.0},
            {"step": 3, "time": "2026-01-09T09:13:20.500Z", "loss": 1.0},
            {"step": 4, "time": 12.5, "loss": 1.0},
        ]
    )
    assert [point.time for point in points] == [1767950000.5, 1767950000.5, 1767950000.5, None]
    assert points[3].scalars["time"] == 12.5
    assert summary.unreadable == 0
