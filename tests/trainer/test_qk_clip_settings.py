"""QK-Clip switched: thresholds by layer and by update, observing, off, and where it would be in vain."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.head_parameters import AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim import MuonClip, MuonClipConfig, ThresholdPoint

STILL = MuonClipConfig(muon_lr=1e-30, adamw_lr=1e-30, decay=0.0, qk_clip_threshold=50.0)
LOGITS = torch.tensor([[100.0, 10.0], [60.0, -5.0]])


class Model:
    """Query and key weights of two layers of two heads, all ones."""

    def __init__(self) -> None:
        self.parameters = {
            f"layers.{layer}.{side}.weight": torch.ones(4, 3, requires_grad=True)
            for layer in range(2)
            for side in ("query", "key")
        }

    def layers(self) -> list[AttentionHeads]:
        return [
            AttentionHeads(
                "multiHead",
                2,
                tuple(
                    HeadParameter(name, self.parameters[name], part, 2)
                    for part in (LogitPart.QUERY, LogitPart.KEY)
                    for name in (f"layers.{layer}.{part}.weight",)
                ),
            )
            for layer in range(2)
        ]

    def optimizer(self, config: MuonClipConfig) -> MuonClip:
        return MuonClip(self.parameters.items(), self.layers(), config)

    def squares(self) -> list[list[float]]:
        """What is left of each head's logits [layers][heads]: the product of its query and key factors."""
        return [
            [
                self.parameters[f"layers.{layer}.query.weight"][2 * head, 0].item()
                * self.parameters[f"layers.{layer}.key.weight"][2 * head, 0].item()
                for head in range(2)
            ]
            for layer in range(2)
        ]


def clipped(config: MuonClipConfig, logits: Tensor = LOGITS, updates: int = 1) -> tuple[list[list[float]], Tensor]:
    model = Model()
    optimizer = model.optimizer(config)
    gamma = torch.ones(0)
    for _ in range(updates):
        gamma = optimizer.step(logits).qk_clip_gamma
    return model.squares(), gamma


def test_one_threshold_holds_for_all_layers() -> None:
    left, gamma = clipped(STILL)
    torch.testing.assert_close(gamma, torch.tensor([[0.5, 1.0], [50 / 60, 1.0]]))
    torch.testing.assert_close(torch.tensor(left), gamma)


def test_every_layer_may_have_a_threshold_of_its_own() -> None:
    left, gamma = clipped(replace(STILL, qk_clip_layer_thresholds=(80.0, 40.0)))
    torch.testing.assert_close(gamma, torch.tensor([[0.8, 1.0], [40 / 60, 1.0]]))
    torch.testing.assert_close(torch.tensor(left), gamma)


def test_observing_reports_the_factors_and_changes_nothing() -> None:
    left, gamma = clipped(replace(STILL, qk_clip_mode="observe"))
    torch.testing.assert_close(gamma, torch.tensor([[0.5, 1.0], [50 / 60, 1.0]]))
    assert left == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("off", [{"qk_clip_mode": "disabled"}, {"qk_clip_threshold": None}])
def test_switched_off_it_neither_reports_nor_changes(off: dict[str, object]) -> None:
    config = replace(STILL, **off)  # pyright: ignore[reportArgumentType]
    left, gamma = clipped(config)
    assert gamma.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert left == [[1.0, 1.0], [1.0, 1.0]]
    assert Model().optimizer(config).lowest_threshold == math.inf


@pytest.mark.parametrize(("update", "factor"), [(1, 3.0), (10, 3.0), (15, 2.0), (20, 1.0), (25, 0.75), (99, 0.5)])
def test_a_schedule_changes_thresholds_linearly_from_point_to_point(update: int, factor: float) -> None:
    points = (ThresholdPoint(update=10, factor=3.0), ThresholdPoint(update=20, factor=1.0))
    config = replace(STILL, qk_clip_schedule=(*points, ThresholdPoint(update=30, factor=0.5)))
    assert config.thresholds(update, 2) == pytest.approx((50 * factor, 50 * factor))


def test_the_schedule_follows_the_updates_and_the_gate_is_the_lowest_threshold_of_the_next_one() -> None:
    points = (ThresholdPoint(update=1, factor=2.0), ThresholdPoint(update=2, factor=1.0))
    config = replace(STILL, qk_clip_schedule=points, qk_clip_layer_thresholds=(50.0, 70.0))
    model = Model()
    optimizer = model.optimizer(config)
    assert optimizer.lowest_threshold == 100.0
    assert optimizer.step(LOGITS).qk_clip_gamma.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert optimizer.lowest_threshold == 50.0
    assert optimizer.step(LOGITS).qk_clip_gamma.tolist() == [[0.5, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("mode", ["clip", "observe", "disabled"])
def test_a_mode_is_written_in_yaml_as_it_is(mode: str) -> None:
    text = f"{{data: {{path: corpus.bin}}, steps: 100, globalBatch: 4, optimizer: {{qkClipMode: {mode}}}}}"
    assert read_config(text).optimizer.qk_clip_mode == mode


def test_points_of_a_schedule_must_rise() -> None:
    with pytest.raises(InvalidFields, match="qk_clip_schedule: the updates of its points must rise"):
        replace(STILL, qk_clip_schedule=(ThresholdPoint(update=5, factor=1.0), ThresholdPoint(update=5, factor=2.0)))


def test_heads_that_are_normalised_after_their_projection_are_refused_with_the_reason_unless_it_is_off() -> None:
    model = Model()
    layers = [replace(layer, normalised=True) for layer in model.layers()]
    with pytest.raises(InvalidFields, match=r"qk_clip_mode: must be disabled: layer 0 normalises .* changes no logit"):
        MuonClip(model.parameters.items(), layers, STILL)
    MuonClip(model.parameters.items(), layers, replace(STILL, qk_clip_mode="disabled"))


def test_everything_that_does_not_fit_the_attention_is_named_at_once() -> None:
    model = Model()
    foreign = HeadParameter("other.query", torch.ones(5, 3), LogitPart.QUERY, 2)
    layers = [replace(layer, kind="groupedQuery", parameters=(foreign,)) for layer in model.layers()[:1]]
    config = replace(STILL, qk_clip_layer_thresholds=(1.0, 2.0), qk_clip_grouped_query="balanced")
    with pytest.raises(InvalidFields) as caught:
        MuonClip(model.parameters.items(), layers, config)
    assert caught.value.problems == (
        "qk_clip_layer_thresholds: 2 must be one for each of the 1 attention layers",
        "qk_clip_grouped_query: balanced needs the shared key of attention layer 0",
        "attention layer 0: other.query: is not among the parameters of the optimizer",
        "attention layer 0: other.query: 2 heads must divide its 5 rows",
    )
