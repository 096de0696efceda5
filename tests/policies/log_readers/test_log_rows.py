"""What becomes of values, steps and lines that are not as they should be."""

import io
import math
from pathlib import Path

import pytest
from trimtab_policies.errors import UnknownLogFormat, UnreadableLog
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.log_readers.reading import LogReader, ReadingSummary
from trimtab_policies.log_readers.registry import READERS, choose, reader_named
from trimtab_policies.log_readers.streams import LONGEST_LINE

LOGS = Path(__file__).parent / "logs"


def read(format_name: str, body: bytes) -> tuple[list[LogPoint], ReadingSummary]:
    reading = reader_named(format_name).read(io.BytesIO(body))
    return list(reading), reading.summary


def test_null_is_absent_and_nan_is_a_value_in_every_spelling() -> None:
    points, _ = read("jsonl", (LOGS / "loop.jsonl").read_bytes())
    assert math.isnan(points[1].scalars["loss"])
    assert "lr" not in points[1].scalars
    assert math.isnan(points[2].scalars["loss"])
    assert points[2].scalars["grad_norm"] == -math.inf
    assert math.isnan(points[3].scalars["loss"])
    assert points[3].scalars["grad_norm"] == math.inf


def test_every_line_that_cannot_be_read_is_counted_and_the_first_are_named() -> None:
    points, summary = read("jsonl", (LOGS / "loop.jsonl").read_bytes())
    assert [point.step for point in points] == [0, 1, 2, 3, 4, 5, 3]
    assert summary.unreadable == 7
    assert [(reason.line, reason.reason.split(":")[0]) for reason in summary.reasons] == [
        (7, "is not JSON"),
        (8, "step 1.5 is not a whole number"),
        (9, "step -2 is negative"),
        (10, "step 9007199254740993 is beyond 2^53"),
        (12, "has no step"),
    ]
    assert summary.without_metrics == 1


def test_step_0_is_legal_and_steps_that_go_back_are_passed_on_in_order() -> None:
    points, _ = read("jsonl", b'{"step":0,"loss":1}\n{"step":5,"loss":1}\n{"step":3,"loss":2}\n{"step":5,"loss":3}\n')
    assert [point.step for point in points] == [0, 5, 3, 5]


def test_rows_of_one_step_are_one_point_unless_they_contradict_each_other() -> None:
    points, _ = read(
        "jsonl",
        b'{"step":1,"loss":2}\n{"step":1,"val_loss":3}\n{"step":1,"loss":2}\n{"step":1,"loss":2.5}\n{"step":2,"lr":1}\n',
    )
    assert [(point.step, dict(point.scalars)) for point in points] == [
        (1, {"loss": 2.0, "val_loss": 3.0}),
        (1, {"loss": 2.5}),
        (2, {"lr": 1.0}),
    ]


def test_a_list_of_numbers_is_a_vector() -> None:
    points, summary = read(
        "jsonl", b'{"step":1,"qk_max_logit":[[1,2,"NaN"],[4,5,6]],"tags":["a","b"],"ragged":[[1],[2,3]]}\n'
    )
    assert points[0].vectors["qk_max_logit"].shape == (2, 3)
    assert points[0].vectors["qk_max_logit"].values()[3:] == (4.0, 5.0, 6.0)
    assert summary.text_columns == ("tags", "ragged")


def test_a_line_of_any_length_is_passed_over_in_bounded_pieces() -> None:
    body = b'{"step":1,"loss":1}\n{"step":2,"x":"' + b"x" * (LONGEST_LINE + 5) + b'"}\n{"step":3,"loss":1}\n'
    points, summary = read("jsonl", body)
    assert [(point.step, point.line) for point in points] == [(1, 1), (3, 3)]
    assert [reason.line for reason in summary.reasons] == [2]
    assert "is longer than 8 MiB" in summary.reasons[0].reason


def test_utf_16_as_powershell_writes_it_and_byte_order_marks_are_read() -> None:
    text = '{"step":1,"loss":2.5}\r\n{"step":2,"loss":2.25}\r\n'
    for body in (text.encode("utf-16"), text.encode("utf-8-sig"), b"\xfe\xff" + text.encode("utf-16-be")):
        points, summary = read("jsonl", body)
        assert [(point.step, point.scalars["loss"]) for point in points] == [(1, 2.5), (2, 2.25)]
        assert summary.unreadable == 0


def test_bytes_in_another_encoding_cost_their_line_only() -> None:
    points, summary = read("jsonl", b'{"step":1,"note":"caf\xe9","loss":1}\n{"step":2,"loss":1}\n')
    assert [point.step for point in points] == [2]
    assert summary.unreadable == 1


def test_what_a_progress_bar_overwrote_is_read_as_lines() -> None:
    points, _ = read("text", b"\r  0%|  | 0/9\rstep 1: loss 3.5\r 11%|# | 1/9\rstep 2: loss 3.25\r\n")
    assert [(point.step, point.scalars["loss"], point.line) for point in points] == [(1, 3.5, 1), (2, 3.25, 1)]


@pytest.mark.parametrize(
    ("line", "step", "scalars"),
    [
        ("step=10 loss=2.5 lr=1e-4", 10, {"loss": 2.5, "lr": 1e-4}),
        ("Step: 10, Loss: 2.5, Gradient Norm: 1.5", 10, {"loss": 2.5, "grad_norm": 1.5}),
        ("[2026-01-09 10:00:00] iter 10/500 loss: nan gnorm: inf", 10, {"loss": math.nan, "grad_norm": math.inf}),
        ("global_step: 10 | train_loss: 2.5e+00 | tok/s: 1,234,567", 10, {"loss": 2.5, "tokens_per_second": 1234567.0}),
        ("step 10 loss 2.5 lr 1e-4", 10, {"loss": 2.5, "lr": 1e-4}),
        ("step: 640/644 = 99.3789%  loss:  6.2116  tps: 52,142", 640, {"loss": 6.2116, "tokens_per_second": 52142.0}),
        ("[INFO] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]", 10, {"lr": 1e-05, "skipped": 0.0}),
        ("Iteration 10: loss = 2.5.", 10, {"loss": 2.5}),
        ("{'loss': 2.5, 'grad_norm': 1.5, 'step': 10}", 10, {"loss": 2.5, "grad_norm": 1.5}),
        ("epoch 001:  10 / 1000 loss=2.5, num_updates=10, gnorm=1.5", 10, {"loss": 2.5, "grad_norm": 1.5}),
    ],
)
def test_usual_lines_of_training_loops_are_read(line: str, step: int, scalars: dict[str, float]) -> None:
    points, _ = read("text", line.encode())
    found = {name: value for name, value in points[0].scalars.items() if name in scalars}
    assert (points[0].step, found) == (step, pytest.approx(scalars, nan_ok=True))


@pytest.mark.parametrize(
    "line",
    [
        "saving checkpoint at step 100",
        "checkpoint of step 100 took 5 s, as ever",
        "lasted since step 5 3 hours",
        "we take one step forward",
        "loss: 2.5",
        "steps = 1000",
        "step: x loss: y",
        "",
    ],
)
def test_prose_is_counted_as_lines_without_metrics(line: str) -> None:
    points, summary = read("text", b"step 1 loss 2.5\n" + line.encode() + b"\n")
    assert [point.step for point in points] == [1]
    assert (summary.unreadable, summary.without_metrics) == (0, 1)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize("body", [b"", b"\n\n", b"\x00\xff\xfe" * 400, b"nothing to see here\n" * 3])
def test_a_log_of_which_nothing_can_be_read_is_an_error_in_every_format(reader: LogReader, body: bytes) -> None:
    with pytest.raises(UnreadableLog, match="nothing could be read as"):
        list(reader.read(io.BytesIO(body)))


@pytest.mark.parametrize("body", [b"", b"  \n", b"Dear all,\nplease find attached.\n", bytes(range(256)) * 8])
def test_what_no_reader_knows_is_an_error_that_names_the_formats_or_says_it_is_empty(body: bytes) -> None:
    with pytest.raises(UnknownLogFormat, match=r"empty|jsonl, .*megatron"):
        choose(body, "train.log")


def test_every_reader_has_a_name_of_its_own_and_can_be_asked_for() -> None:
    assert len({reader.name for reader in READERS}) == len(READERS)
    assert all(reader_named(reader.name) is reader for reader in READERS)
    with pytest.raises(UnknownLogFormat, match="no log format 'excel'"):
        reader_named("excel")


@pytest.mark.parametrize("closing", ['150,2.0"\n', ""])
@pytest.mark.parametrize("rows", [200, 60_000])
def test_a_quote_that_is_left_open_takes_no_other_row_along(rows: int, closing: str) -> None:
    lines = [f"{step},{2.0 + step / 1e6}\n" for step in range(1, rows)]
    lines[99] = '100,"2.0\n'
    if closing:
        lines[149] = closing
    points, summary = read("csv", ("step,loss\n" + "".join(lines)).encode())
    damaged = {100} | ({150} if closing else set[int]())
    found = {point.step for point in points if "loss" in point.scalars}
    assert found == set(range(1, rows)) - damaged
    assert summary.unreadable == len(damaged)
    assert summary.reasons[0].line == 101
    assert "quote" in summary.reasons[0].reason


def test_a_text_of_several_lines_in_quotes_is_one_cell() -> None:
    body = b'step,note,loss\n1,"first, and\nthen, much, more",2.5\n2,plain,2.4\n'
    points, summary = read("csv", body)
    assert [(point.step, point.scalars["loss"]) for point in points] == [(1, 2.5), (2, 2.4)]
    assert summary.unreadable == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.#QNAN", math.nan), ("-1.#IND", math.nan), ("1.#INF", math.inf), ("-1.#INF000", -math.inf), ("1,5", None)],
)
def test_what_is_not_finite_is_read_as_windows_writes_it(text: str, value: float | None) -> None:
    points, _ = read("text", f"step: 1, loss: 2.0\nstep: 2, loss: {text}\nstep: 3,loss: 2.5,lr: 0.1\n".encode())
    found = [point.scalars.get("loss") for point in points]
    assert found[0] == 2.0
    assert found[-1] == 2.5
    assert found[1:-1] == ([] if value is None else [pytest.approx(value, nan_ok=True)]) or found[1] is None
    if "000" not in text and value is not None:
        points, summary = read("csv", f"step,loss\n1,{text}\n".encode())
        assert points[0].scalars["loss"] == pytest.approx(value, nan_ok=True)
        assert summary.unreadable == 0


@pytest.mark.parametrize("bad", ["[[1,1],[1]]", '["a",1]', "[[1],2]", '[{"a":1}]'])
def test_a_vector_of_the_contract_that_is_no_array_is_unreadable_and_told(bad: str) -> None:
    good = '{"step":%d,"loss":2.0,"qk_clip_gamma":[1,0.5]}\n'
    body = good % 1 + f'{{"step":2,"loss":2.0,"qk_clip_gamma":{bad},"note":["any","thing"]}}\n' + good % 3
    points, summary = read("jsonl", body.encode())
    assert [point.scalars["loss"] for point in points] == [2.0] * 3
    assert ["qk_clip_gamma" in point.vectors for point in points] == [True, False, True]
    assert summary.unreadable == 1
    reason = "qk_clip_gamma is a list that is no rectangle of numbers, not a number"
    assert [(one.line, one.reason) for one in summary.reasons] == [(2, reason)]
