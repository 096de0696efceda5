"""Largest logits through the gate, on cases drawn at random: every mask, shared keys, sinks, against float64."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from trimtab_trainer.max_logits import gate, logits
from trimtab_trainer.model import attention
from trimtab_trainer.model.attention import causal_attention
from trimtab_trainer.model.kernels import Kernel
from trimtab_trainer.model.visibility import Visibility

CASES = 200


@dataclass(frozen=True)
class Case:
    """One attention layer: query, key and value [batch, heads, tokens, dimension], masks, and sinks if any."""

    query: Tensor
    key: Tensor
    value: Tensor
    sink: Tensor | None
    visibility: Visibility
    first_rows: int
    """With the two below, what decides which way the rows are computed again; see `attention` and `max_logits`."""

    fraction: float
    together: int

    @classmethod
    def drawn(cls, number: int) -> "Case":
        """Windows of a few tokens, documents of a few more, so that many maxima lie at an edge of what is seen."""
        draw, generator = random.Random(number), torch.Generator().manual_seed(number)
        batch, key_heads, groups = draw.randint(1, 3), draw.randint(1, 3), draw.choice((1, 1, 2, 3))
        tokens, dimension = draw.randint(1, 40), draw.choice((1, 4, 8))

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        # Keys of very different lengths: what one key more or less would bring is seen in many rows.
        lengths = normal(batch, key_heads, tokens, 1).exp()
        return cls(
            query=normal(batch, key_heads * groups, tokens, dimension) * draw.choice((0.1, 1.0, 10.0)),
            key=normal(batch, key_heads, tokens, dimension) * lengths,
            value=normal(batch, key_heads, tokens, dimension),
            sink=normal(key_heads * groups) * draw.choice((1, 20)) if draw.random() < 0.3 else None,
            visibility=drawn_visibility(draw, batch, tokens),
            first_rows=draw.choice((1, 3, 8)),
            fraction=draw.choice((0.0, 0.1, 1.0)),
            together=draw.choice((0, 32)),
        )

    def largest(self) -> Tensor:
        """The largest logit of each head [heads], from the whole matrix in float64."""
        key = self.key.double().repeat_interleave(self.query.shape[1] // self.key.shape[1], dim=1)
        logits = self.query.double() @ key.mT / math.sqrt(self.query.shape[-1])
        return logits.masked_fill(~self.seen()[:, None], -math.inf).amax((0, 2, 3))

    def seen(self) -> Tensor:
        """Which query sees which key, one pair after the other: [batch, tokens, tokens]."""
        tokens = self.query.shape[2]
        window = self.visibility.window or tokens
        documents, present = self.visibility.documents, self.visibility.present

        def sees(sample: int, row: int, column: int) -> bool:
            one = documents is None or bool(documents[sample, row] == documents[sample, column])
            there = present is None or bool(present[sample, row] & present[sample, column])
            return 0 <= row - column < window and one and there

        span = range(tokens)
        samples = range(len(self.query))
        return torch.tensor([[[sees(sample, row, column) for column in span] for row in span] for sample in samples])


def drawn_visibility(draw: random.Random, batch: int, tokens: int) -> Visibility:
    """Any of a window, documents packed in one sample, and padding before or behind them."""

    def drawn(make: Callable[[], list[int]]) -> Tensor:
        return torch.tensor([make() for _ in range(batch)])

    def starts() -> list[int]:
        return [int(draw.random() < 0.15) for _ in range(tokens)]

    def padded() -> list[int]:
        first, behind = draw.choice((0, tokens // 4)), draw.choice((0, tokens // 5))
        return [int(first <= token < tokens - behind) for token in range(tokens)]

    return Visibility(
        window=draw.randint(1, 7) if draw.random() < 0.7 else None,
        documents=drawn(starts).cumsum(-1) if draw.random() < 0.5 else None,
        present=drawn(padded).bool() if draw.random() < 0.5 else None,
    )


@pytest.mark.parametrize("kernel", [Kernel.CPU_FLASH, Kernel.PLAIN])
def test_the_largest_logits_are_those_of_the_whole_matrix(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "available_kernels", lambda: frozenset({kernel, Kernel.PLAIN}))
    for number in range(CASES):
        case = Case.drawn(number)
        monkeypatch.setattr(gate, "FIRST_ROWS", case.first_rows)
        monkeypatch.setattr(gate, "FULL_PRODUCT_FRACTION", case.fraction)
        monkeypatch.setattr(logits, "ROWS_TOGETHER", case.together)
        largest = case.largest()
        for threshold in (-1e6, float(largest.median()), float(largest.max())):
            result = causal_attention(
                case.query, case.key, case.value, threshold=threshold, exact=False, visibility=case.visibility,
                sink=case.sink,
            )  # fmt: skip
            found = result.max_logit.double()
            bound = ~result.exact & (found > largest) & (found <= threshold)
            assert (torch.isclose(found, largest, rtol=2e-6, atol=2e-5) | bound).all(), number
            assert result.exact[largest > threshold].all(), number


def test_what_is_hidden_from_some_rows_is_what_the_definition_hides_from_them() -> None:
    for number in range(CASES):
        case = Case.drawn(number)
        batch, heads, tokens, _ = case.query.shape
        rows = torch.randint(0, tokens, (batch, heads, 5), generator=torch.Generator().manual_seed(number))
        seen = case.seen()
        expected = torch.stack([~seen[sample][rows[sample]] for sample in range(batch)])
        assert torch.equal(case.visibility.hidden_from(rows, tokens), expected), number
