"""What the tools print, as points."""

import math
from pathlib import Path

import pytest
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.log_readers.reading import ReadingSummary
from trimtab_policies.log_readers.registry import choose

LOGS = Path(__file__).parent / "logs"


def read(name: str) -> tuple[str, list[LogPoint], ReadingSummary]:
    """The reader chosen for a log, its points and what was left out."""
    body = (LOGS / name).read_bytes()
    reader = choose(body, name)
    with (LOGS / name).open("rb") as stream:
        reading = reader.read(stream, filename=name)
        points = list(reading)
    return reader.name, points, reading.summary


def test_megatron_lines_give_the_metrics_of_the_contract() -> None:
    name, points, summary = read("megatron.log")
    assert name == "megatron"
    assert [point.step for point in points] == [1, 2, 3, 4, 5]
    second = points[1].scalars
    assert (second["loss"], second["grad_norm"], second["lr"]) == (12.43841, 67.593, 1.5e-07)
    assert (second["loss_scale"], second["nonfinite"], second["skipped_update"]) == (65536.0, 0.0, 0.0)
    assert points[2].scalars["step_seconds"] == pytest.approx(6.0125)
    assert summary.without_metrics == 9


def test_a_megatron_line_without_loss_has_none_and_says_why() -> None:
    _, points, _ = read("megatron.log")
    assert "loss" not in points[0].scalars
    assert points[0].scalars["skipped_update"] == 1.0
    assert "loss" not in points[3].scalars
    assert points[3].scalars["nonfinite"] == 1.0
    assert math.isnan(points[3].scalars["grad_norm"])


def test_a_megatron_validation_line_joins_its_iteration_and_is_not_the_training_loss() -> None:
    _, points, _ = read("megatron.log")
    assert points[3].scalars["val_loss"] == 11.98


def test_a_number_cut_short_is_reported_and_the_rest_of_its_line_is_read() -> None:
    _, points, summary = read("megatron.log")
    assert points[4].scalars["grad_norm"] == 21.007
    assert [str(reason) for reason in summary.reasons] == ["line 15: lm loss is '1.190E+', not a number"]


def test_llm_c_console_lines_are_read_and_unknown_utilisation_is_absent() -> None:
    name, points, _ = read("llm_c_console.log")
    assert name == "llm.c"
    assert [point.step for point in points] == [0, 1, 2, 3, 4]
    assert points[1].scalars == {
        "loss": 11.009662,
        "grad_norm": 15.0789,
        "lr": 8.57e-07,
        "step_seconds": pytest.approx(2.74314),
        "tokens_per_second": 191125.0,
    }
    assert points[3].scalars["mfu"] == 53.1
    assert math.isnan(points[4].scalars["loss"])


def test_llm_cs_validation_loss_belongs_to_the_step_printed_before_it() -> None:
    _, points, _ = read("llm_c_console.log")
    assert {point.step: point.scalars["val_loss"] for point in points if "val_loss" in point.scalars} == {
        0: 11.009643,
        3: 10.7,
    }


def test_llm_cs_main_log_is_read_with_one_point_a_step() -> None:
    name, points, _ = read("llm_c_main.log")
    assert name == "llm.c"
    assert [point.step for point in points] == [0, 1, 2, 250]
    assert points[3].scalars == {"val_loss": 6.4012, "loss": 6.3901, "lr": 2.142e-04, "grad_norm": 1.03}


def test_nanogpts_evaluation_is_never_taken_for_the_loss_of_its_step() -> None:
    name, points, _ = read("nanogpt.log")
    assert name == "nanogpt"
    assert [point.step for point in points] == [0, 10, 20, 250]
    assert points[0].scalars == {
        "eval_train_loss": 4.2874,
        "val_loss": 4.2823,
        "loss": 4.2639,
        "step_seconds": pytest.approx(25.85756),
    }
    assert math.isnan(points[2].scalars["loss"])
    assert points[3].scalars["lr"] == 6e-4


def test_build_nanogpts_log_is_read() -> None:
    name, points, _ = read("build_nanogpt.log")
    assert name == "nanogpt"
    assert points[0].scalars == {"val_loss": 10.9511, "hellaswag": 0.2463, "loss": 10.955029}
    assert [point.step for point in points] == [0, 1, 2, 250]


def test_the_source_code_in_front_of_a_modded_nanogpt_log_is_no_metric() -> None:
    name, points, summary = read("modded_nanogpt.txt")
    assert name == "modded-nanogpt"
    assert [point.step for point in points] == [0, 1, 11, 12]
    assert points[1].scalars["loss"] == 15.9929
    assert math.isnan(points[3].scalars["loss"])
    assert (summary.unreadable, summary.without_metrics) == (0, 10)


def test_nanochat_lines_are_read_with_thousands_separators_and_units() -> None:
    name, points, _ = read("nanochat.log")
    assert name == "text"
    assert points[1].step == 1
    assert points[1].scalars["loss"] == 10.905113
    assert points[1].scalars["tokens_per_second"] == 447901.0
    assert points[1].scalars["step_seconds"] == pytest.approx(1.17055)


def test_torchtitans_colours_are_no_part_of_its_numbers() -> None:
    name, points, _ = read("torchtitan.log")
    assert name == "text"
    assert [point.step for point in points] == [1, 10]
    assert points[1].scalars["loss"] == 6.9871
    assert points[1].scalars["grad_norm"] == 2.118
    assert points[1].scalars["tokens_per_second"] == 7113.0
