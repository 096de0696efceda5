"""The kinds of causal self-attention: one key head for each query head, for a group of them, or from a latent vector.

Each projection has a matrix of its own: an orthogonalised update of a fused matrix would mix them, and QK-Clip scales
the rows of single heads.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab_trainer.head_parameters import AttentionHeads, AttentionKind, HeadParameter, LogitPart
from trimtab_trainer.model.attention import AttentionResult, causal_attention
from trimtab_trainer.model.config import TransformerConfig
from trimtab_trainer.model.layers import Linear, RMSNorm, rotate
from trimtab_trainer.model.visibility import Visibility


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What every block needs to know about the current forward pass."""

    cosine: Tensor
    sine: Tensor
    threshold: float
    exact: bool
    visibility: Visibility
    sample_ids: Tensor | None
    dropout: float
    """Probability that an element of a residual branch is dropped in training mode."""

    postponed: bool
    """Whether the largest logits are measured when all layers have attended."""


class SelfAttention(nn.Module, ABC):
    """What all kinds share: the heads, the output projection, sinks, and the attention itself."""

    out: Linear
    sink: nn.Parameter | None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads

    def forward(self, x: Tensor, current: ForwardPass) -> tuple[Tensor, AttentionResult]:
        """Attend over `x` [batch, tokens, width]."""
        query, key, value = self.projections(x, current)
        # The types are chosen: the kernel takes them as they are, and largest logits are computed in float32.
        with torch.autocast(x.device.type, enabled=False):
            result = causal_attention(
                query,
                key,
                value,
                threshold=current.threshold,
                exact=current.exact,
                visibility=current.visibility,
                sink=self.sink,
                postponed=current.postponed,
            )
        return self.out(result.output.permute(0, 2, 1, 3).flatten(2)), result

    @abstractmethod
    def projections(self, x: Tensor, current: ForwardPass) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value [batch, heads, tokens, dimension] of `x` [batch, tokens, width]."""

    @abstractmethod
    def logit_parameters(self, prefix: str) -> AttentionHeads:
        """The parameters that make the logits of each head; their names begin with `prefix`."""

    def _add_output(self, config: TransformerConfig, inputs: int) -> None:
        """Last, as the order of parameters is part of what a seed means."""
        self.out = Linear(inputs, config.width, bias=config.bias)
        self.sink = nn.Parameter(torch.zeros(self.heads)) if config.attention.sinks else None


class MultiHeadAttention(SelfAttention):
    """Attention with rotary positions; key and value heads may be shared by groups of query heads (GQA)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.kind: AttentionKind = config.attention.kind
        self.key_heads = config.attention.key_value_heads or config.heads
        dimension, bias = config.head_dimension, config.bias or config.attention.bias
        self.query = Linear(config.width, config.width, bias=bias)
        self.key = Linear(config.width, self.key_heads * dimension, bias=bias)
        self.value = Linear(config.width, self.key_heads * dimension, bias=bias)
        self._add_output(config, config.width)
        normalised = config.attention.qk_norm
        self.query_norm = RMSNorm(dimension, config.norm_epsilon) if normalised else None
        self.key_norm = RMSNorm(dimension, config.norm_epsilon) if normalised else None

    def projections(self, x: Tensor, current: ForwardPass) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of `x`."""
        query = split_heads(self.query(x), self.heads)
        key = split_heads(self.key(x), self.key_heads)
        if self.query_norm is not None and self.key_norm is not None:
            # An autocast on CUDA normalises in float32, and a kernel takes values of the same type only.
            query, key = self.query_norm(query).to(query.dtype), self.key_norm(key).to(key.dtype)
        return (
            rotate(query, current.cosine, current.sine),
            rotate(key, current.cosine, current.sine),
            split_heads(self.value(x), self.key_heads),
        )

    def logit_parameters(self, prefix: str) -> AttentionHeads:
        """Query and key."""
        part = LogitPart.SHARED_KEY if self.kind == "groupedQuery" else LogitPart.KEY
        return AttentionHeads(
            kind=self.kind,
            heads=self.heads,
            parameters=(
                *_parameters(f"{prefix}.query", self.query, LogitPart.QUERY, self.heads),
                *_parameters(f"{prefix}.key", self.key, part, self.key_heads),
            ),
            normalised=self.query_norm is not None,
        )


class LatentAttention(SelfAttention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys and values are made from a small normalised vector. A head's logit is the sum of a content product and a rotary
    one; the rotary key is one vector that all heads share.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        attention = config.attention
        width, heads, bias = config.width, config.heads, config.bias or attention.bias
        content, rotary, value = attention.latent_dimensions
        rank = attention.key_value_rank or width
        source = attention.query_rank or width
        self.query_compression = Linear(width, source, bias=bias) if attention.query_rank else None
        self.query_norm = RMSNorm(source, config.norm_epsilon) if attention.query_rank else None
        self.query_content = Linear(source, heads * content, bias=bias)
        self.query_rotary = Linear(source, heads * rotary, bias=bias)
        self.key_value_compression = Linear(width, rank, bias=bias)
        self.key_value_norm = RMSNorm(rank, config.norm_epsilon)
        self.key_content = Linear(rank, heads * content, bias=bias)
        self.key_rotary = Linear(width, rotary, bias=bias)
        self.value = Linear(rank, heads * value, bias=bias)
        self._add_output(config, heads * value)

    def projections(self, x: Tensor, current: ForwardPass) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of `x`: the first two [content, rotary] in the last dimension."""
        source = x
        if self.query_compression is not None and self.query_norm is not None:
            source = self.query_norm(self.query_compression(x))
        latent = self.key_value_norm(self.key_value_compression(x))
        rotary_query = rotate(split_heads(self.query_rotary(source), self.heads), current.cosine, current.sine)
        rotary_key = rotate(split_heads(self.key_rotary(x), 1), current.cosine, current.sine)
        query = torch.cat((split_heads(self.query_content(source), self.heads), rotary_query), -1)
        key = torch.cat(
            (split_heads(self.key_content(latent), self.heads), rotary_key.expand(-1, self.heads, -1, -1)), -1
        )
        return query, key, split_heads(self.value(latent), self.heads)

    def logit_parameters(self, prefix: str) -> AttentionHeads:
        """Contents, the rotary query, and the rotary key that all heads share."""
        return AttentionHeads(
            kind="latent",
            heads=self.heads,
            parameters=(
                *_parameters(f"{prefix}.query_content", self.query_content, LogitPart.CONTENT_QUERY, self.heads),
                *_parameters(f"{prefix}.key_content", self.key_content, LogitPart.CONTENT_KEY, self.heads),
                *_parameters(f"{prefix}.query_rotary", self.query_rotary, LogitPart.ROTARY_QUERY, self.heads),
                *_parameters(f"{prefix}.key_rotary", self.key_rotary, LogitPart.SHARED_KEY, 1),
            ),
        )


def self_attention(config: TransformerConfig) -> SelfAttention:
    """The attention of one layer, of the kind that `config.attention` names."""
    return LatentAttention(config) if config.attention.kind == "latent" else MultiHeadAttention(config)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Turn [batch, tokens, heads * dimension] into [batch, heads, tokens, dimension]."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def _parameters(name: str, module: nn.Module, part: LogitPart, heads: int) -> tuple[HeadParameter, ...]:
    return tuple(HeadParameter(f"{name}.{own}", parameter, part, heads) for own, parameter in module.named_parameters())
