"""Weights of few bits are updated in float32 copies, which QK-Clip scales and a checkpoint holds."""

import copy

import pytest
import torch
from torch import Tensor
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.head_parameters import AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim import MuonClip, MuonClipConfig

MASTERS = MuonClipConfig(master_weights=True, muon_lr=1e-5, adamw_lr=1e-5, decay=0.0)


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parameters(kind: torch.dtype) -> dict[str, Tensor]:
    """Made from the same bfloat16 numbers, whatever the kind."""
    shapes = {"embedding.weight": (12, 8), "qkv.weight": (24, 8), "norm.weight": (8,)}
    return {name: gaussian(*shape).bfloat16().to(kind).requires_grad_() for name, shape in shapes.items()}


def step(optimizer: MuonClip, those: dict[str, Tensor], seed: int, logits: Tensor) -> None:
    for parameter in those.values():
        parameter.grad = gaussian(*parameter.shape, seed=seed).bfloat16().to(parameter.dtype)
    optimizer.step(logits)


def heads_of(those: dict[str, Tensor]) -> AttentionHeads:
    """Query and key are views of one fused parameter."""
    query, key, _ = those["qkv.weight"].split(8)
    return AttentionHeads(
        "multiHead",
        2,
        (HeadParameter("query", query, LogitPart.QUERY, 2), HeadParameter("key", key, LogitPart.KEY, 2)),
    )


def test_small_updates_and_factors_add_up_as_in_single_precision() -> None:
    short, full = parameters(torch.bfloat16), parameters(torch.float32)
    start = {name: parameter.detach().clone() for name, parameter in short.items()}
    optimizers = [MuonClip(those.items(), [heads_of(those)], MASTERS) for those in (short, full)]
    logits = torch.tensor([[100.2, 3.0]])
    for seed in range(20):
        for optimizer, those in zip(optimizers, (short, full), strict=True):
            step(optimizer, those, seed, logits)
    masters = optimizers[0].state_dict()["master_weights"]
    for name, parameter in full.items():
        assert torch.equal(masters[name], parameter.detach()), name
        assert torch.equal(short[name], parameter.detach().bfloat16()), name
    query = masters["qkv.weight"]
    assert (query[:4].norm() / start["qkv.weight"][:4].float().norm()).item() == pytest.approx(
        (100 / 100.2) ** 10, rel=1e-3
    ), "twenty factors of 0.999, each of which bfloat16 would lose"


def test_bfloat16_alone_would_lose_such_factors() -> None:
    weight = gaussian(64, 64).bfloat16()
    assert torch.equal(weight * (100 / 100.2) ** 0.5, weight)


def test_a_restored_run_goes_on_from_the_masters_bit_for_bit() -> None:
    first = parameters(torch.bfloat16)
    optimizer = MuonClip(first.items(), [heads_of(first)], MASTERS)
    logits = torch.tensor([[120.0, 3.0]])
    for seed in range(3):
        step(optimizer, first, seed, logits)
    state = copy.deepcopy(optimizer.state_dict())
    second = {name: parameter.detach().clone().requires_grad_() for name, parameter in first.items()}
    resumed = MuonClip(second.items(), [heads_of(second)], MASTERS)
    resumed.load_state_dict(state)
    for seed in range(3, 6):
        step(optimizer, first, seed, logits)
        step(resumed, second, seed, logits)
    torch.testing.assert_close(resumed.state_dict(), optimizer.state_dict(), rtol=0, atol=0)


def test_parameters_that_are_masters_themselves_get_no_copies_and_no_keys() -> None:
    full = parameters(torch.float32)
    assert "master_weights" not in MuonClip(full.items(), (), MASTERS).state_dict()


def test_without_masters_weights_of_few_bits_are_refused() -> None:
    with pytest.raises(InvalidFields, match=r"norm\.weight: torch\.bfloat16 must be torch\.float32"):
        MuonClip(parameters(torch.bfloat16).items(), (), MuonClipConfig())
