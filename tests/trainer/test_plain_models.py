"""MuonClip as a library: any PyTorch model, its attention read off the calls of `scaled_dot_product_attention`."""

import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.head_parameters import LogitPart
from trimtab_trainer.optim import (
    LogitRecorder,
    MuonClip,
    MuonClipConfig,
    ParameterGroup,
    fused_projection,
    largest_logits,
    multihead_attention,
    parameter_groups,
    separate_projections,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "muonclip" / "train.py"
PAGE = ROOT / "docs" / "muonclip.md"


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax_inputs(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """The whole matrix of logits, minus infinity where `mask` is false."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~mask, -math.inf)


@pytest.mark.parametrize("tokens", [7, 128, 300])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_the_largest_logits_are_those_of_the_whole_matrix(tokens: int, key_heads: int) -> None:
    query, key = gaussian(2, 4, tokens, 8), gaussian(2, key_heads, tokens, 8, seed=1)
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    whole = torch.ones_like(causal)
    for mask, given in ((whole, {}), (causal, {"is_causal": True}), (causal, {"attn_mask": causal})):
        expected = softmax_inputs(query, key, mask).amax((0, 2, 3))
        torch.testing.assert_close(largest_logits(query, key, **given), expected, rtol=1e-13, atol=0)  # pyright: ignore[reportArgumentType]


def test_masks_are_the_ones_of_the_attention() -> None:
    query, key = gaussian(2, 3, 5, 8), gaussian(2, 3, 9, 8, seed=1)
    bias = gaussian(2, 1, 5, 9, seed=2)
    expected = (softmax_inputs(query, key, torch.ones(5, 9, dtype=torch.bool)) + bias).amax((0, 2, 3))
    torch.testing.assert_close(largest_logits(query, key, attn_mask=bias), expected, rtol=1e-13, atol=0)
    padding = torch.tensor([True] * 4 + [False] * 5)[None, None, None]
    expected = softmax_inputs(query, key, padding).amax((0, 2, 3))
    torch.testing.assert_close(largest_logits(query, key, attn_mask=padding), expected, rtol=1e-13, atol=0)
    assert largest_logits(query, key, attn_mask=torch.zeros(5, 9, dtype=torch.bool)).isfinite().all()
    torch.testing.assert_close(
        largest_logits(query, key, scale=2.0), largest_logits(query, key, scale=1.0) * 2, rtol=1e-13, atol=0
    )
    with pytest.raises(ValueError, match="query, key: 3 and 4 dimensions must be"):
        largest_logits(query[0], key)


def test_the_recorder_takes_calls_for_layers_in_turn_and_leaves_attention_as_it_is() -> None:
    recorder = LogitRecorder(2)
    inputs = [gaussian(1, 2, 6, 4, seed=seed) for seed in range(4)]
    plain = [F.scaled_dot_product_attention(each, each, each, is_causal=True) for each in inputs]
    with recorder:
        recorded = [F.scaled_dot_product_attention(each, each, each, None, 0.0, True) for each in inputs]
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    each = [largest_logits(given, given, is_causal=True) for given in inputs]
    expected = torch.stack([torch.maximum(each[0], each[2]), torch.maximum(each[1], each[3])])
    assert torch.equal(recorder.max_logits(), expected)
    with recorder:
        F.scaled_dot_product_attention(inputs[0], inputs[0], inputs[0])
    with pytest.raises(ValueError, match="2 layers attended 1 times in all"):
        recorder.max_logits()
    with pytest.raises(ValueError, match="were not seen to attend since their largest logits were last taken"):
        recorder.max_logits()


def test_a_forward_pass_that_breaks_off_leaves_nothing_that_would_shift_the_layers() -> None:
    recorder = LogitRecorder(2)
    whole, broken = [gaussian(1, 2, 6, 4, seed=seed) for seed in range(2)], 9 * gaussian(1, 2, 6, 4)

    def attend(*inputs: Tensor) -> None:
        for one in inputs:
            F.scaled_dot_product_attention(one, one, one)

    def broken_off() -> None:
        with recorder:
            attend(broken)
            raise MemoryError

    with pytest.raises(MemoryError):
        broken_off()
    with recorder:
        attend(*whole)
    with pytest.raises(MemoryError):
        broken_off()
    expected = torch.stack([largest_logits(one, one) for one in whole])
    assert torch.equal(recorder.max_logits(), expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("fused", [False, True])
def test_a_clipped_head_of_any_model_meets_the_threshold_on_the_same_batch(
    fused: bool, key_heads: int, bias: bool
) -> None:
    torch.manual_seed(0)
    maps = nn.ModuleDict({"qkv": nn.Linear(16, (4 + 2 * key_heads) * 4, bias=bias)} if fused else {})
    if not fused:
        maps = nn.ModuleDict({"q": nn.Linear(16, 16, bias=bias), "k": nn.Linear(16, key_heads * 4, bias=bias)})
    maps.double()
    recorder, inputs = LogitRecorder(1), gaussian(2, 6, 16)

    def logits() -> Tensor:
        if fused:
            query, key, value = (
                maps["qkv"](inputs).unflatten(-1, (-1, 4)).transpose(1, 2).split((4, key_heads, key_heads), 1)
            )
        else:
            query, key = (maps[name](inputs).unflatten(-1, (-1, 4)).transpose(1, 2) for name in ("q", "k"))
            value = key
        with recorder:
            F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return recorder.max_logits()

    if fused:
        layer = fused_projection("qkv", maps["qkv"], heads=4, key_heads=key_heads)
        groups = (ParameterGroup(pattern="qkv.weight", split=(16, key_heads * 4, key_heads * 4)),)
    else:
        layer, groups = separate_projections("", maps["q"], maps["k"], heads=4, key_heads=key_heads), ()
    before = logits()
    threshold = before.median().item()
    config = MuonClipConfig(groups=groups, muon_lr=1e-300, adamw_lr=1e-300, qk_clip_threshold=threshold)
    MuonClip(maps.named_parameters(), [layer], config).step(before)
    after, hot = logits(), before > threshold
    assert 0 < hot.sum() < 4
    assert ((after[hot] / threshold - 1).abs() < 1e-13).all()
    assert torch.equal(after[~hot], before[~hot])


def test_a_fused_map_must_have_whole_heads() -> None:
    with pytest.raises(InvalidFields, match="qkv: 20 rows must be a multiple of 8, its heads"):
        fused_projection("qkv", nn.Linear(8, 20), heads=4, key_heads=2)


def test_embeddings_are_found_under_any_name() -> None:
    model = nn.ModuleDict({"lookup": nn.Embedding(10, 8), "scores": nn.Linear(8, 10), "hidden": nn.Linear(8, 8)})
    config = MuonClipConfig(groups=parameter_groups(model, adamw=("scores.*",)))
    routes = {route.name: route.optimizer for route in MuonClip(model.named_parameters(), (), config).routes}
    assert {name for name, optimizer in routes.items() if optimizer == "muon"} == {"hidden.weight"}
    assert parameter_groups(model["lookup"])[0].pattern == "weight"


def test_separate_maps_make_multi_head_or_grouped_query_attention() -> None:
    query, key = nn.Linear(8, 8), nn.Linear(8, 4, bias=False)
    grouped = separate_projections("attention", query, key, heads=4, key_heads=2)
    assert grouped.kind == "groupedQuery"
    assert [(each.name, each.part, each.heads) for each in grouped.parameters] == [
        ("attention.query.weight", LogitPart.QUERY, 4),
        ("attention.query.bias", LogitPart.QUERY, 4),
        ("attention.key.weight", LogitPart.SHARED_KEY, 2),
    ]
    assert separate_projections("attention", query, nn.Linear(8, 8), heads=4).kind == "multiHead"


MULTIHEAD: dict[str, dict[str, Any]] = {
    "packed": {},
    "without bias": {"bias": False},
    "separate": {"kdim": 12, "vdim": 10},
    "appended": {"add_bias_kv": True, "add_zero_attn": True},
    "batch first": {"batch_first": True},
}


def multihead_logits(module: nn.MultiheadAttention, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """The largest logit of each head, from the formula; all are [batch, tokens, ...], `mask` true where hidden."""
    if module.in_proj_weight is None:
        weights = module.q_proj_weight, module.k_proj_weight
    else:
        weights = module.in_proj_weight.chunk(3)[:2]
    biases = (0.0, 0.0) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[:2]
    query, key = query @ weights[0].T + biases[0], key @ weights[1].T + biases[1]
    if module.bias_k is not None:
        zero = torch.zeros_like(key[:, :1])
        key, mask = torch.cat((key, module.bias_k.expand_as(zero), zero), 1), F.pad(mask, (0, 2))
    query, key = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in (query, key))
    return softmax_inputs(query, key, ~mask).amax((0, 2, 3)).detach()


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kind", MULTIHEAD)
def test_the_multi_head_module_of_pytorch_is_seen_and_clipped_head_by_head(kind: str, weights: bool) -> None:
    torch.manual_seed(0)
    settings = MULTIHEAD[kind]
    module = nn.MultiheadAttention(16, 4, **settings).double()
    with torch.no_grad():
        module.in_proj_bias is None or module.in_proj_bias.normal_()
    query, key, value = (
        gaussian(2, 6, 16),
        gaussian(2, 7, settings.get("kdim", 16), seed=1),
        gaussian(2, 7, settings.get("vdim", 16), seed=2),
    )
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    hidden = torch.ones(6, 7, dtype=torch.bool).triu(2)
    layout = (lambda one: one) if settings.get("batch_first") else (lambda one: one.transpose(0, 1))
    recorder = LogitRecorder(1)

    def logits() -> Tensor:
        given = {"key_padding_mask": padding, "attn_mask": hidden, "need_weights": weights}
        plain = module(layout(query), layout(key), layout(value), **given)[0]
        with recorder:
            seen = module(layout(query), layout(key), layout(value), **given)[0]
        assert torch.equal(seen, plain)
        found = recorder.max_logits()
        expected = multihead_logits(module, query, key, hidden | padding[:, None, None])
        torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=0)
        return found

    before = logits()
    threshold = before.median().item()
    model = nn.ModuleDict({"attention": module})
    config = MuonClipConfig(
        groups=parameter_groups(model), muon_lr=1e-300, adamw_lr=1e-300, qk_clip_threshold=threshold
    )
    optimizer = MuonClip(model.named_parameters(), [multihead_attention("attention", module)], config)
    rows = {route.name: route.rows for route in optimizer.routes if route.optimizer == "muon"}
    assert rows.get("attention.in_proj_weight", (16,) * 3) == (16,) * 3
    optimizer.step(before)
    after, hot = logits(), before > threshold
    assert 0 < hot.sum() < 4
    assert ((after[hot] / threshold - 1).abs() < 1e-12).all()
    assert torch.equal(after[~hot], before[~hot])


def test_the_zero_key_that_the_multi_head_module_appends_is_a_key_like_any_other() -> None:
    # Every product with a given key is negative, so the largest logit is the zero that every query sees.
    query, key = gaussian(2, 6, 16).abs(), -gaussian(2, 7, 16, seed=1).abs()

    def largest(padding: Tensor | None = None, *, zero: bool) -> Tensor:
        module = nn.MultiheadAttention(16, 4, bias=False, batch_first=True, add_zero_attn=zero).double()
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.eye(16, dtype=torch.float64).repeat(3, 1))
        recorder = LogitRecorder(1)
        with recorder:
            module(query, key, key, key_padding_mask=padding)
        return recorder.max_logits()[0]

    assert largest(zero=True).tolist() == [0.0] * 4
    assert largest(torch.ones(2, 7, dtype=torch.bool), zero=True).tolist() == [0.0] * 4
    assert (largest(zero=False) < 0).all()


def test_a_mask_for_each_head_and_an_unbatched_call_of_the_multi_head_module_are_seen() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4).double()
    recorder, tokens = LogitRecorder(1), gaussian(6, 16)
    hidden = torch.zeros(4, 6, 6, dtype=torch.bool)
    hidden[2] = torch.ones(6, 6, dtype=torch.bool).triu(1)
    with recorder:
        module(tokens, tokens, tokens, attn_mask=hidden)
    expected = multihead_logits(module, tokens[None], tokens[None], hidden[None])
    torch.testing.assert_close(recorder.max_logits()[0], expected, rtol=1e-12, atol=0)


def test_the_function_behind_the_multi_head_module_is_seen_with_keys_that_are_given_and_a_mask_of_booleans() -> None:
    recorder, tokens = LogitRecorder(1), gaussian(6, 2, 16)
    packed, out = gaussian(48, 16, seed=1), gaussian(16, 16, seed=2)
    keys = gaussian(2 * 4, 6, 4, seed=3)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    with recorder:
        F.multi_head_attention_forward(
            *(tokens, tokens, tokens, 16, 4, packed, None, None, None, False, 0.0, out, None),
            attn_mask=hidden,
            static_k=keys,
            static_v=keys,
        )
    query = F.linear(tokens, packed[:16]).unflatten(-1, (4, 4)).permute(1, 2, 0, 3)
    expected = softmax_inputs(query, keys.view(2, 4, 6, 4), ~hidden).amax((0, 2, 3))
    torch.testing.assert_close(recorder.max_logits()[0], expected, rtol=1e-12, atol=0)


def test_a_layer_of_pytorchs_transformer_trains_and_is_clipped() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    layer = multihead_attention("self_attn", model.self_attn)
    config = MuonClipConfig(groups=parameter_groups(model), qk_clip_threshold=0.05)
    optimizer, recorder = MuonClip(model.named_parameters(), [layer], config), LogitRecorder(1)
    inputs = gaussian(2, 5, 16).float()
    with recorder:
        model(inputs).square().mean().backward()
    assert (optimizer.step(recorder.max_logits()).qk_clip_gamma < 1).any()


class Attention(nn.Module):
    """The attention that the page speaks of: 32 query heads and 8 key heads, a linear map for each side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, width // 4), nn.Linear(width, width // 4)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            side(x).unflatten(-1, (-1, x.shape[-1] // 32)).transpose(1, 2) for side in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return x + self.out(attended.transpose(1, 2).flatten(2))


class SquaredSum(nn.Module):
    """Tokens in, a loss out; the name of its embedding says nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lookup, self.layers = nn.Embedding(10, width), nn.ModuleList(Attention(width) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.Sequential(*self.layers)(self.lookup(tokens)).square().mean()


def test_the_loop_of_the_page_runs_as_it_is_written() -> None:
    torch.manual_seed(0)
    model = SquaredSum(64)
    start = model.lookup.weight.detach().clone()
    written = PAGE.read_text("utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"model": model, "layers": model.layers, "batches": list(torch.arange(6).view(3, 1, 2))}
    exec(written, names)
    assert names["optimizer"].count == 3
    assert not torch.equal(model.lookup.weight, start)
    kinds = {route.name: route.optimizer for route in names["optimizer"].routes}
    assert (kinds["lookup.weight"], kinds["layers.1.k.weight"]) == ("adamw", "muon")


def test_the_example_learns_and_clips(capsys: pytest.CaptureFixture[str]) -> None:
    losses = runpy.run_path(str(EXAMPLE))["train"](steps=12, threshold=0.5)
    assert losses[-1] < losses[0] - 0.5
    said = capsys.readouterr().out
    assert "blocks.0.qkv.weight" in said
    assert "heads clipped" in said


def test_the_example_in_shards_learns_what_it_learns_in_one_process() -> None:
    # Standalone, torchrun takes a port that is free when it binds it.
    launched = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    said: list[str] = []
    for command in ([str(EXAMPLE)], ["-m", *launched]):
        ran = subprocess.run(
            [sys.executable, *command, "--steps", "20", "--threshold", "0.5"],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'contract'}:{ROOT / 'trainer_image'}", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert ran.returncode == 0, ran.stderr
        said.append(ran.stdout)
    # Once from one process, and once from the first of two.
    (table, *alone), (other, *two) = (one.split("step", 1) for one in said)
    assert table == other
    numbers = [[float(number) for number in re.findall(r"[\d.]+", line[0])] for line in (alone, two)]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.01)
    assert numbers[0][-1] > 0, "heads clipped"
    assert numbers[0][-3] < numbers[0][1] - 0.5, "loss"


def test_rows_that_are_packed_head_by_head_are_told_as_the_page_tells_them() -> None:
    written = next(block for block in PAGE.read_text("utf-8").split("```") if "def packed_by_head" in block)
    names: dict[str, Any] = {}
    exec(written.removeprefix("python\n"), names)
    torch.manual_seed(0)
    heads, width, packed = 4, 16, nn.Linear(16, 3 * 16)
    inputs = torch.randn(2, 6, width)
    with torch.no_grad():
        packed.weight.view(heads, 3, -1, width)[1, :2] *= 9

    def logits() -> Tensor:
        recorder = LogitRecorder(1)
        query, key, value = packed(inputs).unflatten(-1, (heads, 3, -1)).movedim(1, 2).unbind(-2)
        with torch.no_grad(), recorder:
            F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return recorder.max_logits()

    before = logits()
    threshold = before[0].sort().values[-2:].mean().item()
    config = MuonClipConfig(muon_lr=1e-300, adamw_lr=1e-300, qk_clip_threshold=threshold)
    values = packed.weight.detach().view(heads, 3, -1, width)[:, 2].clone()
    layer = names["packed_by_head"]("attention", packed, heads)
    MuonClip([(f"attention.{kind}", one) for kind, one in packed.named_parameters()], [layer], config).step(before)
    after, hot = logits()[0], before[0] > threshold
    assert hot.tolist() == [False, True, False, False]
    torch.testing.assert_close(after[hot], torch.full_like(after[hot], threshold))
    torch.testing.assert_close(after[~hot], before[0, ~hot])
    assert torch.equal(packed.weight.detach().view(heads, 3, -1, width)[:, 2], values)


def test_what_is_no_linear_map_and_a_threshold_that_is_a_number_are_refused_in_a_sentence() -> None:
    with pytest.raises(InvalidFields, match=r"a: Embedding is no torch\.nn\.Linear"):
        fused_projection("a", nn.Embedding(4, 4), heads=2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidFields, match=r"threshold: 100\.0 must be a function that returns it"):
        LogitRecorder(1, 100.0)  # pyright: ignore[reportArgumentType]
