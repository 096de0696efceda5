"""Largest logits of models of Hugging Face and of PyTorch's own attention: each as the model computes it, and once."""

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.max_logits import RowBounds
from trimtab_trainer.optim import logit_recorder
from watched_llama import HEADS, TOKENS, exactly, llama, tokens, whole_matrix


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_a_llamas_largest_logits_are_those_of_the_whole_matrix(key_heads: int, padded: bool) -> None:
    model = llama(key_heads)
    optimizer = exactly(model)
    present = torch.ones(3, TOKENS, dtype=torch.int64)
    present[1, -5:] = 0
    given = present if padded else None
    model(input_ids=tokens(), attention_mask=given)
    expected = whole_matrix(model, tokens(), given)
    torch.testing.assert_close(optimizer.take_logits().max_logit.double(), expected, rtol=2e-5, atol=1e-5)


def test_micro_batches_end_in_one_maximum_and_evaluation_leaves_no_trace() -> None:
    model = llama()
    optimizer = exactly(model)
    parts = [tokens(seed) for seed in range(3)]
    for part in parts:
        model(input_ids=part)
    model.eval()
    model(input_ids=tokens(99, samples=30))
    model.train()
    expected = torch.stack([whole_matrix(model, part) for part in parts]).amax(0)
    torch.testing.assert_close(optimizer.take_logits().max_logit.double(), expected, rtol=2e-5, atol=1e-5)
    with pytest.raises(
        InvalidFields, match=r"model\.layers\.0\.self_attn: LlamaAttention was .* call model\.train\(\)"
    ):
        optimizer.take_logits()


def test_a_block_that_is_computed_again_for_its_gradient_is_seen_and_changes_nothing() -> None:
    plain, again = llama(), llama()
    again.activation_checkpointing_enable({"use_reentrant": False})
    found: list[Tensor] = []
    for model in (plain, again):
        optimizer = exactly(model)
        model(input_ids=tokens(), labels=tokens()).loss.backward()
        found.append(optimizer.take_logits().max_logit)
    assert torch.equal(*found)


@pytest.mark.parametrize("again", [False, True])
def test_each_attention_is_measured_once_though_blocks_are_computed_again(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = llama(), Counter[str]()
    if again:
        model.activation_checkpointing_enable({"use_reentrant": False})
    optimizer = MuonClipOptimizer(model)
    real = logit_recorder.measured_max_logits

    def counting(layers: Sequence[RowBounds], *rest: Any, **settings: Any) -> list[tuple[Tensor, Tensor]]:
        calls["measured"] += len(layers)
        return real(layers, *rest, **settings)

    monkeypatch.setattr(logit_recorder, "measured_max_logits", counting)
    monkeypatch.setattr(logit_recorder, "largest_logits", None)
    for seed in range(3):
        model(input_ids=tokens(seed), labels=tokens(seed)).loss.backward()
    assert calls["measured"] == 3 * 2
    assert optimizer.take_logits().max_logit.shape == (2, HEADS)


def test_a_watched_model_can_be_stored_whole_and_its_copy_measures_for_itself() -> None:
    model = llama()
    optimizer = MuonClipOptimizer(model)
    copy_of_it = pickle.loads(pickle.dumps(model))
    copy_of_it(input_ids=tokens())
    with pytest.raises(InvalidFields, match="was not seen"):
        optimizer.take_logits()


def test_under_bfloat16_the_logits_are_those_of_the_rounded_queries_and_keys_not_rounded_again() -> None:
    model = llama()
    optimizer = exactly(model)
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=tokens())
    found, exact = optimizer.take_logits().max_logit.double(), whole_matrix(model, tokens())
    # Queries and keys are off by 2^-9 each; a product that is rounded, too, is a number of bfloat16.
    torch.testing.assert_close(found, exact, rtol=5e-2, atol=5e-2)
    assert not torch.equal(found, found.bfloat16().double())


def test_pytorchs_transformer_under_bfloat16_is_seen_as_it_computes() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, HEADS, batch_first=True)
    with torch.no_grad():
        module.in_proj_weight.normal_()
    optimizer = exactly(nn.ModuleDict({"attention": module}))
    inputs = torch.randn(2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        module(inputs, inputs, inputs, need_weights=False)
    query, key = (
        nn.functional.linear(inputs.bfloat16(), weight.bfloat16()).double().unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for weight in module.in_proj_weight.detach().chunk(3)[:2]
    )
    expected = (query @ key.mT / 2).amax((0, 2, 3))[None]
    torch.testing.assert_close(optimizer.take_logits().max_logit.double(), expected, rtol=1e-6, atol=1e-6)
