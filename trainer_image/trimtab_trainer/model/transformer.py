"""The decoder-only transformer: pre-norm blocks, rotary positions, GELU MLP, next-token loss."""

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab_trainer.head_parameters import AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.model.attention import AttentionResult, causal_attention, infinite_beyond_resolution
from trimtab_trainer.model.config import TransformerConfig
from trimtab_trainer.model.dropout import keyed_dropout
from trimtab_trainer.tensors import IGNORED_TARGET

INITIAL_STANDARD_DEVIATION: Final = 0.02

Reduction = Literal["mean", "none"]


@dataclass(frozen=True, slots=True)
class AttentionTelemetry:
    """Largest logit of every head, [layers, heads], detached.

    `max_logit` is the maximum itself where `exact` is true, otherwise an upper bound; it is infinite where float32
    cannot resolve the logits (beyond 2^24).
    """

    max_logit: Tensor
    exact: Tensor

    @property
    def record_name(self) -> str:
        """The name under which `max_logit` may be published: a bound is called a bound."""
        return "qk_max_logit" if bool(self.exact.all()) else "qk_max_logit_bound"


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What one forward pass yields: `loss` with targets, `logits` [batch, tokens, vocabulary] without."""

    loss: Tensor | None
    logits: Tensor | None
    attention: AttentionTelemetry


@dataclass(frozen=True, slots=True)
class _Pass:
    """What every block needs to know about the current forward pass."""

    cosine: Tensor
    sine: Tensor
    threshold: float
    exact: bool
    sample_ids: Tensor | None


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a gain, over the last dimension."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` [..., width]."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


class Linear(nn.Linear):
    """A linear layer that leaves its initialisation to the model, and so the global generator alone."""

    def reset_parameters(self) -> None:
        """Draw nothing: the model fills the parameters from its own generator."""


class Embedding(nn.Embedding):
    """An embedding that leaves its initialisation to the model, and so the global generator alone."""

    def reset_parameters(self) -> None:
        """Draw nothing: the model fills the parameters from its own generator."""


class Attention(nn.Module):
    """Dense multi-head causal self-attention with rotary positions.

    Query, key and value have matrices of their own: an orthogonalised update of a fused matrix would mix
    them, and QK-Clip scales the rows of single heads.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = Linear(config.width, config.width, bias=config.bias)
        self.key = Linear(config.width, config.width, bias=config.bias)
        self.value = Linear(config.width, config.width, bias=config.bias)
        self.out = Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, current: _Pass) -> tuple[Tensor, AttentionResult]:
        """Attend over `x` [batch, tokens, width]."""
        query = _rotate(self._split(self.query(x)), current)
        key = _rotate(self._split(self.key(x)), current)
        value = self._split(self.value(x))
        # The types are chosen: the kernel takes them as they are, and largest logits are computed in float32.
        with torch.autocast(x.device.type, enabled=False):
            result = causal_attention(query, key, value, threshold=current.threshold, exact=current.exact)
        return self.out(result.output.permute(0, 2, 1, 3).flatten(2)), result

    def _split(self, x: Tensor) -> Tensor:
        """Turn [batch, tokens, width] into [batch, heads, tokens, head dimension]."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: TransformerConfig, layer: int, seed: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.layer = layer
        self.seed = seed
        self.attention_norm = RMSNorm(config.width, config.norm_epsilon)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, config.norm_epsilon)
        self.up = Linear(config.width, config.mlp_ratio * config.width, bias=config.bias)
        self.down = Linear(config.mlp_ratio * config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, current: _Pass) -> tuple[Tensor, AttentionResult]:
        """Transform the residual stream `x` [batch, tokens, width]."""
        attended, result = self.attention(self.attention_norm(x), current)
        x = x + self._drop(attended, 2 * self.layer, current)
        hidden = self.down(F.gelu(self.up(self.mlp_norm(x))))
        return x + self._drop(hidden, 2 * self.layer + 1, current), result

    def _drop(self, x: Tensor, site: int, current: _Pass) -> Tensor:
        if not self.training or current.sample_ids is None:
            return x
        return keyed_dropout(x, probability=self.dropout, seed=self.seed, sample_ids=current.sample_ids, site=site)


class Transformer(nn.Module):
    """A decoder-only transformer; equal (config, seed) give bit-equal initial weights."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: TransformerConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList([Block(config, layer, seed) for layer in range(config.layers)])
        self.norm = RMSNorm(config.width, config.norm_epsilon)
        self.head = Linear(config.width, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        cosine, sine = _rotary_tables(config)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self._initialise(seed)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        reduction: Reduction = "mean",
        qk_threshold: float = math.inf,
        exact: bool = False,
        sample_ids: Tensor | None = None,
        masked: bool = False,
    ) -> ModelOutput:
        """Run `tokens` [batch, tokens] int64 through the model.

        With `targets` of the same shape the loss is the mean cross entropy (nats): a scalar, or with
        `reduction="none"` one mean per window [batch]. The largest attention logits are exact for heads
        above `qk_threshold`, and for all heads when `exact`. `sample_ids` [batch] int64, the absolute
        identities of the windows, are needed while training with dropout. With `masked`, targets may be
        `IGNORED_TARGET`; a window's loss is the mean over its other targets, and the loss the mean over windows.

        Raises:
            ValueError: the window is longer than `config.sequence`, or dropout lacks `sample_ids`.
        """
        self._check(tokens, sample_ids)
        length = tokens.shape[1]
        current = _Pass(
            cosine=self.cosine[:length],
            sine=self.sine[:length],
            threshold=qk_threshold,
            exact=exact,
            sample_ids=sample_ids if self.config.dropout > 0 else None,
        )
        x = self.embedding(tokens)
        results: list[AttentionResult] = []
        for block in self.blocks:
            x, result = block(x, current)
            results.append(result)
        logits = self.head(self.norm(x))
        attention = AttentionTelemetry(
            max_logit=infinite_beyond_resolution(torch.stack([result.max_logit for result in results])),
            exact=torch.stack([result.exact for result in results]),
        )
        if targets is None:
            return ModelOutput(loss=None, logits=logits, attention=attention)
        return ModelOutput(loss=_loss(logits, targets, reduction, masked=masked), logits=None, attention=attention)

    def query_key_parameters(self) -> tuple[tuple[tuple[Tensor, ...], tuple[Tensor, ...]], ...]:
        """Return, per layer, the parameters (weight, then bias if any) that make queries and keys."""
        attentions = [block.attention for block in self.blocks if isinstance(block, Block)]
        return tuple(
            (tuple(attention.query.parameters()), tuple(attention.key.parameters())) for attention in attentions
        )

    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """Return, per layer, which parameters make the logits of each head: what QK-Clip may scale."""
        found: list[AttentionHeads] = []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            heads = block.attention.heads
            found.append(
                AttentionHeads(
                    kind="multiHead",
                    heads=heads,
                    parameters=tuple(
                        HeadParameter(f"blocks.{layer}.attention.{part}.{name}", parameter, part, heads)
                        for part, module in (
                            (LogitPart.QUERY, block.attention.query),
                            (LogitPart.KEY, block.attention.key),
                        )
                        for name, parameter in module.named_parameters()
                    ),
                )
            )
        return tuple(found)

    def _check(self, tokens: Tensor, sample_ids: Tensor | None) -> None:
        if tokens.shape[1] > self.config.sequence:
            raise ValueError(f"tokens: a window of {tokens.shape[1]} is longer than sequence ({self.config.sequence})")
        if self.training and self.config.dropout > 0 and sample_ids is None:
            raise ValueError("sample_ids: needed while training with dropout, whose masks they key")

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        residual = INITIAL_STANDARD_DEVIATION / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                into_residual = name.endswith(("out.weight", "down.weight"))
                deviation = residual if into_residual else INITIAL_STANDARD_DEVIATION
                nn.init.normal_(parameter, std=deviation, generator=generator)


def _rotary_tables(config: TransformerConfig) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [sequence, head dimension], each half repeated (RoFormer, arXiv 2104.09864)."""
    half = config.head_dimension // 2
    frequencies = config.rotary_base ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(config.sequence, dtype=torch.float64), frequencies).repeat(1, 2)
    return angles.cos().float(), angles.sin().float()


def _rotate(x: Tensor, current: _Pass) -> Tensor:
    """Turn each pair (i, i + half) of `x` [batch, heads, tokens, head dimension] by its position."""
    first, second = x.chunk(2, dim=-1)
    rotated = x * current.cosine + torch.cat((-second, first), dim=-1) * current.sine
    return rotated.to(x.dtype)


def _loss(logits: Tensor, targets: Tensor, reduction: Reduction, *, masked: bool) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if masked:
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED_TARGET)
        counted = (targets != IGNORED_TARGET).sum(-1).clamp(min=1)
        # By window first: then it does not matter how a batch is cut into the shares of the ranks.
        by_window = losses.view_as(targets).sum(-1) / counted
        return by_window.mean() if reduction == "mean" else by_window
    per_token = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    return per_token if reduction == "mean" else per_token.view_as(targets).mean(-1)
