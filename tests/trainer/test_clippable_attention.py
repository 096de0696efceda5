"""Which attention of Hugging Face's models QK-Clip can clip, what it says of all other, and what still trains."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.head_parameters import AttentionHeads
from trimtab_trainer.integrations.attention_layers import attention_layers
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.optim import MuonClipConfig, ParameterGroup, fused_projection
from watched_llama import HEADS, SHAPE, SPECIAL, STILL, exactly, llama, tokens


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(**SPECIAL, n_positions=32, n_embd=16, n_layer=2, n_head=2))


def qwen(**more: Any) -> nn.Module:
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 8}
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, **SPECIAL, **heads, **more))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (gpt2, r"^model: transformer\.h\.0\.attn and 1 more: GPT2Attention has no linear maps q_proj and k_proj"),
        (qwen, "^qk_clip_mode: must be disabled: layer 0 normalises the query and key of each head"),
        (lambda: llama(attn_implementation="eager"), r"^model\.config\.attn_implementation: eager keeps its logits"),
        (lambda: nn.Linear(4, 4), "^model: nothing in it is known to attend"),
    ],
    ids=["fused", "normalised", "eager", "nothing"],
)
def test_attention_that_cannot_be_clipped_is_refused(make: Any, told: str) -> None:
    with pytest.raises(InvalidFields, match=told):
        MuonClipOptimizer(make())


@pytest.mark.parametrize(
    ("names", "normalised"),
    [
        (("q_norm", "k_norm"), True),
        (("query_layernorm", "key_layernorm"), True),
        (("qk_norm",), True),
        (("q_layer_norm", "k_layer_norm"), True),
        (("q_layernorm",), True),
        (("norm_q",), True),
        (("v_norm",), False),
        (("o_norm", "attn_sub_norm"), False),
        (("kv_norm_of_something", "sub_layernorm"), False),
    ],
)
def test_what_normalises_heads_is_known_by_every_name_that_models_have_for_it(
    names: tuple[str, ...], normalised: bool
) -> None:
    """Unseen it would keep the logits where they are, and QK-Clip would scale the maps towards nothing."""
    model = llama()
    for layer in model.model.layers:
        for name in names:
            layer.self_attn.add_module(name, nn.RMSNorm(8))
    assert [layer.normalised for layer in attention_layers(model).values()] == [normalised] * 2


@pytest.mark.parametrize("kind", ["HunYuanDenseV1", "Llama4"])
def test_models_that_call_their_norms_otherwise_are_refused(kind: str) -> None:
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 8}
    if kind == "Llama4":
        more = {"num_local_experts": 2, "intermediate_size_mlp": 48, "pad_token_id": None}
        model: nn.Module = Llama4ForCausalLM(Llama4TextConfig(**SHAPE, **SPECIAL, **heads, **more))
    else:
        model = HunYuanDenseV1ForCausalLM(HunYuanDenseV1Config(**SHAPE, **SPECIAL, **heads, pad_token_id=None))
    with pytest.raises(InvalidFields, match="normalises the query and key of each head"):
        MuonClipOptimizer(model)


def test_all_that_cannot_be_clipped_is_told_at_once() -> None:
    with pytest.raises(InvalidFields) as caught:
        MuonClipOptimizer(qwen(attn_implementation="eager"))
    first, last = caught.value.problems[0], caught.value.problems[-1]
    assert first.startswith("qk_clip_mode: must be disabled: layer 0 normalises")
    assert last.startswith("model.config.attn_implementation: eager keeps its logits")


def test_normalised_queries_and_keys_are_watched_where_nothing_is_to_be_clipped() -> None:
    model = qwen()
    optimizer = exactly(model, MuonClipConfig(qk_clip_mode="disabled"))
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    logits = optimizer.take_logits().max_logit
    assert logits.shape == (2, HEADS)
    # Both have a root mean square of 1 and 8 elements: no product can exceed 8 / sqrt(8).
    assert (logits > 0.5).all()
    assert (logits <= math.sqrt(8) + 1e-5).all()


def test_a_fused_map_is_clipped_where_its_user_tells_what_makes_the_logits() -> None:
    torch.manual_seed(0)
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2}
    model = Phi3ForCausalLM(Phi3Config(**SHAPE, **SPECIAL, **heads, pad_token_id=None)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "qkv_proj" in name:
                parameter.normal_(0.0, 0.4)

    def attention(of: nn.Module) -> dict[str, AttentionHeads]:
        modules = {name: of.get_submodule(name) for name in ("model.layers.0.self_attn", "model.layers.1.self_attn")}
        return {
            name: fused_projection(name, module.qkv_proj, heads=HEADS, key_heads=2) for name, module in modules.items()
        }

    fused = ParameterGroup(pattern="*.qkv_proj.weight", split=(32, 16, 16))
    optimizer = exactly(model, MuonClipConfig(groups=(fused,), qk_clip_threshold=15.0, **STILL), attention)
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    optimizer.agreed_logits = optimizer.take_logits().max_logit
    before = optimizer.agreed_logits[0]
    optimizer.step()
    model(input_ids=tokens())
    after, hot = optimizer.take_logits().max_logit[0], before > 15
    assert 0 < hot.sum() < HEADS
    torch.testing.assert_close(after[hot], torch.full_like(after[hot], 15), rtol=1e-9, atol=0)


def test_without_attention_that_is_watched_a_fused_model_trains_all_the_same() -> None:
    model = gpt2()
    fused = ParameterGroup(pattern="*.c_attn.weight", optimizer="adamw")
    optimizer = MuonClipOptimizer(model, MuonClipConfig(groups=(fused,)), attention=lambda _: {})
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    optimizer.step()
    assert optimizer.telemetry is not None
    assert optimizer.telemetry.qk_clip_gamma.numel() == 0
