"""The decoder-only transformer: pre-norm blocks, rotary positions, GELU MLP, next-token loss."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab_trainer.head_parameters import AttentionHeads
from trimtab_trainer.max_logits import AttentionTelemetry, infinite_beyond_resolution
from trimtab_trainer.model.attention import (
    AttentionResult,
    measured_together,
    without_max_logits,
)
from trimtab_trainer.model.config import TransformerConfig
from trimtab_trainer.model.dropout import keyed_dropout
from trimtab_trainer.model.experts import Experts, Routing
from trimtab_trainer.model.layers import Embedding, Linear, RMSNorm, rotary_tables
from trimtab_trainer.model.self_attention import ForwardPass, self_attention
from trimtab_trainer.model.visibility import Visibility
from trimtab_trainer.tensors import IGNORED_TARGET, checkpointed

INITIAL_STANDARD_DEVIATION: Final = 0.02

Reduction = Literal["mean", "none"]


@dataclass(frozen=True, slots=True)
class ExpertTelemetry:
    """What the routers did, as means over the windows of the batch, detached."""

    load: Tensor
    """[layers, experts], the share of the tokens sent to each expert, as a multiple of the even one."""

    entropy: Tensor
    """[layers], of the routers' probabilities, as a share of its largest value."""

    dropped: Tensor
    """[layers], the share of what the routers sent that the experts had no room for."""

    z_loss: Tensor
    """The mean over layers, not weighted."""


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What one forward pass yields: `loss` with targets, `logits` [batch, tokens, vocabulary] without."""

    loss: Tensor | None
    logits: Tensor | None
    attention: AttentionTelemetry
    """Infinite where float32 cannot resolve the logits (beyond 2^24)."""

    experts: ExpertTelemetry | None = None
    """Of a mixture of experts only."""

    auxiliary_loss: Tensor | None = None
    """The weighted losses of the routers, a scalar: part of what is minimised, and no part of `loss`."""

    @property
    def objective(self) -> Tensor | None:
        """What a training step minimises."""
        if self.loss is None or self.auxiliary_loss is None:
            return self.loss
        return self.loss + self.auxiliary_loss


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: TransformerConfig, layer: int, seed: int) -> None:
        super().__init__()
        self.layer = layer
        self.seed = seed
        self.attention_norm = RMSNorm(config.width, config.norm_epsilon)
        self.attention = self_attention(config)
        self.mlp_norm = RMSNorm(config.width, config.norm_epsilon)
        hidden = config.mlp_ratio * config.width
        self.mixture: Experts | None = None
        if config.experts is None:
            self.up = Linear(config.width, hidden, bias=config.bias)
            self.down = Linear(hidden, config.width, bias=config.bias)
        else:
            ratio = config.experts.mlp_ratio or config.mlp_ratio
            self.mixture = Experts(config.experts, config.width, ratio * config.width, bias=config.bias)

    def forward(self, x: Tensor, current: ForwardPass) -> tuple[Tensor, AttentionResult, Routing | None]:
        """Transform the residual stream `x` [batch, tokens, width]."""
        attended, result = self.attention(self.attention_norm(x), current)
        x = x + self._drop(attended, 2 * self.layer, current)
        routing = None
        if self.mixture is None:
            hidden = self.down(F.gelu(self.up(self.mlp_norm(x))))
        else:
            hidden, routing = self.mixture(self.mlp_norm(x))
        return x + self._drop(hidden, 2 * self.layer + 1, current), result, routing

    def _drop(self, x: Tensor, site: int, current: ForwardPass) -> Tensor:
        probability, sample_ids = current.dropout, current.sample_ids
        if not self.training or sample_ids is None or probability == 0:
            return x
        return keyed_dropout(x, probability=probability, seed=self.seed, sample_ids=sample_ids, site=site)


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
        cosine, sine = rotary_tables(config.rotary_dimension, config.sequence, config.rotary_base)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        window = config.attention.window
        self._visibility = Visibility(window=window if window is not None and window < config.sequence else None)
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
        documents: Tensor | None = None,
        present: Tensor | None = None,
        dropout: float | None = None,
    ) -> ModelOutput:
        """Run `tokens` [batch, tokens] int64 through the model.

        With `targets` of the same shape the loss is the mean cross entropy (nats): a scalar, or with
        `reduction="none"` one mean per window [batch]. The largest attention logits are exact for heads
        above `qk_threshold`, and for all heads when `exact`. `sample_ids` [batch] int64, the absolute
        identities of the windows, are needed while training with dropout. With `masked`, targets may be
        `IGNORED_TARGET`; a window's loss is the mean over its other targets, and the loss the mean over windows.
        A token attends to its own document only where `documents` [batch, tokens] numbers them, and not to padding,
        where `present` [batch, tokens] is false. `dropout` takes the place of the configuration's.

        Raises:
            ValueError: the window is longer than `config.sequence`, or dropout lacks `sample_ids`.
        """
        dropout = self.config.dropout if dropout is None else dropout
        self._check(tokens, sample_ids, dropout)
        length = tokens.shape[1]
        current = ForwardPass(
            cosine=self.cosine[:length],
            sine=self.sine[:length],
            threshold=qk_threshold,
            exact=exact,
            visibility=self._visibility_of(documents, present),
            sample_ids=sample_ids,
            dropout=dropout,
            # Queries and keys are kept until then, as the backward pass does in any case unless it computes them again.
            postponed=tokens.device.type != "cpu" and not self.config.activation_checkpointing,
        )
        x = self.embedding(tokens)
        results: list[AttentionResult] = []
        routings: list[Routing] = []
        for block in self.blocks:
            x, result, routing = self._through(block, x, current)
            results.append(result)
            routings += [] if routing is None else [routing]
        logits = self.head(self.norm(x))
        attention = measured_together(results, qk_threshold, exact=exact)
        attention = replace(attention, max_logit=infinite_beyond_resolution(attention.max_logit))
        return ModelOutput(
            loss=None if targets is None else _loss(logits, targets, reduction, masked=masked),
            logits=logits if targets is None else None,
            attention=attention,
            experts=_expert_telemetry(routings) if routings else None,
            auxiliary_loss=self._auxiliary_loss(routings),
        )

    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """Return, per layer, which parameters make the logits of each head: what QK-Clip may scale."""
        blocks = (block for block in self.blocks if isinstance(block, Block))
        return tuple(
            block.attention.logit_parameters(f"blocks.{layer}.attention") for layer, block in enumerate(blocks)
        )

    def layer_parameters(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the parameters of each block."""
        return tuple(
            tuple(f"blocks.{layer}.{name}" for name, _ in block.named_parameters())
            for layer, block in enumerate(self.blocks)
        )

    def _through(
        self, block: nn.Module, x: Tensor, current: ForwardPass
    ) -> tuple[Tensor, AttentionResult, Routing | None]:
        if not (self.config.activation_checkpointing and torch.is_grad_enabled()):
            return block(x, current)
        return checkpointed(block, x, current, contexts=_checkpoint_contexts)

    def _auxiliary_loss(self, routings: Sequence[Routing]) -> Tensor | None:
        """The sum over layers."""
        experts = self.config.experts
        if experts is None:
            return None
        losses = (experts.balance_loss * one.balance_loss + experts.z_loss * one.z_loss for one in routings)
        return torch.stack(tuple(losses)).sum()

    def _visibility_of(self, documents: Tensor | None, present: Tensor | None) -> Visibility:
        if documents is None and present is None:
            return self._visibility
        return Visibility(window=self._visibility.window, documents=documents, present=present)

    def _check(self, tokens: Tensor, sample_ids: Tensor | None, dropout: float) -> None:
        if tokens.shape[1] > self.config.sequence:
            raise ValueError(f"tokens: a window of {tokens.shape[1]} is longer than sequence ({self.config.sequence})")
        if self.training and dropout > 0 and sample_ids is None:
            raise ValueError("sample_ids: needed while training with dropout, whose masks they key")

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        residual = INITIAL_STANDARD_DEVIATION / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                into_residual = name.split(".")[-2] in {"out", "down"}
                deviation = residual if into_residual else INITIAL_STANDARD_DEVIATION
                nn.init.normal_(parameter, std=deviation, generator=generator)


def _checkpoint_contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """The largest logits are known after the first of a block's two forward passes."""
    return nullcontext(), without_max_logits()


def _expert_telemetry(routings: Sequence[Routing]) -> ExpertTelemetry:
    return ExpertTelemetry(
        load=torch.stack([routing.load for routing in routings]),
        entropy=torch.stack([routing.entropy for routing in routings]),
        dropped=torch.stack([routing.dropped for routing in routings]),
        z_loss=torch.stack([routing.z_loss.detach() for routing in routings]).mean(),
    )


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
