"""Heads that are clipped in vain are told of, once, and heads that are clipped often and obey are not."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trimtab_trainer.optim import LogitRecorder, MuonClip, MuonClipConfig, separate_projections
from trimtab_trainer.optim.clip_effect import LARGEST_FACTOR, UPDATES, ClipEffect

HEADS, WIDTH, STEPS = 2, 16, 90


class Attention(nn.Module):
    """Attention whose logits want to grow; some normalise the query and key of each head, and no module says so."""

    def __init__(self, *, normalised: bool) -> None:
        super().__init__()
        self.q, self.k = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.normalised = normalised

    def forward(self, x: Tensor) -> Tensor:
        """Of `x` [tokens, width] how little each token attends to itself, in the mean."""
        query, key = (one(x).unflatten(-1, (HEADS, -1)).transpose(0, 1)[None] for one in (self.q, self.k))
        if self.normalised:
            query, key = (3 * F.normalize(one, dim=-1) for one in (query, key))
        weights = F.scaled_dot_product_attention(query, key, torch.eye(len(x)).expand(1, HEADS, -1, -1))
        return -weights.diagonal(dim1=-2, dim2=-1).log().mean()


def trained(normalised: tuple[bool, ...], threshold: float, mode: str = "clip") -> list[Tensor]:
    """The factors of every update of a model that has to find the token that is like its own."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Attention(normalised=one) for one in normalised)
    attention = [
        separate_projections(f"{n}", layer.q, layer.k, heads=HEADS)
        for n, layer in enumerate(layers)
        if isinstance(layer, Attention)
    ]
    config = MuonClipConfig(qk_clip_threshold=threshold, muon_lr=0.02, qk_clip_mode=mode)  # pyright: ignore[reportArgumentType]
    optimizer, recorder = MuonClip(layers.named_parameters(), attention, config), LogitRecorder(len(normalised))
    found: list[Tensor] = []
    x = torch.randn(12, WIDTH)
    for _ in range(STEPS):
        with recorder:
            loss = torch.stack([layer(x) for layer in layers]).sum()
        optimizer.zero_grad()
        loss.backward()
        found.append(optimizer.step(recorder.max_logits()).qk_clip_gamma)
    return found


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_clipping_a_layer_that_normalises_by_a_function_is_told_once_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    factors = trained((False, True), threshold=1.5)
    assert all(bool((one[1] <= LARGEST_FACTOR).any()) for one in factors)
    (said,) = warnings_of(caplog)
    assert said.startswith("attention layer 1 (1.k.weight, 1.q.weight): QK-Clip scaled heads [")
    assert "normalises queries and keys" in said


def test_a_model_that_obeys_is_not_told_of_however_often_it_is_clipped(caplog: pytest.LogCaptureFixture) -> None:
    factors = trained((False, False), threshold=1.5)
    clipped = torch.stack([one < 1 for one in factors])
    assert bool(clipped[-2 * UPDATES :].all(0).any()), "some head is clipped in every one of many updates"
    assert not warnings_of(caplog)


def test_what_only_observes_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    factors = trained((True,), threshold=1.5, mode="observe")
    assert all(bool((one <= LARGEST_FACTOR).any()) for one in factors)
    assert not warnings_of(caplog)


def seen(logits: list[float]) -> list[int]:
    """The updates at which something is told of the first of two heads; the threshold is 100."""
    effect = ClipEffect()
    told: list[int] = []
    for number, logit in enumerate(logits, 1):
        both = torch.tensor([[logit, 50.0]])
        gamma = torch.where(both > 100, 100 / both, 1.0)
        found = effect.seen(both, gamma, [0] if logit > 100 else [])
        assert found in ([], [(0, [0])])
        told += [number] * len(found)
    return told


def test_only_what_stays_far_above_the_threshold_in_a_long_row_counts() -> None:
    assert seen([200.0] * 100) == [UPDATES + 1]
    assert seen([120.0] * 100) == [], "grows by a fifth in each update, and is brought back each time"
    assert seen(([200.0] * UPDATES + [90.0]) * 5) == [], "has come down"
    assert seen([200.0] * UPDATES + [110.0] + [200.0] * (UPDATES + 1)) == [2 * UPDATES + 2]
    assert seen([1000.0] + [130.0] * 100) == [], "has fallen, though growing fast"
