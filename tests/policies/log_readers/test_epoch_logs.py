"""Text logs that count in epochs, or whose lines begin with a line of source."""

import io
from collections.abc import Sequence

import pytest
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.log_readers.registry import choose


def read(*lines: str) -> list[LogPoint]:
    body = "\n".join(lines).encode()
    reader = choose(body, "train.log")
    assert reader.name == "text"
    return list(reader.read(io.BytesIO(body), filename="train.log"))


def losses(points: Sequence[LogPoint]) -> list[tuple[int, float]]:
    return [(point.step, point.scalars["loss"]) for point in points]


def test_batches_of_an_epoch_become_steps_of_the_run() -> None:
    points = read(
        "| epoch   1 |   200/ 2983 batches | lr 20.0000 | ms/batch  7.75 | loss  8.08 | ppl  3228.16",
        "| epoch   1 |   400/ 2983 batches | lr 20.0000 | ms/batch  7.52 | loss  6.77 | ppl   870.14",
        "| end of epoch   1 | time: 23.35s | valid loss  5.48 | valid ppl   240.42",
        "| epoch   2 |   200/ 2983 batches | lr 20.0000 | ms/batch  7.54 | loss   nan | ppl      nan",
    )
    assert [point.step for point in points] == [200, 400, 3183]
    assert points[0].scalars == {"lr": 20.0, "ms_batch": 7.75, "loss": 8.08, "ppl": 3228.16}
    assert points[2].scalars["loss"] != points[2].scalars["loss"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("22:18:02 - INFO - Epoch(train) [1][200/735]  lr: 1.98e-04  eta: 2:46:39  loss: 2.5", "Epoch(train) [2]"),
        ("Train Epoch: 1 [200/735 (27%)]\tloss: 2.5", "Train Epoch: 2 "),
        ("Epoch 1/10, 200/735, loss=2.5", "Epoch 2/10, "),
    ],
)
def test_other_ways_to_write_it_are_understood(first: str, second: str) -> None:
    later = f"{second}[65/735] loss: 2.25"
    assert losses(read(first, later)) == [(200, 2.5), (800, 2.25)]


def test_steps_that_begin_anew_without_saying_how_many_there_are_go_on() -> None:
    lines = [f"Epoch: {epoch} step: {step} loss: {epoch + step / 10}" for epoch in range(3) for step in range(4)]
    assert [point.step for point in read(*lines)] == list(range(12))


def test_steps_that_count_through_all_epochs_stay_as_they_are() -> None:
    points = read("epoch: 1 step: 10 loss: 2.0", "epoch: 2 step: 20 loss: 1.9", "epoch: 2 step: 15 loss: 1.8")
    assert [point.step for point in points] == [10, 20, 15]


def test_a_run_begun_again_goes_back() -> None:
    points = read("epoch: 0 step: 9 loss: 2.0", "epoch: 1 step: 0 loss: 1.9", "epoch: 0 step: 0 loss: 2.5")
    assert [point.step for point in points] == [9, 10, 0]


def test_a_log_without_steps_is_read_by_its_epochs() -> None:
    points = read(
        "13:55:26.649 INFO: Epoch [001/300] - Train Loss: 145.13359, Valid Loss: 70.66399, LR: [0.001]",
        "13:56:30.354 INFO: Epoch [002/300] - Train Loss: 71.42647, Valid Loss: 58.69089, LR: [0.001]",
    )
    assert losses(points) == [(1, 145.13359), (2, 71.42647)]


def test_an_epochs_summary_is_no_step_where_steps_are_named() -> None:
    points = read("step 100 loss: 2.0", "Epoch 1 train loss: 1.5", "step 200 loss: 1.9")
    assert losses(points) == [(100, 2.0), (200, 1.9)]


def test_a_line_of_source_is_no_metric() -> None:
    points = read(
        "I0508 12:40:15.421900  2763 solver.cpp:208] Iteration 40, lr = 0.01",
        "I0508 12:40:15.422210  2763 solver.cpp:65] Iteration 40, loss = 6.99261",
        "I0508 12:40:46.142240  2763 solver.cpp:65] Iteration 80, loss = 6.5",
    )
    assert [(point.step, dict(point.scalars)) for point in points] == [
        (40, {"lr": 0.01, "loss": 6.99261}),
        (80, {"loss": 6.5}),
    ]
