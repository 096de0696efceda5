"""Latent attention of a model of one's own, in DeepSeek's layout: what is scaled, what is not, and where it ends."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.integrations.attention_layers import attention_layers
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.model.layers import rotate
from trimtab_trainer.optim import (
    AttentionHeads,
    LogitPart,
    LogitRecorder,
    MuonClip,
    MuonClipConfig,
    ParameterGroup,
    latent_projections,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "muonclip.md"
HEADS, CONTENT, ROTARY, VALUE, WIDTH, RANK, TOKENS = 4, 6, 4, 5, 24, 10, 7
STILL: dict[str, Any] = {"muon_lr": 1e-300, "adamw_lr": 1e-300}
"""Rates at which nothing moves but what QK-Clip scales."""

GAINS = torch.tensor([0.2, 3.0, 2.0, 0.3], dtype=torch.float64)
"""Of the queries of the four heads: the two in the middle are hot."""


class Latent(nn.Module):
    """DeepSeek's maps, named as there; `forward` attends, and gives nothing back but what it attended to."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_a_proj = nn.Linear(WIDTH, RANK, bias=bias)
        self.q_b_proj = nn.Linear(RANK, HEADS * (CONTENT + ROTARY), bias=bias)
        self.kv_a_proj_with_mqa = nn.Linear(WIDTH, RANK + ROTARY, bias=bias)
        self.kv_b_proj = nn.Linear(RANK, HEADS * (CONTENT + VALUE), bias=bias)
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_()
            for parameter in self.q_b_proj.parameters():
                rows = parameter.view(HEADS, -1)
                rows.mul_(GAINS[:, None])

    def forward(self, x: Tensor) -> Tensor:
        query = self.q_b_proj(self.q_a_proj(x)).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        latent, rotary_key = self.kv_a_proj_with_mqa(x).split((RANK, ROTARY), -1)
        key_value = self.kv_b_proj(latent).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        content, rotary = query.split((CONTENT, ROTARY), -1)
        content_key, value = key_value.split((CONTENT, VALUE), -1)
        angles = torch.arange(TOKENS)[:, None] * torch.tensor([1.0, 0.1], dtype=torch.float64).repeat(2)
        rotary, rotary_key = (rotate(one, angles.cos(), angles.sin()) for one in (rotary, rotary_key[:, None]))
        query = torch.cat((content, rotary), -1)
        key = torch.cat((content_key, rotary_key.expand(-1, HEADS, -1, -1)), -1)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def logits(self) -> Tensor:
        """The largest logits [1, heads] of one batch, always the same."""
        inputs = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        recorder = LogitRecorder(1)
        with torch.no_grad(), recorder:
            self(inputs.to(self.q_b_proj.weight.dtype))
        return recorder.max_logits()

    def heads(self) -> AttentionHeads:
        return latent_projections("layer", self.q_b_proj, self.kv_b_proj, **DIMENSIONS)

    def rows(self) -> dict[str, Tensor]:
        """A copy of the rows of each part, [heads, rows, ...], and of the other maps, cut out by their place."""
        copies: dict[str, Tensor] = {}
        for name, parameter in self.named_parameters():
            kept = parameter.detach().clone()
            if name.startswith(("q_b_proj", "kv_b_proj")):
                blocks = torch.stack(kept.chunk(HEADS))
                copies[f"{name} content"], copies[f"{name} other"] = blocks[:, :CONTENT], blocks[:, CONTENT:]
            else:
                copies[name] = kept
        return copies


DIMENSIONS = {"heads": HEADS, "content_dimension": CONTENT, "rotary_dimension": ROTARY, "value_dimension": VALUE}


@pytest.mark.parametrize("bias", [False, True])
def test_hot_heads_land_on_the_threshold_and_what_is_shared_and_all_values_keep_every_bit(bias: bool) -> None:
    layer = Latent(bias=bias)
    before, kept = layer.logits(), layer.rows()
    threshold = before.median().item() * 1.01
    MuonClip(layer.named_parameters(), [layer.heads()], MuonClipConfig(qk_clip_threshold=threshold, **STILL)).step(
        before
    )
    after, hot, gamma = layer.logits(), before[0] > threshold, threshold / before[0]
    assert hot.tolist() == [False, True, True, False]
    assert ((after[0, hot] / threshold - 1).abs() < 4e-15).all()
    assert torch.equal(after[0, ~hot], before[0, ~hot])
    shares = {"q_b_proj content": gamma.sqrt(), "q_b_proj other": gamma, "kv_b_proj content": gamma.sqrt()}
    for name, found in layer.rows().items():
        share = shares.get(name.replace(".weight", "").replace(".bias", ""))
        if share is None:
            assert torch.equal(found, kept[name]), name
            continue
        assert torch.equal(found[~hot], kept[name][~hot]), name
        factors = share[hot].view(-1, *[1] * (found.ndim - 1))
        torch.testing.assert_close(found[hot], kept[name][hot] * factors, rtol=1e-15, atol=0)


@pytest.mark.parametrize("gradients", [False, True])
def test_the_parts_are_views_of_the_rows_that_belong_to_them(gradients: bool) -> None:
    layer = Latent(bias=True)
    with torch.set_grad_enabled(gradients):
        heads = layer.heads()
    query, key_value = torch.arange(HEADS * (CONTENT + ROTARY)), torch.arange(HEADS * (CONTENT + VALUE))
    expected = {
        LogitPart.CONTENT_QUERY: query[query % (CONTENT + ROTARY) < CONTENT],
        LogitPart.ROTARY_QUERY: query[query % (CONTENT + ROTARY) >= CONTENT],
        LogitPart.CONTENT_KEY: key_value[key_value % (CONTENT + VALUE) < CONTENT],
    }
    assert heads.kind == "latent"
    assert [each.part for each in heads.parameters] == [part for part in expected for _ in range(2)]
    for part, rows in expected.items():
        of = layer.kv_b_proj if part == LogitPart.CONTENT_KEY else layer.q_b_proj
        for each, parameter in zip(heads.of(part), (of.weight, of.bias), strict=True):
            assert each.heads == HEADS
            assert each.parameter.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
            kept = parameter.detach().clone()
            with torch.no_grad():
                each.parameter.add_(1.0)
            changed = (parameter != kept).flatten(1).all(1) if parameter.ndim > 1 else parameter != kept
            assert torch.equal(changed.nonzero().flatten(), rows)
    # An optimizer knows the parameters that they are views of.
    MuonClip(layer.named_parameters(), [heads], MuonClipConfig())
    assert [each.name for each in heads.of(LogitPart.CONTENT_KEY)] == ["layer.key_value.weight", "layer.key_value.bias"]


def test_of_weights_in_bfloat16_the_copies_are_scaled_and_the_weights_follow() -> None:
    layer = Latent().bfloat16()
    before, kept = layer.logits().double(), layer.rows()
    threshold = before.median().item() * 1.01
    config = MuonClipConfig(qk_clip_threshold=threshold, master_weights=True, **STILL)
    optimizer = MuonClip(layer.named_parameters(), [layer.heads()], config)
    optimizer.step(before)
    masters = optimizer.tensors()["master_weights"]
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, masters[name].bfloat16())
    gamma = (threshold / before[0]).clamp(max=1)
    scaled = torch.stack(masters["q_b_proj.weight"].chunk(HEADS))[:, CONTENT:]
    expected = kept["q_b_proj.weight other"].float() * gamma.float()[:, None, None]
    torch.testing.assert_close(scaled, expected, rtol=1e-6, atol=0)
    assert torch.equal(layer.rows()["kv_b_proj.weight other"], kept["kv_b_proj.weight other"])


def test_rows_that_are_not_those_of_so_many_heads_are_refused_at_once() -> None:
    layer = Latent()
    with pytest.raises(InvalidFields) as caught:
        latent_projections("layer", layer.q_b_proj, layer.kv_b_proj, **{**DIMENSIONS, "content_dimension": 5})
    assert caught.value.problems == (
        "layer.query: 40 rows must be 36, 4 heads of 5 + 4",
        "layer.key_value: 44 rows must be 40, 4 heads of 5 + 5",
    )
    with pytest.raises(InvalidFields) as caught:
        latent_projections("layer", layer.kv_b_proj, layer.kv_b_proj, **{**DIMENSIONS, "value_dimension": 0})
    assert caught.value.problems == (
        "value_dimension: 0 must be at least 1",
        "layer.query: 44 rows must be 40, 4 heads of 6 + 4",
    )


def deepseek(query_rank: int | None = 12) -> DeepseekV3ForCausalLM:
    """Two layers of DeepSeek's own, with weights so large that their logits differ."""
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        first_k_dense_replace=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=query_rank,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        max_position_embeddings=64,
        use_cache=False,
        pad_token_id=None,
    )
    model = DeepseekV3ForCausalLM(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "self_attn" in name and parameter.ndim > 1:
                parameter.normal_(0.0, 0.5)
    return model


def tokens() -> Tensor:
    return torch.randint(0, 32, (3, 12), generator=torch.Generator().manual_seed(0))


def test_the_example_of_the_page_clips_deepseeks_own_model() -> None:
    model = deepseek()
    written = next(block for block in PAGE.read_text("utf-8").split("```") if "latent_projections(" in block)
    written = written.removeprefix("python\n")
    names: dict[str, Any] = {"model": model}
    exec(written, names)
    recorder, kept = LogitRecorder(2), {name: one.detach().clone() for name, one in model.named_parameters()}
    with recorder:
        model(input_ids=tokens(), labels=tokens()).loss.backward()
    before = recorder.max_logits()
    threshold = before.median().item() * 1.01
    config = MuonClipConfig(groups=names["groups"], qk_clip_threshold=threshold, **STILL)
    optimizer = MuonClip(model.named_parameters(), names["attention"], config)
    optimizer.step(before)
    with recorder:
        model(input_ids=tokens())
    # Of the first layer alone: what the second one sees has changed with it.
    after, hot = recorder.max_logits()[0], before[0] > threshold
    assert 0 < hot.sum() < HEADS
    torch.testing.assert_close(after[hot], torch.full_like(after[hot], threshold), rtol=1e-13, atol=0)
    assert torch.equal(after[~hot], before[0, ~hot])
    changed = {
        name.split("self_attn.")[-1] for name, one in model.named_parameters() if not torch.equal(one, kept[name])
    }
    assert changed == {"q_b_proj.weight", "kv_b_proj.weight"}
    rows = {route.name: route.rows for route in optimizer.routes}
    assert rows["model.layers.1.self_attn.kv_a_proj_with_mqa.weight"] == (16, 4)


def test_queries_that_are_not_compressed_are_clipped_in_a_loop_of_a_framework_too() -> None:
    model = deepseek(query_rank=None)

    def attention(of: nn.Module) -> dict[str, AttentionHeads]:
        modules = {name: of.get_submodule(name) for name in ("model.layers.0.self_attn", "model.layers.1.self_attn")}
        return {
            name: latent_projections(
                name,
                module.q_proj,
                module.kv_b_proj,
                heads=HEADS,
                content_dimension=8,
                rotary_dimension=4,
                value_dimension=6,
            )
            for name, module in modules.items()
        }

    splits = {"kv_a_proj_with_mqa": (16, 4), "q_proj": (8, 4) * HEADS, "kv_b_proj": (8, 6) * HEADS}
    groups = tuple(ParameterGroup(pattern=f"*.{name}.weight", split=rows) for name, rows in splits.items())
    optimizer = MuonClipOptimizer(model, MuonClipConfig(groups=groups, qk_clip_threshold=18.5, **STILL), attention)
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    optimizer.agreed_logits = optimizer.take_logits().max_logit
    before = optimizer.agreed_logits[0]
    optimizer.step()
    model(input_ids=tokens())
    after, hot = optimizer.take_logits().max_logit[0], before > 18.5
    assert 0 < hot.sum() < HEADS
    torch.testing.assert_close(after[hot], torch.full_like(after[hot], 18.5), rtol=1e-13, atol=0)
    assert torch.equal(after[~hot], before[~hot])


@pytest.mark.parametrize("query_rank", [None, 10])
def test_deepseeks_own_model_is_recognised(query_rank: int | None) -> None:
    model = deepseek(query_rank=query_rank)
    found = attention_layers(model)
    assert list(found) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    for name, layer in found.items():
        module: Any = model.get_submodule(name)
        named = latent_projections(
            name,
            module.q_proj if query_rank is None else module.q_b_proj,
            module.kv_b_proj,
            heads=HEADS,
            content_dimension=8,
            rotary_dimension=4,
            value_dimension=6,
        )
        assert (layer.kind, layer.heads, layer.normalised) == ("latent", HEADS, False)
        for one, other in zip(layer.parameters, named.parameters, strict=True):
            assert (one.part, one.parameter.data_ptr()) == (other.part, other.parameter.data_ptr())
            assert one.parameter.shape == other.parameter.shape
    optimizer = MuonClipOptimizer(model, MuonClipConfig(qk_clip_threshold=8.0, **STILL))
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    optimizer.agreed_logits = optimizer.take_logits().max_logit
    assert bool((optimizer.agreed_logits[0] > 8.0).any())
    optimizer.step()
    model(input_ids=tokens())
    assert optimizer.take_logits().max_logit[0].max() <= 8.0 * (1 + 1e-6)


def test_a_norm_of_each_head_behind_the_maps_is_seen_in_latent_attention_too() -> None:
    model = deepseek()
    model.get_submodule("model.layers.0.self_attn").add_module("q_norm", nn.RMSNorm(12))
    assert [layer.normalised for layer in attention_layers(model).values()] == [True, False]
