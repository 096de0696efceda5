"""Which types CUDA's autocast gives attention, on tensors that only have a shape: it casts otherwise than the CPU's."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from trimtab_trainer.model import AttentionConfig, ExpertsConfig, Transformer, TransformerConfig, self_attention

SHAPE = TransformerConfig(width=64, layers=1, heads=2, sequence=16, vocab_size=64, activation_checkpointing=True)
KINDS = {
    "multi-head": SHAPE,
    "normalised": replace(SHAPE, attention=AttentionConfig(qk_norm=True)),
    "grouped-query": replace(SHAPE, attention=AttentionConfig(kind="groupedQuery", key_value_heads=1, bias=True)),
    "sinks": replace(SHAPE, attention=AttentionConfig(sinks=True)),
    "latent": replace(
        SHAPE,
        attention=AttentionConfig(
            kind="latent",
            query_rank=16,
            key_value_rank=8,
            content_dimension=8,
            rotary_dimension=4,
            value_dimension=16,
        ),
    ),
    "experts": replace(SHAPE, experts=ExpertsConfig(count=2)),
}


class Attended(Exception):
    """What comes behind attention is of no interest."""


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def autocast(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """As `torch.autocast` does it, which refuses to where no CUDA is."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", request.param)
    torch.set_autocast_enabled("cuda", True)
    yield request.param
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", before)


@pytest.mark.parametrize("kind", KINDS)
def test_queries_keys_and_values_have_the_type_of_the_products(
    kind: str, autocast: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.dtype, ...]] = []

    def attend(*inputs: torch.Tensor, **_: Any) -> None:
        seen.append(tuple(one.dtype for one in inputs))
        raise Attended

    monkeypatch.setattr(self_attention, "causal_attention", attend)
    monkeypatch.setattr(Transformer, "_initialise", lambda *_: None)
    with FakeTensorMode(), torch.device("cuda"), pytest.raises(Attended):
        Transformer(KINDS[kind])(torch.zeros(2, 16, dtype=torch.int64))
    assert seen == [(autocast,) * 3]
