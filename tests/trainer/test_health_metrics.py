"""What records tell of weights, optimizer and QK-Clip: by the documented names, against decompositions and by hand."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from scripted_session import ScriptedSession, lone_world, train_steps
from torch import Tensor
from trimtab_trainer.collectives import World
from trimtab_trainer.config import TelemetryConfig
from trimtab_trainer.health_metrics import HealthMetrics
from trimtab_trainer.optim import MuonClip, MuonClipConfig

EVERY = 3
SCALARS = {"weight_norm", "momentum_norm", "spectral_norm", "nonfinite_weights", "nonfinite_state"}
VECTORS = {
    "layer_weight_norm",
    "layer_momentum_norm",
    "layer_spectral_norm",
    "layer_update_rms",
    "qk_clip_rate",
    "qk_clip_smallest",
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with lone_world() as joined:
        yield joined


def trained(world: World, steps: int, threshold: float = 100.0) -> ScriptedSession:
    config = MuonClipConfig(qk_clip_threshold=threshold)
    return train_steps(world, lambda _: None, steps, optimizer=config, telemetry=TelemetryConfig(health_every=EVERY))


def norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.detach().double().square().sum()) for tensor in tensors))


def test_a_step_in_so_many_tells_of_all_weights_and_moments_and_the_others_of_none(world: World) -> None:
    session = trained(world, EVERY)
    for scalars, vectors in zip(session.scalars[:-1], session.vectors[:-1], strict=True):
        assert not SCALARS & scalars.keys()
        assert not VECTORS & vectors.keys()
    scalars, vectors = session.scalars[-1], session.vectors[-1]
    trainee = session.trainee
    weights = dict(trainee.named_parameters())
    state = trainee.optimizer.state_dict()
    momenta = {**state["muon_momentum"], **state["adamw_first_moment"]}
    assert scalars["weight_norm"] == pytest.approx(norm(list(weights.values())), rel=1e-5)
    assert scalars["momentum_norm"] == pytest.approx(norm(list(momenta.values())), rel=1e-5)
    assert (scalars["nonfinite_weights"], scalars["nonfinite_state"]) == (0, 0)
    largest = {name: float(torch.linalg.svdvals(one.detach())[0]) for name, one in weights.items() if one.ndim == 2}
    assert 0.85 * max(largest.values()) <= scalars["spectral_norm"] <= 1.0001 * max(largest.values())
    for layer in range(2):
        names = [name for name in weights if name.startswith(f"blocks.{layer}.")]
        assert vectors["layer_weight_norm"][layer] == pytest.approx(norm([weights[name] for name in names]), rel=1e-5)
        expected = norm([momenta[name] for name in names])
        assert vectors["layer_momentum_norm"][layer] == pytest.approx(expected, rel=1e-5)
        most = max(largest[name] for name in names if name in largest)
        assert 0.85 * most <= vectors["layer_spectral_norm"][layer] <= 1.0001 * most


def test_the_update_of_each_layer_is_that_by_which_its_matrices_have_moved(world: World) -> None:
    """Without decay, and where no head was clipped."""
    rows, rate = {"a": (6, 4), "b": (4, 4), "c": (3, 5)}, 0.5
    parameters = {f"{name}.weight": torch.zeros(shape) for name, shape in rows.items()}
    parameters["a.gain"] = torch.zeros(3)
    optimizer = MuonClip(parameters.items(), (), MuonClipConfig(muon_lr=rate, adamw_lr=0.5, decay=0.0))
    for number, parameter in enumerate(parameters.values()):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    optimizer.step(torch.zeros(0, 0))
    layers = [["a.weight", "a.gain"], ["b.weight"], ["nothing.weight"]]
    _, vectors = HealthMetrics(1, layers).of_step(1, 1, torch.ones(0, 0), optimizer, [], world)
    moved = [float((parameters[f"{name}.weight"] / rate).square().mean().sqrt()) for name in ("a", "b")]
    assert vectors["layer_update_rms"].tolist() == pytest.approx([*moved, 0.0], rel=1e-5)
    assert min(moved) > 0.1


def test_records_tell_how_often_how_much_and_where_heads_were_clipped(world: World) -> None:
    session = trained(world, 2 * EVERY, threshold=0.03)
    gammas = torch.stack([vectors["qk_clip_gamma"] for vectors in session.vectors])
    assert 0 < float((gammas < 1).float().mean()) < 1
    for scalars, gamma in zip(session.scalars, gammas, strict=True):
        assert scalars["qk_clip_share"] == pytest.approx(float((gamma < 1).float().mean()))
    for last in (EVERY, 2 * EVERY):
        stretch, vectors = gammas[last - EVERY : last], session.vectors[last - 1]
        torch.testing.assert_close(vectors["qk_clip_rate"], (stretch < 1).double().mean(0))
        torch.testing.assert_close(vectors["qk_clip_smallest"], stretch.amin(0))


def test_a_withheld_step_counts_what_is_not_finite_in_weights_and_gradients(world: World) -> None:
    def ruin(parameters: dict[str, Tensor]) -> None:
        parameters["blocks.1.down.weight"].data[0, :5] = math.inf

    session = train_steps(world, ruin)
    healthy, withheld = session.scalars
    assert healthy["nonfinite_gradients"] == 0
    assert "nonfinite_weights" not in healthy
    assert withheld["skipped_update"] == 1
    assert withheld["nonfinite_weights"] == 5
    assert withheld["nonfinite_state"] == 0
    assert withheld["nonfinite_gradients"] > 0


def test_a_state_that_is_not_finite_has_infinite_norms_and_is_counted(world: World) -> None:
    parameters = {"matrix.weight": torch.ones(4, 4), "gain": torch.ones(3)}
    optimizer = MuonClip(parameters.items(), (), MuonClipConfig())
    state = optimizer.state_dict()
    state["muon_momentum"]["matrix.weight"][1, :2] = math.nan
    state["adamw_second_moment"]["gain"][0] = math.inf
    parameters["matrix.weight"][0, 0] = math.nan
    metrics = HealthMetrics(1, [["matrix.weight"]])
    scalars, vectors = metrics.of_step(1, 1, torch.ones(1, 2), optimizer, list(parameters.items()), world)
    assert (scalars["nonfinite_weights"], scalars["nonfinite_state"]) == (1, 3)
    assert [scalars[name] for name in ("weight_norm", "momentum_norm", "spectral_norm")] == [math.inf] * 3
    assert vectors["layer_spectral_norm"].tolist() == [math.inf]


def test_a_stretch_that_another_attempt_began_is_not_summed_up(world: World) -> None:
    parameters = {"matrix.weight": torch.ones(4, 4)}
    optimizer = MuonClip(parameters.items(), (), MuonClipConfig())
    metrics = HealthMetrics(EVERY, [["matrix.weight"]])

    def told(attempt: int, step: int, gamma: float | None = 1.0) -> bool:
        factors = None if gamma is None else torch.full((1, 2), gamma)
        return "qk_clip_rate" in metrics.of_step(attempt, step, factors, optimizer, [], world)[1]

    # Attempt 1 goes to step 4, attempt 2 from step 3 on; only whole stretches are told of.
    assert [told(1, step) for step in (1, 2, 3, 4)] == [False, False, True, False]
    assert [told(2, step) for step in (3, 4, 5, 6)] == [False, False, False, True]
    # Withheld updates clip nothing, and without any other there is nothing to tell.
    assert [told(2, step, None) for step in (7, 8)] == [False, False]
    assert told(2, 9, 0.5)
    assert [told(2, step, None) for step in (10, 11, 12)] == [False] * 3


def test_a_step_in_so_many_is_a_positive_number() -> None:
    with pytest.raises(ValueError, match="health_every: 0 must be at least 1"):
        replace(TelemetryConfig(), health_every=0)
