"""What the tools store and export, as points."""

import io
import math
from pathlib import Path

import pytest
from trimtab_contract.metrics import MetricRecord, Vector, encode_archive
from trimtab_policies.errors import UnreadableLog
from trimtab_policies.log_readers.checksum import crc32c
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.log_readers.reading import Reading
from trimtab_policies.log_readers.registry import choose, reader_named

LOGS = Path(__file__).parent / "logs"


def points_of(name: str, mapping: dict[str, str] | None = None) -> tuple[str, list[LogPoint], Reading]:
    """The reader chosen for a log, its points and the reading."""
    reader = choose((LOGS / name).read_bytes(), name)
    with (LOGS / name).open("rb") as stream:
        reading = reader.read(stream, mapping, name)
        return reader.name, list(reading), reading


def record(step: int, loss: float, attempt: int = 1) -> MetricRecord:
    return MetricRecord(
        attempt=attempt,
        step=step,
        window=step + 9,
        samples_seen=8 * step,
        tokens_seen=1024 * step,
        time=1767950000.0 + step,
        scalars={"loss": loss, "grad_norm": 0.5},
        vectors={"qk_max_logit": Vector.pack((1, 2), (float(step), 2.0))},
    )


def read_bytes(format_name: str, body: bytes, tmp_path: Path) -> tuple[list[LogPoint], Reading]:
    path = tmp_path / "log"
    path.write_bytes(body)
    with path.open("rb") as stream:
        reading = reader_named(format_name).read(stream)
        return list(reading), reading


def test_evidence_gives_attempt_window_time_and_vectors() -> None:
    name, points, _ = points_of("evidence.jsonl")
    assert name == "jsonl"
    assert (points[0].attempt, points[0].step, points[0].window, points[0].time) == (2, 7, 9, 1767950000.5)
    assert points[0].vectors["qk_max_logit"].shape == (1, 2)
    assert points[0].vectors["qk_max_logit"].values() == (10.0, 20.0)
    assert math.isnan(points[1].scalars["loss"])
    assert points[1].scalars["grad_norm"] == math.inf


def test_archived_records_are_read_one_by_one_from_several_arrays(tmp_path: Path) -> None:
    body = encode_archive([record(1, 3.5), record(2, math.nan)]) + encode_archive([record(2, 3.25, attempt=2)])
    points, _ = read_bytes("archive", body, tmp_path)
    assert choose(body, "000001-000002").name == "archive"
    assert [(point.attempt, point.step) for point in points] == [(1, 1), (1, 2), (2, 2)]
    assert math.isnan(points[1].scalars["loss"])
    assert points[2].vectors["qk_max_logit"].values() == (2.0, 2.0)


def test_an_archive_cut_short_gives_its_whole_records_and_says_so(tmp_path: Path) -> None:
    body = encode_archive([record(1, 3.5), record(2, 3.25), record(3, 3.0)])
    points, reading = read_bytes("archive", body[:-10], tmp_path)
    assert [point.step for point in points] == [1, 2]
    assert [str(reason) for reason in reading.summary.reasons] == [
        "line 3: is cut short: the archive ends within it",
    ]


@pytest.mark.parametrize("form", ["raw", "formatted", "json", "csv"])
def test_every_form_in_which_redis_cli_prints_a_stream_gives_the_same_records(form: str) -> None:
    name, points, reading = points_of(f"redis_{form}.txt")
    assert name == "redis"
    assert [(point.attempt, point.step, point.window) for point in points] == [(1, 1, 10), (1, 2, 11), (1, 3, 12)]
    assert [point.scalars["loss"] for point in points if point.step != 2] == [4.25, 6.25]
    assert math.isnan(points[1].scalars["loss"])
    assert points[2].vectors["qk_max_logit"].values()[:2] == (10.25, 102.0)
    assert reading.summary.unreadable == 0


def test_a_redis_snapshot_is_refused_with_the_command_that_exports_a_stream() -> None:
    body = b"REDIS0011\xfa\tredis-ver\x057.2.4\xfe\x00"
    with pytest.raises(UnreadableLog, match=r"redis-cli --json XRANGE <key> - \+"):
        list(choose(body, "dump.rdb").read(io.BytesIO(body)))


def test_hugging_face_entries_of_one_step_are_one_point() -> None:
    name, points, _ = points_of("trainer_state.json")
    assert name == "hugging-face"
    assert [point.step for point in points] == [10, 20, 30, 40]
    assert points[1].scalars["loss"] == 9.1204
    assert points[1].scalars["eval_loss"] == 9.0401
    assert math.isnan(points[1].scalars["grad_norm"])
    assert points[0].scalars["lr"] == 5e-05


def test_hugging_faces_mean_loss_of_the_run_is_not_the_loss_of_its_last_step() -> None:
    _, points, _ = points_of("trainer_state.json")
    assert math.isnan(points[3].scalars["loss"])
    assert points[3].scalars["train_loss"] == 7.2208


def test_a_trainer_state_cut_short_gives_its_whole_entries_and_says_so(tmp_path: Path) -> None:
    body = (LOGS / "trainer_state.json").read_bytes()
    points, reading = read_bytes("hugging-face", body[: body.index(b'"eval_runtime"')], tmp_path)
    assert [point.step for point in points] == [10, 20]
    assert "cut short" in str(reading.summary.reasons[0])


def test_tensorboard_scalars_are_one_point_a_step_stragglers_included() -> None:
    name, points, reading = points_of("events.out.tfevents.1767950000.trainer-0")
    assert name == "tensorboard"
    assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
    assert points[0].scalars == {"loss": 10.0, "grad_norm": 0.5, "lr": pytest.approx(1e-4)}
    assert points[2].scalars["val_loss"] == 4.5
    assert math.isnan(points[3].scalars["loss"])
    assert points[0].time == 1767950001.0
    assert reading.summary.without_metrics == 2


def test_tensorboard_scalars_stored_as_tensors_are_read_in_every_type() -> None:
    _, points, _ = points_of("tensors.tfevents")
    assert points[0].scalars == {"loss": 3.5, "lr": 1e-4, "count": -7.0}
    assert points[1].scalars == {"loss": 3.25, "bf": 3.125, "h": 3.0}
    assert points[2].scalars == {"loss": 3.0}


def test_a_tensorboard_record_cut_short_is_reported(tmp_path: Path) -> None:
    body = (LOGS / "events.out.tfevents.1767950000.trainer-0").read_bytes()
    points, reading = read_bytes("tensorboard", body[:-7], tmp_path)
    assert points[-1].step == 6
    assert "lr" not in points[-1].scalars
    assert [reason.reason for reason in reading.summary.reasons] == ["is cut short: the file ends within it"]


def test_a_damaged_tensorboard_record_costs_that_record_only(tmp_path: Path) -> None:
    body = bytearray((LOGS / "tensors.tfevents").read_bytes())
    body[body.index(b"count")] ^= 1
    points, reading = read_bytes("tensorboard", bytes(body), tmp_path)
    assert [point.step for point in points] == [2, 3]
    assert [reason.reason for reason in reading.summary.reasons] == ["is damaged: its checksum does not fit"]


def test_the_checksum_is_the_one_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_a_wandb_chart_is_read_without_its_bands() -> None:
    name, points, reading = points_of("wandb_chart.csv")
    assert name == "wandb"
    assert [(point.step, set(point.scalars)) for point in points] == [(step, {"loss"}) for step in (0, 10, 20, 40)]
    assert math.isnan(points[2].scalars["loss"])
    assert reading.summary.columns == {"brisk-field-12 - train/loss": "loss"}


def test_a_second_run_in_a_wandb_chart_is_left_out_with_a_word_and_may_be_chosen() -> None:
    _, points, reading = points_of("wandb_two_runs.csv")
    assert [point.scalars["loss"] for point in points] == [5.5, 5.25]
    assert "'b-run - loss' is left out" in str(reading.summary.reasons[0])
    _, points, reading = points_of("wandb_two_runs.csv", {"loss": "b-run - loss"})
    assert [point.scalars["loss"] for point in points] == [6.5, 6.25]
    assert reading.summary.unreadable == 0


def test_a_wandb_chart_over_another_axis_takes_the_step_of_its_run() -> None:
    body = b'"epoch","calm-1 - _step","calm-1 - _step__MIN","calm-1 - loss","calm-1 - loss__MIN"\n0.5,10,10,3.5,3.5\n'
    points = list(choose(body, "wandb.csv").read(io.BytesIO(body)))
    assert [(point.step, dict(point.scalars)) for point in points] == [(10, {"epoch": 0.5, "loss": 3.5})]


def test_a_wandb_history_counts_the_trainers_steps_and_not_the_calls_of_log() -> None:
    name, points, _ = points_of("wandb_history.jsonl")
    assert name == "wandb"
    assert [point.step for point in points] == [10, 20, 30]
    assert points[1].scalars["grad_norm"] == math.inf
    assert points[1].scalars["eval_loss"] == 10.5
    assert "grad_norm" not in points[2].scalars
    assert points[0].time == 1767950000.5
    _, points, _ = points_of("wandb_history.jsonl", {"step": "_step"})
    assert [point.step for point in points] == [0, 1, 2, 3]


def test_a_wandb_history_in_one_document_is_read() -> None:
    name, points, _ = points_of("wandb_history.json")
    assert name == "wandb"
    assert [point.step for point in points] == [5, 6, 7]
    assert math.isnan(points[1].scalars["loss"])
    assert points[2].scalars == {"lr": 0.001}


def test_an_mlflow_metric_file_is_named_by_its_file() -> None:
    name, points, _ = points_of("mlflow_metric", {"loss": "mlflow_metric"})
    assert name == "mlflow"
    assert [point.step for point in points] == [0, 10, 20]
    assert math.isnan(points[1].scalars["loss"])
    assert points[2].time == pytest.approx(1767950020.123)


def test_an_mlflow_table_that_lists_metric_after_metric_comes_in_step_order_with_its_rewind() -> None:
    name, points, _ = points_of("mlflow_metrics.csv")
    assert name == "mlflow"
    assert [point.step for point in points] == [1, 2, 3, 2]
    assert points[0].scalars == {"loss": 11.02, "grad_norm": 3.5}
    assert math.isnan(points[1].scalars["loss"])
    assert points[1].scalars["grad_norm"] == math.inf
    assert points[3].scalars["loss"] == 9.75


def test_an_mlflow_history_is_read_from_the_rest_api() -> None:
    name, points, _ = points_of("mlflow_history.json")
    assert name == "mlflow"
    assert [point.step for point in points] == [0, 10, 20]
    assert math.isnan(points[1].scalars["loss"])


def test_a_csv_with_any_header_is_read_and_its_text_column_is_no_metric() -> None:
    name, points, reading = points_of("table.csv")
    assert name == "csv"
    assert [point.step for point in points] == [1, 2, 3, 5]
    assert points[1].scalars == {"loss": 10.5, "lr": 2e-4}
    assert math.isnan(points[2].scalars["loss"])
    assert reading.summary.text_columns == ("note",)
    assert [str(reason) for reason in reading.summary.reasons] == [
        "line 2: Train Loss is '11,0', not a number",
        "line 5: has 2 cells, the header has 5",
    ]


def test_a_tensorboard_chart_needs_a_name_for_its_value() -> None:
    name, points, _ = points_of("tensorboard_chart.csv", {"loss": "Value"})
    assert name == "csv"
    assert [(point.step, point.scalars["loss"], point.time) for point in points] == [
        (1, 10.0, 1767950001.0),
        (2, 5.0, 1767950002.0),
    ]
