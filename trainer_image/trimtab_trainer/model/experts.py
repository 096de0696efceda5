"""A mixture of experts: a router sends each token to the best few of many MLPs.

All that is computed of a window depends on that window alone: the losses that balance the load, and which tokens an
expert has room for. So it does not matter how a batch is cut into the shares of ranks and micro-batches. An expert that
no token was sent to still takes part, with no rows: its gradient is zero on every rank, and nothing waits for it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab_trainer.model.experts_config import ExpertsConfig
from trimtab_trainer.model.layers import Linear
from trimtab_trainer.tensors import integers, stretches


@dataclass(frozen=True, slots=True)
class Routing:
    """What the router of one layer did with a batch: means over its windows.

    `balance_loss` and `z_loss` are scalars with a gradient, not weighted yet; the rest is detached.
    """

    balance_loss: Tensor
    z_loss: Tensor
    load: Tensor
    """[experts], the share of the tokens sent to each, as a multiple of the even one."""

    entropy: Tensor
    """Of the router's probabilities, as a share of its largest value: a scalar."""

    dropped: Tensor
    """Share of what the router sent that its experts had no room for: a scalar."""


class Expert(nn.Module):
    """One MLP; its matrices are its own, so that each is orthogonalised alone."""

    def __init__(self, width: int, hidden: int, *, bias: bool) -> None:
        super().__init__()
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` [tokens, width]."""
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    """The experts of one layer and their router."""

    def __init__(self, config: ExpertsConfig, width: int, hidden: int, *, bias: bool) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.capacity_factor = config.capacity_factor
        self.router = Linear(width, config.count, bias=False)
        self.experts = nn.ModuleList([Expert(width, hidden, bias=bias) for _ in range(config.count)])

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """Transform `x` [batch, tokens, width]."""
        # A probability rounded to half precision would send tokens elsewhere.
        with torch.autocast(x.device.type, enabled=False):
            logits = self.router(x.to(self.router.weight.dtype))
        probabilities = logits.softmax(-1)
        best, chosen = probabilities.topk(self.top_k, -1)
        sent = torch.zeros_like(probabilities, dtype=torch.bool).scatter_(-1, chosen, True)
        weights = torch.zeros_like(probabilities).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        admitted = self._admitted(sent)
        return self._mixed(x, weights, admitted), _routing(logits, probabilities, sent, admitted)

    def _admitted(self, sent: Tensor) -> Tensor:
        """Of the tokens `sent` [batch, tokens, experts], those that each expert has room for, earliest first."""
        if self.capacity_factor is None:
            return sent
        even = sent.shape[1] * self.top_k / sent.shape[-1]
        return sent & (sent.cumsum(1) <= math.ceil(self.capacity_factor * even))

    def _mixed(self, x: Tensor, weights: Tensor, admitted: Tensor) -> Tensor:
        """The outputs of the experts, each `admitted` token's weighted; all are [batch, tokens, ...]."""
        rows, shares = x.flatten(0, 1), weights.flatten(0, 1)
        by_expert = admitted.flatten(0, 1).T
        # A device is waited for once: with their number known, the places of what is admitted need no look at it.
        counts = integers(by_expert.sum(1))
        places = torch.nonzero_static(by_expert, size=sum(counts))[:, 1]
        mixed = torch.zeros_like(rows)
        for number, (expert, own) in enumerate(zip(self.experts, stretches(places, counts), strict=True)):
            output = expert(rows[own]) * shares[own, number, None]
            mixed = mixed.index_add(0, own, output.to(mixed.dtype))
        return mixed.view_as(x)


def _routing(logits: Tensor, probabilities: Tensor, sent: Tensor, admitted: Tensor) -> Routing:
    experts = logits.shape[-1]
    with torch.no_grad():
        # [batch, experts], 1 where the load is even.
        load = sent.to(probabilities.dtype).mean(1) * (experts / sent[0, 0].sum())
        entropy = -torch.xlogy(probabilities, probabilities).sum(-1).mean() / math.log(experts)
        dropped = 1 - admitted.sum().to(probabilities.dtype) / sent.sum()
    return Routing(
        balance_loss=(load * probabilities.mean(1)).sum(-1).mean(),
        z_loss=logits.logsumexp(-1).square().mean(),
        load=load.mean(0),
        entropy=entropy,
        dropped=dropped,
    )
