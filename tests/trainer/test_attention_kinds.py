"""Grouped-query and latent attention, windows, documents, sinks, norms: what each promises, on the whole model."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.head_parameters import LogitPart
from trimtab_trainer.max_logits import gate
from trimtab_trainer.model import AttentionConfig, Transformer, TransformerConfig
from trimtab_trainer.model.self_attention import LatentAttention
from trimtab_trainer.optim.muonclip_reference import largest_logits

PLAIN = TransformerConfig(width=32, layers=2, heads=4, sequence=24, vocab_size=32)
GROUPED = replace(PLAIN, attention=AttentionConfig(kind="groupedQuery", key_value_heads=2))
LATENT = replace(
    PLAIN,
    attention=AttentionConfig(
        kind="latent", query_rank=12, key_value_rank=10, content_dimension=6, rotary_dimension=4, value_dimension=5
    ),
)
KINDS = {"multiHead": PLAIN, "groupedQuery": GROUPED, "latent": LATENT}


def tokens(length: int = 24, batch: int = 3) -> Tensor:
    return torch.randint(0, 32, (batch, length), generator=torch.Generator().manual_seed(1))


def changed(config: TransformerConfig, **settings: Any) -> TransformerConfig:
    return replace(config, attention=replace(config.attention, **settings))


def built(config: TransformerConfig) -> Transformer:
    """A model in float64 whose logits are large enough to tell heads apart."""
    model = Transformer(config, seed=3).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(3.0)
            if name.endswith(("bias", "sink")):
                parameter.copy_(torch.linspace(-1.0, 1.0, parameter.numel()))
    return model


def logits(model: Transformer, **settings: Any) -> Tensor:
    return model(tokens(), **settings).logits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_gets_a_gradient_and_no_future_is_seen(kind: str, bias: bool) -> None:
    config = changed(KINDS[kind], bias=bias, sinks=True, window=9)
    model = built(config)
    windows = tokens()
    model(windows[:, :-1], windows[:, 1:]).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # A constant added to all keys of a query changes no softmax, but for the sink beside them.
        assert parameter.grad.abs().max() > 0, name
    other = windows.clone()
    other[:, 13] += 1
    before, after = model(windows % 32).logits, model(other % 32).logits
    assert torch.equal(before[:, :13], after[:, :13])
    assert (before[:, 13:14] != after[:, 13:14]).any()


def test_without_settings_the_model_is_the_one_it_was() -> None:
    names = [name for name, _ in Transformer(replace(PLAIN, layers=1)).blocks[0].attention.named_parameters()]
    assert names == ["query.weight", "key.weight", "value.weight", "out.weight"]


def test_grouped_query_attention_is_multi_head_attention_with_repeated_keys_and_values() -> None:
    grouped, plain = built(GROUPED), built(PLAIN)
    weights = grouped.state_dict()
    for name, weight in weights.items():
        if name.endswith(("attention.key.weight", "attention.value.weight")):
            weights[name] = weight.view(2, 8, 32).repeat_interleave(2, 0).reshape(32, 32)
    plain.load_state_dict(weights)
    torch.testing.assert_close(logits(grouped), logits(plain), rtol=1e-12, atol=1e-13)


def latent_projections(attention: LatentAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 1 to 19 of DeepSeek-V2 (arXiv 2405.04434), one head and one position after the other."""
    assert attention.query_compression is not None
    assert attention.query_norm is not None
    positions = x.shape[1]
    source = attention.query_norm(attention.query_compression(x))
    latent = attention.key_value_norm(attention.key_value_compression(x))

    def turned(part: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(positions).double(), 10_000.0 ** -(torch.arange(2).double() / 2))
        first, second = part[..., :2], part[..., 2:]
        return torch.cat(
            (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1
        )

    shared = turned(attention.key_rotary(x))
    query, key, value = [], [], []
    for head in range(4):
        content = slice(6 * head, 6 * head + 6)
        rotary = turned(attention.query_rotary(source)[..., 4 * head : 4 * head + 4])
        query.append(torch.cat((attention.query_content(source)[..., content], rotary), -1))
        key.append(torch.cat((attention.key_content(latent)[..., content], shared), -1))
        value.append(attention.value(latent)[..., 5 * head : 5 * head + 5])
    return torch.stack(query, 1), torch.stack(key, 1), torch.stack(value, 1)


def test_latent_attention_follows_its_paper() -> None:
    model = built(replace(LATENT, layers=1))
    attention = model.blocks[0].attention
    assert isinstance(attention, LatentAttention)
    x = model.blocks[0].attention_norm(model.embedding(tokens()))
    query, key, value = latent_projections(attention, x)
    scores = query @ key.mT / math.sqrt(10)
    future = torch.ones(24, 24, dtype=torch.bool).triu(1)
    heads = scores.masked_fill(future, -math.inf).softmax(-1) @ value
    expected = attention.out(heads.transpose(1, 2).flatten(2))
    seen: list[Tensor] = []
    handle = attention.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs[0]))
    output = model(tokens(), exact=True)
    handle.remove()
    # The rotary tables are float32.
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(output.attention.max_logit[0], largest_logits(query, key), rtol=1e-5, atol=1e-7)


def share(part: LogitPart, factor: float, *, shared: bool) -> float:
    """What a factor on a head's logits means for one of its parts."""
    if part in {LogitPart.CONTENT_QUERY, LogitPart.CONTENT_KEY} or (part is LogitPart.KEY):
        return math.sqrt(factor)
    if part is LogitPart.QUERY:
        return factor if shared else math.sqrt(factor)
    return factor if part is LogitPart.ROTARY_QUERY else 1.0


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_named_rows_scale_the_logits_of_their_head_and_of_no_other(kind: str, bias: bool) -> None:
    model = built(changed(replace(KINDS[kind], layers=1), bias=bias))
    before = model(tokens(), exact=True).attention.max_logit[0]
    heads = model.attention_heads()[0]
    names = dict(model.named_parameters())
    shared = bool(heads.of(LogitPart.SHARED_KEY))
    assert (heads.kind, heads.heads) == (kind, 4)
    assert len(heads.parameters) == (2 if kind != "latent" else 4) * (1 + bias)
    for entry in heads.parameters:
        assert names[entry.name] is entry.parameter
        rows = len(entry.parameter) // entry.heads
        if entry.part is not LogitPart.SHARED_KEY:
            entry.parameter.data[2 * rows : 3 * rows] *= share(entry.part, 0.25, shared=shared)
    after = model(tokens(), exact=True).attention.max_logit[0]
    torch.testing.assert_close(after[2], before[2] * 0.25, rtol=1e-12, atol=0)
    kept = [0, 1, 3]
    assert torch.equal(after[kept], before[kept])


def test_a_window_is_seen_and_no_more() -> None:
    model, windows = built(changed(replace(PLAIN, layers=1), window=5)), tokens()
    other = windows.clone()
    other[:, 10] = (other[:, 10] + 1) % 32
    differs = (model(windows).logits != model(other).logits).any(-1).any(0)
    assert differs.nonzero().flatten().tolist() == [10, 11, 12, 13, 14]


def test_a_document_is_computed_as_if_it_were_alone() -> None:
    model, windows = built(LATENT), tokens()
    documents = (torch.arange(24) >= 9).long().expand(3, -1)
    together = model(windows, documents=documents, exact=True)
    torch.testing.assert_close(together.logits[:, :9], model(windows[:, :9]).logits, rtol=1e-9, atol=1e-12)
    # Rotary positions count from the window's start, and only distances matter.
    torch.testing.assert_close(together.logits[:, 9:], model(windows[:, 9:]).logits, rtol=1e-5, atol=1e-6)
    alone = [model(part, exact=True).attention.max_logit for part in (windows[:, :9], windows[:, 9:])]
    torch.testing.assert_close(together.attention.max_logit, torch.maximum(*alone), rtol=1e-5, atol=1e-6)


def test_padding_changes_nothing_and_is_not_counted() -> None:
    model, windows = built(GROUPED), tokens()
    present = (torch.arange(24) < 15).expand(3, -1)
    padded, alone = model(windows, present=present, exact=True), model(windows[:, :15], exact=True)
    torch.testing.assert_close(padded.logits[:, :15], alone.logits, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(padded.attention.max_logit, alone.attention.max_logit, rtol=1e-9, atol=1e-12)


def test_a_normalised_query_forgets_how_large_its_weights_were() -> None:
    model = built(changed(PLAIN, qk_norm=True))
    before = model(tokens(), exact=True)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.query.weight *= 7.0
    after = model(tokens(), exact=True)
    torch.testing.assert_close(after.logits, before.logits, rtol=1e-3, atol=1e-4)
    # With gains of one, both have the root of the dimension for a norm: 8 / sqrt(8).
    assert (after.attention.max_logit <= 9 * math.sqrt(8)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointed_activations_change_no_bit_and_repeat_no_measurement(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = tokens()
    results: list[tuple[Tensor, Tensor, list[Tensor]]] = []
    measured: list[str] = []
    for checkpointing in (False, True):
        config = replace(changed(KINDS[kind], window=7, sinks=True), activation_checkpointing=checkpointing)
        model = built(config)
        monkeypatch.setattr(gate, "measured_max_logits", counting(measured, str(checkpointing)))
        output = model(windows[:, :-1], windows[:, 1:], exact=True)
        output.loss.backward()
        monkeypatch.undo()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results.append((output.loss.detach(), output.attention.max_logit, gradients))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert measured.count("True") == measured.count("False") > 0


def counting(seen: list[str], name: str) -> Any:
    """The real measurement, which notes that it was made."""
    real = gate.measured_max_logits

    def measure(*arguments: Any, **settings: Any) -> list[tuple[Tensor, Tensor]]:
        seen.append(name)
        return real(*arguments, **settings)

    return measure


WRONG = """
steps: 100
globalBatch: 4
data: {path: x}
optimizer: {qkClipThreshold: 50}
model:
  width: 30
  heads: 4
  attention: %s
"""


@pytest.mark.parametrize(
    ("attention", "fields"),
    [
        ("{kind: groupedQuery}", ["attention.keyValueHeads", "width"]),
        ("{kind: groupedQuery, keyValueHeads: 0, window: 0}", ["attention.keyValueHeads", "attention.window", "width"]),
        ("{kind: groupedQuery, keyValueHeads: 3}", ["width", "attention.keyValueHeads"]),
        ("{keyValueHeads: 2, rotaryDimension: 3, queryRank: 4}", [
            "attention.keyValueHeads", "attention.rotaryDimension", "attention.queryRank",
            "attention.rotaryDimension", "width",
        ]),
        ("{kind: latent, rotaryDimension: 5, contentDimension: 0, qkNorm: true}", [
            "attention.keyValueRank", "attention.contentDimension", "attention.valueDimension",
            "attention.rotaryDimension", "attention.qkNorm", "width",
        ]),
        ("{kind: sparse}", ["attention.kind", "width"]),
    ],
)  # fmt: skip
def test_every_wrong_field_of_attention_is_named_at_once(attention: str, fields: list[str]) -> None:
    with pytest.raises(InvalidFields) as caught:
        read_config(WRONG % attention)
    assert [problem.split(":")[0].removeprefix("model.") for problem in caught.value.problems] == fields


def test_latent_attention_needs_no_divisible_width() -> None:
    config = read_config(
        WRONG
        % "{kind: latent, keyValueRank: 8, contentDimension: 6, rotaryDimension: 4, valueDimension: 6, queryRank: 8}"
    )
    assert config.model.rotary_dimension == 4


def test_qk_clip_is_refused_where_norms_would_undo_it() -> None:
    text = WRONG.replace("30", "32") % "{qkNorm: true}"
    with pytest.raises(InvalidFields, match=r"optimizer\.qkClipThreshold: 50\.0 must be null"):
        read_config(text)
    assert read_config(text.replace("50", "null")).model.attention.qk_norm
