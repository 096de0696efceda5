"""Attention by its definition, with the whole matrix of logits in float64, under every mask."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from trimtab_trainer.model.attention import AttentionResult
from trimtab_trainer.model.visibility import CAUSAL, Visibility

BATCH, HEADS, TOKENS, DIMENSION = 2, 4, 68, 8
WINDOW, PADDING = 9, 13

Attend = Callable[..., AttentionResult]


def document_numbers() -> Tensor:
    """Two samples of documents of different lengths."""
    starts = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    starts[0, [11, 12, 50]] = 1
    starts[1, [40]] = 1
    return starts.cumsum(-1)


def presence() -> Tensor:
    """The second sample begins with padding, the first ends with it."""
    present = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    present[1, :PADDING] = False
    present[0, -5:] = False
    return present


MASKS = {
    "causal": lambda: CAUSAL,
    "window": lambda: Visibility(window=WINDOW),
    "documents": lambda: Visibility(documents=document_numbers()),
    "padding": lambda: Visibility(present=presence()),
    "all": lambda: Visibility(window=WINDOW, documents=document_numbers(), present=presence()),
}


@dataclass
class Inputs:
    """Query, key, value, and sinks that may be absent."""

    query: Tensor
    key: Tensor
    value: Tensor
    sink: Tensor | None

    @classmethod
    def drawn(
        cls,
        *,
        key_heads: int = HEADS,
        dimension: int = DIMENSION,
        value_dimension: int | None = None,
        sink: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> "Inputs":
        generator = torch.Generator().manual_seed(5)

        def normal(heads: int, dimension: int) -> Tensor:
            return torch.randn(BATCH, heads, TOKENS, dimension, generator=generator, dtype=torch.float64)

        gains = torch.tensor([0.1, 1.0, 4.0, 15.0], dtype=torch.float64)[:, None, None]
        query = normal(HEADS, dimension) * gains
        # What padding, the future and other documents hold is larger than all that may be seen.
        key = normal(key_heads, dimension)
        key[1, :, 2] *= 50
        key[:, :, -1] *= 50
        logits = torch.tensor([40.0, -3.0, 6.0, 0.5], dtype=torch.float64) if sink else None
        return cls(
            query.to(dtype),
            key.to(dtype),
            normal(key_heads, value_dimension or dimension).to(dtype),
            None if logits is None else logits.to(dtype),
        )

    def tensors(self) -> list[Tensor]:
        """All inputs that are there."""
        return [tensor for tensor in (self.query, self.key, self.value, self.sink) if tensor is not None]


def full_matrix(inputs: Inputs, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Output and largest logit of each head, by the definition, in float64."""
    groups = HEADS // inputs.key.shape[1]
    query = inputs.query.double()
    key, value = (tensor.double().repeat_interleave(groups, 1) for tensor in (inputs.key, inputs.value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~seen(visibility), -math.inf)
    largest = scores.detach().amax((0, 2, 3))
    if inputs.sink is not None:
        scores = torch.cat((scores, inputs.sink.double()[:, None, None].expand(BATCH, -1, TOKENS, 1)), -1)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights[..., :TOKENS] @ value, largest


def seen(visibility: Visibility) -> Tensor:
    """Which query sees which key, one pair after the other: [batch, 1, tokens, tokens]."""
    window = visibility.window or TOKENS
    documents = [[0] * TOKENS] * BATCH if visibility.documents is None else visibility.documents.tolist()
    present = [[True] * TOKENS] * BATCH if visibility.present is None else visibility.present.tolist()

    def sees(batch: int, row: int, column: int) -> bool:
        near = 0 <= row - column < window
        there = present[batch][row] and present[batch][column]
        return near and there and documents[batch][row] == documents[batch][column]

    span = range(TOKENS)
    return torch.tensor([[[[sees(b, row, column) for column in span] for row in span]] for b in range(BATCH)])


def check_maxima(
    attend: Attend, inputs: Inputs, visibility: Visibility, expected: tuple[Tensor, Tensor] | None = None
) -> None:
    """At any threshold: exact above it, an upper bound that does not exceed it below, and the right output."""
    output, truth = full_matrix(inputs, visibility) if expected is None else expected
    for threshold in (-1e6, 0.3 * float(truth.max()), float(truth.median()), float(truth.max()), 1e6):
        result = attend(
            inputs.query, inputs.key, inputs.value, threshold=threshold, exact=False, visibility=visibility,
            sink=inputs.sink,
        )  # fmt: skip
        torch.testing.assert_close(result.output.double(), output, rtol=1e-4, atol=2e-5)
        assert result.exact[truth > threshold].all()
        assert (result.exact | (result.max_logit <= threshold)).all()
        close = {"rtol": 2e-6, "atol": 2e-5}
        torch.testing.assert_close(result.max_logit[result.exact].double(), truth[result.exact], **close)
        assert (result.max_logit.double() >= truth - 2e-5 * truth.abs() - 2e-5).all()
