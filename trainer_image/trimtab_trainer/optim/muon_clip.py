"""MuonClip: Muon for hidden matrices, AdamW for the rest, QK-Clip after both (arXiv 2507.20534)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from trimtab_trainer.fields import raise_if_any
from trimtab_trainer.optim.adamw import AdamW
from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.optim.muon import Muon
from trimtab_trainer.optim.qk_clip import qk_clip, require_finite
from trimtab_trainer.optim.routing import Route, route_parameters, routed_to

STATE_VERSION: Final = 1

QueryKeyParameters = Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]
"""Per layer, the parameters that make queries and those that make keys."""


@dataclass(frozen=True, slots=True)
class StepTelemetry:
    """What one update did."""

    count: int
    """Updates made so far, this one included; a withheld step makes none."""

    lr: float
    """Muon's learning rate in this update."""

    update_rms: float
    """Root mean square of Muon's updates before the learning rate and decay; about 0.2 at full rank."""

    qk_clip_gamma: Tensor
    """Factor on the logits of each head [layers, heads]: 1 where not clipped."""


class MuonClip:
    """The optimizer of the trainer.

    `query_key` names, layer by layer, the parameters QK-Clip scales; every one of them must also be among
    `named_parameters`.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        query_key: QueryKeyParameters,
        config: MuonClipConfig,
    ) -> None:
        self.config = config
        self.routes: tuple[Route, ...] = route_parameters(named_parameters)
        self._query_key = query_key
        muon_parameters = routed_to(self.routes, "muon")
        self._muon = Muon(muon_parameters, config)
        self._muon_elements = sum(parameter.numel() for parameter in muon_parameters.values())
        self._adamw = AdamW(routed_to(self.routes, "adamw"), config)
        self._lr_scale = 1.0
        self._count = 0

    @property
    def count(self) -> int:
        """Updates made so far."""
        return self._count

    @property
    def lr(self) -> float:
        """Muon's learning rate of the next update."""
        return self.config.muon_lr * self._lr_scale

    def set_lr(self, scale: float) -> None:
        """Set both learning rates to `scale` times their peaks, until the next call."""
        self._lr_scale = scale

    @torch.no_grad()
    def step(self, max_logits: Tensor) -> StepTelemetry:
        """Update the parameters from their gradients, then clip heads.

        `max_logits` [layers, heads] comes from the forward pass of these gradients, reduced by MAX over
        micro-batches and replicas.

        Raises:
            NonFiniteLogitsError: a largest logit is not finite; nothing was changed.
        """
        require_finite(max_logits)
        self._count += 1
        lr = self.lr
        squares = self._muon.step(lr)
        self._adamw.step(self.config.adamw_lr * self._lr_scale, self._count)
        return StepTelemetry(
            count=self._count,
            lr=lr,
            update_rms=math.sqrt(squares / max(self._muon_elements, 1)),
            qk_clip_gamma=self._clip(max_logits),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state: plain numbers and the live tensors, under keys that never change."""
        return {"version": STATE_VERSION, "count": self._count, **self._tensors()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy `state` into this optimizer.

        Raises:
            InvalidFields: one sentence per key that is missing, unknown, or of another shape or type;
                nothing was changed.
        """
        own = self._tensors()
        raise_if_any(_problems(own, state))
        for kind, tensors in own.items():
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name])
        self._count = state["count"]

    def _clip(self, max_logits: Tensor) -> Tensor:
        if self.config.qk_clip_threshold is None:
            return torch.ones_like(max_logits)
        return qk_clip(self._query_key, max_logits, self.config.qk_clip_threshold)

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        return {
            "muon_momentum": self._muon.momentum(),
            "adamw_first_moment": self._adamw.first_moments(),
            "adamw_second_moment": self._adamw.second_moments(),
        }


def _problems(own: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Iterable[str]:
    if state.get("version") != STATE_VERSION:
        yield f"version: {state.get('version')} must be {STATE_VERSION}"
    if not isinstance(state.get("count"), int):
        yield f"count: {state.get('count')} must be a whole number"
    for kind, tensors in own.items():
        saved: Mapping[str, Tensor] = state.get(kind, {})
        for name in sorted(tensors.keys() - saved.keys()):
            yield f"{kind}.{name}: missing"
        for name in sorted(saved.keys() - tensors.keys()):
            yield f"{kind}.{name}: unknown"
        for name in sorted(tensors.keys() & saved.keys()):
            mine, other = tensors[name], saved[name]
            if (mine.shape, mine.dtype) != (other.shape, other.dtype):
                yield (f"{kind}.{name}: {tuple(other.shape)} {other.dtype} must be {tuple(mine.shape)} {mine.dtype}")
