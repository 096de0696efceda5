"""MuonClip: Muon for hidden matrices, AdamW for the rest, QK-Clip after both (arXiv 2507.20534)."""

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab_trainer import tensor_lists
from trimtab_trainer.fields import raise_if_any
from trimtab_trainer.head_parameters import AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim.adamw import AdamW
from trimtab_trainer.optim.checks import (
    STATE_VERSION,
    attention_problems,
    logit_problems,
    name_problems,
    state_problems,
)
from trimtab_trainer.optim.clip_effect import LARGEST_FACTOR, UPDATES, ClipEffect
from trimtab_trainer.optim.config import MuonClipConfig, Optimizer
from trimtab_trainer.optim.gradients import forget_gradients
from trimtab_trainer.optim.muon import Muon
from trimtab_trainer.optim.qk_clip import hot_layers, layer_gamma, require_finite, scale_heads
from trimtab_trainer.optim.routing import MASTER_TYPES, Route, route_parameters, routing_problems
from trimtab_trainer.optim.shared_results import Peers
from trimtab_trainer.optim.weights import Weight, in_master

logger = logging.getLogger(__name__)

QueryKeyParameters = tuple[Sequence[Tensor], Sequence[Tensor]]
"""The parameters that make the queries and those that make the keys of a layer of multi-head attention."""


@dataclass(frozen=True, slots=True)
class StepTelemetry:
    """What one update did."""

    count: int
    """Updates made so far, this one included; a withheld step makes none."""

    lr: float
    """Muon's learning rate in this update, which groups may multiply."""

    update_rms: float
    """Root mean square of Muon's updates before the learning rate and decay; about 0.2 at full rank."""

    qk_clip_gamma: Tensor
    """Factor on the logits of each head [layers, heads]: 1 where not clipped. With `observe` the factor it would be."""


@dataclass(frozen=True, slots=True)
class Update:
    """What is settled of an update when it begins: all but what follows from gradients and weights."""

    count: int
    lr: float
    adamw_lr: float
    gamma: Tensor
    hot: frozenset[int]
    """The layers whose heads are to be scaled."""


class MuonClip:
    """The optimizer of the trainer, and of any PyTorch model.

    `attention` names, layer by layer, the parameters QK-Clip scales; every one of them must also be among
    `named_parameters`, or be a view of one that is. A pair (query parameters, key parameters) is short for multi-head
    attention.

    Give it the parameters that are to be trained, with the weights they begin from: one without a gradient counts as
    one with a gradient of zero, so a frozen one would decay, and the float32 copies are made here.

    Raises:
        InvalidFields: one sentence per parameter, group and layer that cannot be served.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        attention: Sequence[AttentionHeads | QueryKeyParameters],
        config: MuonClipConfig,
    ) -> None:
        self.config = config
        named = tuple(named_parameters)
        raise_if_any(name_problems(named))
        parameters = dict(named)
        layers = [whole_layer(layer) for layer in attention]
        raise_if_any(
            (
                *routing_problems(parameters, config.groups, masters=config.master_weights),
                *attention_problems(layers, parameters, config),
            )
        )
        self.routes: tuple[Route, ...] = route_parameters(
            parameters.items(), config.groups, decay=config.decay, masters=config.master_weights
        )
        self._masters = {
            name: parameter.detach().float()
            for name, parameter in parameters.items()
            if parameter.dtype not in MASTER_TYPES
        }
        masters = {parameters[name]: master for name, master in self._masters.items()}
        self._layers = [_on_masters(layer, masters) for layer in layers]
        self._names_of_layers = layer_names(layers, parameters)
        self._weights = [weight_of(route, self._masters.get(route.name)) for route in self.routes]
        self._places = self._where()
        self._muon = Muon(self._weights_of("muon"), config)
        self._muon_elements = sum(weight.value.numel() for weight in self._weights_of("muon"))
        self._adamw = AdamW(self._weights_of("adamw"), config)
        self._lr_scale = self._adamw_lr_scale = 1.0
        self._count = 0
        self._clip_effect = ClipEffect()

    @property
    def count(self) -> int:
        """Updates made so far."""
        return self._count

    @property
    def lr(self) -> float:
        """Muon's learning rate of the next update."""
        return self.config.muon_lr * self._lr_scale

    @property
    def lowest_threshold(self) -> float:
        """The lowest threshold of QK-Clip in the next update: below it no logit needs to be exact."""
        return min(self.config.thresholds(self._count + 1, len(self._layers)), default=math.inf)

    def divide(self, peers: Peers) -> None:
        """Orthogonalise each matrix on one of the peers for all, unless the settings say `duplicated`.

        Every peer calls it, with the same parameters and settings, and from then on `step` at the same time with the
        same gradients. State and numbers stay what they are without.
        """
        if self.config.newton_schulz_mode == "distributed" and peers.size > 1:
            self._muon.divide(peers)

    def set_lr(self, scale: float, adamw_scale: float | None = None) -> None:
        """Set both learning rates to `scale` times their peaks, or AdamW's to a multiple of its own, until the next."""
        self._lr_scale = scale
        self._adamw_lr_scale = scale if adamw_scale is None else adamw_scale

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero."""
        forget_gradients((weight.parameter for weight in self._weights), keep=not set_to_none)

    @torch.no_grad()
    def step(self, max_logits: Tensor) -> StepTelemetry:
        """Update the parameters from their gradients, then clip heads.

        `max_logits` [layers, heads] comes from the forward pass of these gradients, reduced by MAX over
        micro-batches and replicas; for a model without attention it is empty.

        Raises:
            InvalidFields: there is not one largest logit for each head, or a parameter's elements lie elsewhere than
                when this was built; nothing was changed.
            NonFiniteLogitsError: a largest logit is not finite; nothing was changed.
        """
        raise_if_any(self._moved())
        update = self.begin(max_logits)
        self.advance(update)
        return self.told(update)

    @torch.no_grad()
    def begin(self, max_logits: Tensor) -> Update:
        """Begin an update that is made in parts, with `advance`; raises as `step` does, but for elements that moved."""
        if not self.config.qk_clip_off:
            raise_if_any(logit_problems(max_logits, self._layers))
        require_finite(max_logits)
        self._count += 1
        gamma, hot = self._gamma(max_logits)
        self._tell_of_vain_clips(max_logits, gamma, sorted(hot))
        return Update(self._count, self.lr, self.config.adamw_lr * self._adamw_lr_scale, gamma, hot)

    @torch.no_grad()
    def advance(
        self, update: Update, slabs: Collection[int] | None = None, names: Collection[str] | None = None
    ) -> None:
        """Make a part of an update: Muon's of some slabs, as `shared_products` numbers them, and the end of `names`.

        The end of a parameter is AdamW's update, the clipping of its heads and the rounding of its float32 copy, so
        Muon's update of it came before, and all that makes the logits of a layer ends together. None means all.
        """
        self._muon.step(update.lr, slabs)
        self._adamw.step(update.adamw_lr, update.count, names)
        for layer in update.hot:
            if names is None or any(name in names for name in self._names_of_layers[layer]):
                scale_heads(self._layers[layer], update.gamma[layer], self.config.qk_clip_grouped_query)
        copied = [one for one in self._weights if one.master is not None and (names is None or one.name in names)]
        if copied:
            tensor_lists.copy_to([one.parameter for one in copied], [one.value for one in copied])

    def told(self, update: Update) -> StepTelemetry:
        """What an update did, when all parts of it were made."""
        return StepTelemetry(
            count=update.count,
            lr=update.lr,
            update_rms=math.sqrt(self._muon.squares() / max(self._muon_elements, 1)),
            qk_clip_gamma=update.gamma,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state: plain numbers and the live tensors, under keys that never change."""
        return {"version": STATE_VERSION, "count": self._count, **self.tensors()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy `state` into this optimizer.

        Raises:
            InvalidFields: one sentence per key that is missing, unknown, or of another shape or type;
                nothing was changed.
        """
        own = self.tensors()
        raise_if_any(state_problems(own, state))
        for kind, tensors in own.items():
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name])
        self._count = state["count"]

    def update_norms(self) -> dict[str, float]:
        """See `Muon.update_norms`."""
        return self._muon.update_norms()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the live tensors of the state, of each kind by the name of its parameter."""
        tensors = {
            "muon_momentum": self._muon.momentum(),
            "adamw_first_moment": self._adamw.first_moments(),
            "adamw_second_moment": self._adamw.second_moments(),
        }
        return tensors | {"master_weights": self._masters} if self._masters else tensors

    def _where(self) -> tuple[int, ...]:
        """Where the elements lie that are updated in place; a copy in float32 is this optimizer's own."""
        return tuple(0 if weight.master is not None else weight.parameter.data_ptr() for weight in self._weights)

    def _moved(self) -> tuple[str, ...]:
        """Muon would go on with the elements that the parameters had."""
        places = zip(self._weights, self._places, self._where(), strict=True)
        moved = [weight.name for weight, before, now in places if before != now]
        more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
        told = f"{moved[0]}{more}: the elements lie elsewhere than when the optimizer was built" if moved else ""
        return (f"{told}; build it behind what moves them (.to, .half, p.data = …), or anew",) if moved else ()

    def _weights_of(self, optimizer: Optimizer) -> list[Weight]:
        return [
            weight for route, weight in zip(self.routes, self._weights, strict=True) if route.optimizer == optimizer
        ]

    def _gamma(self, max_logits: Tensor) -> tuple[Tensor, frozenset[int]]:
        """The factor of every head, and the layers in which some head is to be scaled."""
        config = self.config
        if config.qk_clip_off or not self._layers:
            return torch.ones_like(max_logits), frozenset()
        gamma = layer_gamma(max_logits, config.thresholds(self._count, len(self._layers)))
        return gamma, frozenset() if config.qk_clip_mode == "observe" else frozenset(hot_layers(gamma))

    def _tell_of_vain_clips(self, max_logits: Tensor, gamma: Tensor, hot: Sequence[int]) -> None:
        for layer, heads in self._clip_effect.seen(max_logits, gamma, hot):
            # Where parameters are sharded, one rank has those of the layer, and it is enough that this one tells.
            if names := sorted(self._names_of_layers[layer]):
                logger.warning(
                    "attention layer %d (%s): QK-Clip scaled heads %s in %d updates in a row, to %s of their logits or "
                    "less each time, and the logits do not follow. If the model normalises queries and keys in its "
                    "forward pass, set qk_clip_mode to disabled: scaling these weights only shrinks them. If other "
                    "rows make the logits than `attention` says, correct it. If neither, one update adds more than a "
                    "quarter of the threshold: raise it, or lower the learning rate",
                    layer,
                    ", ".join(names),
                    heads,
                    UPDATES,
                    LARGEST_FACTOR,
                )


def whole_layer(layer: AttentionHeads | QueryKeyParameters) -> AttentionHeads:
    """A layer with the very elements of its parameters that make logits; a pair is multi-head attention.

    The latter has as many heads as there are logits.
    """
    if isinstance(layer, AttentionHeads):
        return replace(layer, parameters=tuple(each.resolved() for each in layer.parameters))
    parts = ((LogitPart.QUERY, layer[0]), (LogitPart.KEY, layer[1]))
    parameters = tuple(HeadParameter(str(part), each, part, 0) for part, those in parts for each in those)
    return AttentionHeads("multiHead", 0, parameters)


def layer_names(layers: Sequence[AttentionHeads], parameters: Mapping[str, Tensor]) -> list[frozenset[str]]:
    """Of each layer the names of the parameters whose elements make its logits."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found = ([(id(one.parameter), id(one.parameter._base)) for one in layer.parameters] for layer in layers)  # noqa: SLF001
    return [frozenset(names[key] for keys in each for key in keys if key in names) for each in found]


def weight_of(route: Route, master: Tensor | None) -> Weight:
    """A parameter as the optimizers see it."""
    return Weight(route.name, route.parameter, master, route.decay, route.rows, route.learning_rate_scale)


def _on_masters(layer: AttentionHeads, masters: Mapping[Tensor, Tensor]) -> AttentionHeads:
    """The same layer with the float32 copies in place of the parameters."""
    parameters = (replace(each, parameter=in_master(each.parameter, masters)) for each in layer.parameters)
    return replace(layer, parameters=tuple(parameters))
