"""`LogitRecorder` and the log-sum-exp of the kernel that PyTorch takes: attention stays bit for bit what it is."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from trimtab_trainer.max_logits import Logits, kernel_calls
from trimtab_trainer.optim import (
    LogitRecorder,
    MuonClip,
    MuonClipConfig,
    ThresholdPoint,
    logit_recorder,
    multihead_attention,
)

BATCH, HEADS, TOKENS, DIMENSION = 2, 6, 70, 16
LOWEST = torch.finfo(torch.float32).min


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seen(*shape: int) -> Tensor:
    """A mask of booleans that leaves each query half of the keys, itself included."""
    return (normal(*shape, seed=7) > 0) | torch.eye(*shape[-2:], dtype=torch.bool)


def padded() -> Tensor:
    """The second sample ends early; behind its end a query sees nothing."""
    length = torch.tensor([TOKENS, TOKENS - 20])
    present = torch.arange(TOKENS) < length[:, None]
    return (present[:, None, :, None] & present[:, None, None]) & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


@dataclass(frozen=True)
class Case:
    """One call of attention on queries whose heads have very different logits."""

    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    dtype: torch.dtype = torch.float32
    key_heads: int = HEADS
    key_samples: int = BATCH
    keys: int = TOKENS
    value_dimension: int = DIMENSION
    strided: bool = False
    around: Callable[[], Any] = nullcontext
    rounds_to: torch.dtype | None = None
    """To which type the surroundings round what attention is given."""

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        gains = torch.linspace(0.5, 8.0, HEADS)[:, None, None]
        query = normal(BATCH, HEADS, TOKENS, DIMENSION) * gains
        key = normal(self.key_samples, self.key_heads, self.keys, DIMENSION, seed=1)
        value = normal(self.key_samples, self.key_heads, self.keys, self.value_dimension, seed=2)
        made = [one.to(self.dtype) for one in (query, key, value)]
        if self.strided:
            made = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in made]
        query, key, value = (one.requires_grad_() for one in made)
        return query, key, value

    def attend(self, inputs: tuple[Tensor, ...], recorder: LogitRecorder | None = None) -> list[Tensor]:
        """The output and the gradients of all inputs."""
        torch.manual_seed(0)
        with self.around(), recorder or nullcontext():
            output = F.scaled_dot_product_attention(*inputs, **self.settings)
        return [output, *torch.autograd.grad(output.float().square().sum(), inputs)]

    def largest(self) -> Tensor:
        """The largest logit of each head [heads], from the whole matrix in float64."""
        query, key, _ = (one.detach().to(self.rounds_to or one.dtype).double() for one in self.inputs())
        scale = self.settings.get("scale") or 1 / math.sqrt(DIMENSION)
        scores = query @ key.repeat_interleave(HEADS // self.key_heads, dim=1).mT * scale
        if self.settings.get("is_causal"):
            scores = scores.masked_fill(torch.ones(TOKENS, self.keys, dtype=torch.bool).triu(1), -math.inf)
        if (mask := self.settings.get("attn_mask")) is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.detach()
        return scores.amax((0, 2, 3))


BIAS = normal(BATCH, 1, TOKENS, TOKENS, seed=3)
GATED = {
    "all keys": Case(),
    "causal": Case({"is_causal": True}),
    "bfloat16": Case({"is_causal": True}, torch.bfloat16),
    "float16": Case({"is_causal": True}, torch.float16),
    "float64": Case({"is_causal": True}, torch.float64),
    "scaled": Case({"is_causal": True, "scale": 0.7}),
    "scaled by less than nothing": Case({"scale": -0.7}),
    "mask": Case({"attn_mask": seen(TOKENS, TOKENS)}),
    "mask of a sample": Case({"attn_mask": seen(BATCH, 1, TOKENS, TOKENS)}, torch.bfloat16),
    "mask of a head": Case({"attn_mask": seen(BATCH, HEADS, TOKENS, TOKENS)}),
    "padding": Case({"attn_mask": padded()}),
    "added": Case({"attn_mask": BIAS}),
    "added with nothing seen": Case({"attn_mask": BIAS.masked_fill(~padded(), -math.inf)}),
    "grouped": Case({"is_causal": True, "enable_gqa": True}, key_heads=2),
    "grouped in bfloat16": Case({"enable_gqa": True}, torch.bfloat16, key_heads=3),
    "more keys": Case(keys=TOKENS + 30),
    "fewer keys, causal": Case({"is_causal": True}, keys=TOKENS - 30),
    "more keys, causal": Case({"is_causal": True}, keys=TOKENS + 30),
    "strided": Case({"is_causal": True}, strided=True),
    "autocast": Case(
        {"is_causal": True}, around=lambda: torch.autocast("cpu", torch.bfloat16), rounds_to=torch.bfloat16
    ),
}
WHOLE = {
    "dropout": Case({"dropout_p": 0.5}),
    "mask with a gradient": Case({"attn_mask": normal(TOKENS, TOKENS, seed=4).requires_grad_()}),
    "wider values": Case({"is_causal": True}, value_dimension=2 * DIMENSION),
    "keys of all samples": Case(key_samples=1),
    "another kernel": Case({"is_causal": True}, around=lambda: sdpa_kernel(SDPBackend.MATH)),
}
CASES = [pytest.param(case, id=name) for name, case in (GATED | WHOLE).items()]


def measured(case: Case, threshold: float | None, *, exact: bool = False) -> tuple[Tensor, Tensor]:
    """Largest logits and which are exact, each [heads], of one call."""
    recorder = LogitRecorder(1, None if threshold is None else lambda: threshold)
    recorder.exact = exact
    case.attend(case.inputs(), recorder)
    taken = recorder.take()
    return taken.max_logit[0].double(), taken.exact[0]


def close(found: Tensor, expected: Tensor) -> bool:
    return bool(torch.isclose(found, expected, rtol=3e-6, atol=3e-5).all())


@pytest.mark.parametrize("case", CASES)
def test_neither_the_output_nor_a_gradient_changes_a_bit(case: Case) -> None:
    plain = case.attend(case.inputs())
    recorder = LogitRecorder(1, lambda: 3.0)
    for again in (plain, case.attend(case.inputs(), recorder)):
        for one, other in zip(plain, again, strict=True):
            assert one.dtype == other.dtype
            assert one.stride() == other.stride()
            assert torch.equal(one, other)


@pytest.mark.parametrize("case", CASES)
def test_every_head_is_exact_without_a_threshold(case: Case) -> None:
    found, exact = measured(case, None)
    assert exact.all()
    assert close(found, case.largest())


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in GATED.items()])
def test_heads_above_the_threshold_are_exact_and_the_others_bounded_and_called_bounds(case: Case) -> None:
    largest = case.largest()
    threshold = float(largest.sort().values[HEADS // 2 - 1 : HEADS // 2 + 1].mean())
    found, exact = measured(case, threshold)
    assert exact[largest > threshold].all()
    assert close(found[exact], largest[exact])
    assert ((found >= largest) & (found <= threshold))[~exact].all()
    closely, all_exact = measured(case, threshold, exact=True)
    assert all_exact.all()
    assert close(closely, largest)
    assert torch.equal(closely[exact], found[exact])
    bounds, none_exact = measured(case, float(largest.max()) + 10)
    assert not none_exact.any()
    assert (bounds >= largest).all()


@pytest.mark.parametrize(
    ("case", "products"), [(case, 0) for case in GATED.values()] + [(case, 1) for case in WHOLE.values()]
)
def test_the_whole_product_is_computed_only_where_the_kernel_says_nothing(
    case: Case, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def counting(of: Any, name: str) -> None:
        real = getattr(of, name)

        def counted(*arguments: Any, **settings: Any) -> Any:
            computed.append(name)
            return real(*arguments, **settings)

        monkeypatch.setattr(of, name, counted)

    counting(logit_recorder, "largest_logits")
    counting(Logits, "maxima_of_rows")
    found, exact = measured(case, 1e6)
    assert computed == ["largest_logits"] * products
    assert exact.tolist() == [products == 1] * HEADS
    assert (found >= case.largest() - 1e-4).all()


@pytest.mark.parametrize("case", [GATED["causal"], GATED["padding"], GATED["added"]])
def test_a_kernel_of_another_signature_is_not_believed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_calls, "_watched", dict)
    recorder = LogitRecorder(1, lambda: 1e6)
    for around in (torch.enable_grad(), torch.no_grad()):
        with around, recorder:
            F.scaled_dot_product_attention(*case.inputs(), **case.settings)
        taken = recorder.take()
        assert taken.exact.all()
        assert close(taken.max_logit[0].double(), case.largest())


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in GATED.items()])
def test_where_no_graph_may_be_read_the_kernel_itself_is_watched(case: Case, gradients: bool) -> None:
    unpacked: list[Tensor] = []

    def unpack(saved: Tensor) -> Tensor:
        unpacked.append(saved)
        return saved

    hooks = torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack)
    largest = case.largest()
    threshold = float(largest.sort().values[HEADS // 2 - 1 : HEADS // 2 + 1].mean())
    found, exact = measured(case, threshold)
    recorder, inputs = LogitRecorder(1, lambda: threshold), case.inputs()
    with case.around(), recorder, hooks if gradients else torch.no_grad():
        output = F.scaled_dot_product_attention(*inputs, **case.settings)
    # A hook of activation checkpointing would compute the forward pass again.
    assert not unpacked
    taken = recorder.take()
    assert torch.equal(taken.exact[0], exact)
    assert torch.equal(taken.max_logit[0].double(), found)
    assert torch.equal(output, case.attend(case.inputs())[0])


def test_a_row_with_one_key_whose_log_sum_exp_is_its_logit_opens_the_gate() -> None:
    query, key = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8)
    query[..., 0, :], key[..., 0, :] = normal(8) * 5, normal(8) * 5
    largest = float((query @ key.mT).max() / math.sqrt(8))
    recorder = LogitRecorder(1, lambda: largest * (1 - 1e-6))
    with recorder:
        F.scaled_dot_product_attention(query, key, key, is_causal=True)
    taken = recorder.take()
    assert taken.exact.tolist() == [[True]]
    assert taken.max_logit.item() == pytest.approx(largest, rel=1e-6)


def test_a_head_that_sees_nothing_is_not_broken_and_what_is_not_a_number_is() -> None:
    query = normal(1, 2, 5, 8)
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    for threshold in (None, lambda: 1.0):
        recorder = LogitRecorder(1, threshold)
        with recorder:
            F.scaled_dot_product_attention(query, query, query, attn_mask=hidden)
        assert recorder.max_logits().tolist() == [[LOWEST] * 2]
        bad = query.clone()
        bad[0, 1, 2, 3] = math.nan
        with recorder:
            F.scaled_dot_product_attention(bad, bad, bad)
        assert recorder.max_logits().isfinite().tolist() == [[True, False]]


def test_the_threshold_is_asked_for_at_every_entry() -> None:
    # Two updates with thresholds of 30 and 10.
    module = nn.MultiheadAttention(16, 2, bias=False, batch_first=True)
    settings = MuonClipConfig(
        qk_clip_threshold=10.0,
        qk_clip_schedule=(ThresholdPoint(update=1, factor=3.0), ThresholdPoint(update=2, factor=1.0)),
    )
    optimizer = MuonClip(module.named_parameters(), [multihead_attention("", module)], settings)
    recorder = LogitRecorder(1, lambda: optimizer.lowest_threshold)
    # Logits of 20 in both heads: all tokens are the same.
    tokens = torch.ones(1, 3, 16)
    with torch.no_grad():
        module.in_proj_weight[:32] = math.sqrt(20 * math.sqrt(8) / 8) / 16
    for opened in (False, True):
        with recorder:
            output, _ = module(tokens, tokens, tokens, need_weights=False)
        output.square().sum().backward()
        taken = recorder.take()
        assert taken.exact.tolist() == [[opened] * 2]
        with torch.no_grad():
            kept = module.in_proj_weight[:32].clone()
            gamma = optimizer.step(taken.max_logit).qk_clip_gamma
            module.in_proj_weight[:32] = kept
        assert (gamma < 1).tolist() == [[opened] * 2]


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("appended", [False, True])
def test_the_multi_head_module_goes_through_the_gate_unless_it_returns_weights(weights: bool, appended: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=appended, add_zero_attn=appended)
    with torch.no_grad():
        module.in_proj_weight[:8] *= 6
    tokens = normal(2, 9, 16)
    padding = torch.tensor([[False] * 9, [False] * 5 + [True] * 4])

    def attended(recorder: LogitRecorder | None) -> list[Tensor]:
        with recorder or nullcontext():
            output, _ = module(tokens, tokens, tokens, key_padding_mask=padding, need_weights=weights)
        return [output, *torch.autograd.grad(output.square().sum(), list(module.parameters()))]

    every = LogitRecorder(1)
    plain, seen_exactly = attended(None), attended(every)
    largest = every.max_logits()[0]
    threshold = float(largest.mean())
    gated = LogitRecorder(1, lambda: threshold)
    seen_through = attended(gated)
    for one, *others in zip(plain, seen_exactly, seen_through, strict=True):
        assert all(torch.equal(one, other) for other in others)
    taken = gated.take()
    hot = largest > threshold
    assert 0 < hot.sum() < 4
    assert taken.exact[0].all() if weights else not taken.exact[0].all()
    assert taken.exact[0][hot].all()
    assert torch.equal(taken.max_logit[0][hot], largest[hot])
    assert (taken.max_logit[0] >= largest).all()
    # By the definition, with the function's own maps.
    query, key = (one.detach().double() for one in module.in_proj_weight.chunk(3)[:2])
    biases = module.in_proj_bias.detach().double().chunk(3)
    queries, keys = tokens.double() @ query.T + biases[0], tokens.double() @ key.T + biases[1]
    if appended:
        more = torch.stack((module.bias_k.detach()[0, 0].double(), torch.zeros(16, dtype=torch.float64)))
        keys, padding = torch.cat((keys, more.expand(2, -1, -1)), 1), F.pad(padding, (0, 2))
    queries, keys = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in (queries, keys))
    scores = (queries @ keys.mT / 2).masked_fill(padding[:, None, None], -math.inf)
    assert close(largest.double(), scores.amax((0, 2, 3)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_in_the_backward_pass_is_not_looked_at(reentrant: bool) -> None:
    results: list[tuple[Tensor, list[Tensor]]] = []
    for again in (False, True):
        inputs, recorder = GATED["causal"].inputs(), LogitRecorder(2)

        # Entered inside of what is computed again, as a module does that has hooks around it.
        def layer(*given: Tensor, recorder: LogitRecorder = recorder) -> Tensor:
            with recorder:
                return F.scaled_dot_product_attention(*given, is_causal=True)

        def attend(*given: Tensor, again: bool = again, layer: Callable[..., Tensor] = layer) -> Tensor:
            return checkpoint(layer, *given, use_reentrant=reentrant) if again else layer(*given)

        output = attend(3 * attend(*inputs), *inputs[1:])
        output.square().sum().backward()
        results.append((recorder.max_logits(), [one.grad for one in inputs]))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_of_several_micro_batches_the_largest_counts_and_a_bound_stays_a_bound() -> None:
    tokens = [normal(1, 2, 5, 8, seed=seed) for seed in range(3)]
    thresholds = iter((1e6, -1e6, -1e6))
    recorder = LogitRecorder(1, lambda: next(thresholds))
    # In the first batch one head has far larger logits than later, in the third the other one.
    tokens[0][:, 0] *= 5
    tokens[2][:, 1] *= 5
    for one in tokens:
        with recorder:
            F.scaled_dot_product_attention(one, one, one)
    taken = recorder.take()
    truth = torch.stack([(one.double() @ one.double().mT / math.sqrt(8)).amax((0, 2, 3)) for one in tokens]).amax(0)
    assert taken.exact.tolist() == [[False, True]]
    assert taken.max_logit[0, 0] > truth[0]
    assert taken.max_logit[0, 1].item() == pytest.approx(truth[1].item(), rel=1e-6)
    assert taken.record_name == "qk_max_logit_bound"


def test_one_recorder_within_another_hides_nothing_from_it() -> None:
    case = GATED["causal"]
    outer, inner = LogitRecorder(1), LogitRecorder(1, lambda: 1e6)
    with outer:
        case.attend(case.inputs(), inner)
    assert close(outer.max_logits()[0].double(), case.largest())
    assert not inner.take().exact.any()


def test_compiled_attention_is_measured_from_the_whole_product() -> None:
    case = GATED["causal"]
    compiled = torch.compile(F.scaled_dot_product_attention, backend="eager", fullgraph=True)
    recorder = LogitRecorder(1, lambda: 1e6)
    with recorder:
        compiled(*case.inputs(), is_causal=True)
    taken = recorder.take()
    assert taken.exact.all()
    assert close(taken.max_logit[0].double(), case.largest())


def test_a_recorder_is_not_entered_twice() -> None:
    recorder = LogitRecorder(1)
    with recorder, pytest.raises(RuntimeError, match="is entered already"), recorder:
        pass
    GATED["causal"].attend(GATED["causal"].inputs(), recorder)
    assert recorder.max_logits().isfinite().all()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_attention_over_nothing_leaves_the_lowest_finite_number(shape: tuple[int, int, int], dropout: float) -> None:
    samples, queries, keys = shape
    query, key = torch.ones(samples, HEADS, queries, 4), torch.ones(samples, HEADS, keys, 4)
    recorder = LogitRecorder(1, lambda: 1.0)
    with recorder:
        F.scaled_dot_product_attention(query, key, key, dropout_p=dropout)
    assert recorder.max_logits().tolist() == [[LOWEST] * HEADS]


def test_the_whole_product_is_of_queries_and_keys_as_autocast_rounds_them() -> None:
    query, key, _ = Case().inputs()
    recorder = LogitRecorder(1)
    with torch.autocast("cpu", torch.bfloat16), recorder:
        F.scaled_dot_product_attention(query, key, key, dropout_p=0.1)
    rounded = (query.bfloat16().double() @ key.bfloat16().double().mT / math.sqrt(DIMENSION)).amax((0, 2, 3))
    torch.testing.assert_close(recorder.max_logits()[0].double(), rounded, rtol=1e-6, atol=0)


def test_one_head_of_queries_may_meet_several_of_keys() -> None:
    query, key = normal(BATCH, 1, 5, 4), normal(BATCH, 3, 5, 4, seed=1)
    recorder = LogitRecorder(1)
    with recorder:
        F.scaled_dot_product_attention(query, key, key)
    expected = (query.double() @ key.double().mT / 2).amax((0, 2, 3))
    torch.testing.assert_close(recorder.max_logits()[0].double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_key_that_the_module_appends_is_measured_under_autocast(zeros: bool, dropout: float) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(
        16, 4, dropout=dropout, add_bias_kv=True, add_zero_attn=zeros, batch_first=True
    ).train()
    inputs, recorder = normal(2, 5, 16), LogitRecorder(1)
    with torch.autocast("cpu", torch.bfloat16), recorder:
        module(inputs, inputs, inputs, need_weights=True)
    assert recorder.max_logits().isfinite().all()
