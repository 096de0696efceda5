"""Largest logits under the masks of `scaled_dot_product_attention`, on cases drawn at random, against float64."""

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from trimtab_trainer.max_logits import Logits, gate, logits, measured_max_logit
from trimtab_trainer.optim.attention_logits import attention_logits, largest_logits

CASES = 300
LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Call:
    """Query and key [batch, heads, tokens, dimension] and what else a call of attention says of its logits."""

    query: Tensor
    key: Tensor
    settings: dict[str, Any]

    @classmethod
    def drawn(cls, number: int) -> "Call":
        """Masks of every shape that can be broadcast, some that hide all keys from some queries or heads."""
        draw, generator = random.Random(number), torch.Generator().manual_seed(number)
        batch, key_heads, groups = draw.randint(1, 3), draw.randint(1, 3), draw.choice((1, 1, 2, 3))
        queries, keys, heads = draw.randint(1, 40), draw.randint(1, 40), key_heads * groups
        dtype = draw.choice((torch.float32, torch.bfloat16))

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        settings: dict[str, Any] = {"scale": draw.choice((None, None, 0.3, -0.5))}
        kind = draw.choice(("none", "causal", "seen", "added"))
        if kind == "causal":
            settings["is_causal"] = True
        elif kind != "none":
            shape = [draw.choice((1, full)) for full in (batch, heads, queries)] + [keys]
            given = normal(*shape[draw.choice((0, 0, 1, 2)) :])
            hidden = given > draw.choice((-0.5, 0.5, 2.0))
            settings["attn_mask"] = ~hidden if kind == "seen" else (3 * given).masked_fill(hidden, -math.inf).to(dtype)
        lengths = normal(batch, key_heads, keys, 1).exp()
        return cls(
            query=(normal(batch, heads, queries, 8) * draw.choice((0.1, 1.0, 5.0))).to(dtype),
            key=(normal(batch, key_heads, keys, 8) * lengths).to(dtype),
            settings=settings,
        )

    def scores(self) -> Tensor:
        """The whole matrix of logits in float64, minus infinity where a key is hidden."""
        key = self.key.double().repeat_interleave(self.query.shape[1] // self.key.shape[1], dim=1)
        scale = self.settings["scale"] or 1 / math.sqrt(8)
        found = self.query.double() @ key.mT * scale
        if self.settings.get("is_causal"):
            found = found.masked_fill(torch.ones(found.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        if (mask := self.settings.get("attn_mask")) is not None:
            found = found.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else found + mask.double()
        return found


@pytest.mark.parametrize("number", range(CASES))
def test_the_largest_logits_are_those_of_the_whole_matrix(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, call = random.Random(CASES + number), Call.drawn(number)
    monkeypatch.setattr(gate, "FIRST_ROWS", draw.choice((1, 3, 8)))
    monkeypatch.setattr(gate, "FULL_PRODUCT_FRACTION", draw.choice((0.0, 0.1, 1.0)))
    monkeypatch.setattr(logits, "ROWS_TOGETHER", draw.choice((0, 32)))
    monkeypatch.setattr(logits, "CHUNK_ROWS", draw.choice((1, 7, 256)))
    scores = call.scores()
    largest = scores.amax((0, 2, 3)).clamp(min=LOWEST)
    close = {"rtol": 2e-6, "atol": 2e-5}
    torch.testing.assert_close(largest_logits(call.query, call.key, **call.settings).double(), largest, **close)

    of_call = attention_logits(call.query, call.key, **call.settings)
    # What kernels return: 0 for a row that sees nothing.
    rows = scores.logsumexp(-1)
    rows = rows.masked_fill(rows == -math.inf, 0.0).float()
    for threshold in (-1e6, float(largest.median()), float(largest.max())):
        found, exact = measured_max_logit(of_call, rows, threshold, exact=False)
        assert exact[largest > threshold].all()
        torch.testing.assert_close(found[exact].double(), largest[exact], **close)
        assert ((found.clamp(min=LOWEST) >= largest) & (found <= threshold))[~exact].all()
        every, all_exact = measured_max_logit(of_call, rows, threshold, exact=True)
        assert all_exact.all()
        assert torch.equal(every[exact], found[exact])
        torch.testing.assert_close(every.double().clamp(min=LOWEST), largest, **close)


def test_some_heads_of_a_mask_for_each_head_are_looked_at_under_their_own() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 11, 8)
    mask = torch.zeros(2, 4, 9, 11).masked_fill(torch.rand(2, 4, 9, 11) < 0.5, -math.inf)
    call = Call(query, key, {"scale": None, "attn_mask": mask})
    expected = call.scores().amax((0, 2, 3)).float()
    for given in (mask, mask == 0):
        of_call: Logits = attention_logits(query, key, attn_mask=given)
        found = of_call.maxima(torch.tensor([3, 1]))
        torch.testing.assert_close(found, expected[[3, 1]], rtol=1e-5, atol=1e-5)
