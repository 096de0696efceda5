"""MuonClip: Muon for hidden matrices, AdamW for the rest, QK-Clip after both (arXiv 2507.20534)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch
from torch import Tensor

from trimtab_trainer.fields import raise_if_any
from trimtab_trainer.head_parameters import LOGIT_PARTS, AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim.adamw import AdamW
from trimtab_trainer.optim.config import MuonClipConfig, Optimizer
from trimtab_trainer.optim.muon import Muon
from trimtab_trainer.optim.qk_clip import layer_gamma, qk_clip, require_finite
from trimtab_trainer.optim.routing import MASTER_TYPES, Route, route_parameters, routing_problems
from trimtab_trainer.optim.shared_results import Peers
from trimtab_trainer.optim.weights import Weight, in_master

STATE_VERSION: Final = 1

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
        raise_if_any(_name_problems(named))
        parameters = dict(named)
        layers = [layer if isinstance(layer, AttentionHeads) else _multi_head(*layer) for layer in attention]
        raise_if_any(
            (
                *routing_problems(parameters, config.groups, masters=config.master_weights),
                *_attention_problems(layers, parameters, config),
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
        self._weights = [_weight(route, self._masters) for route in self.routes]
        self._places = self._where()
        self._muon = Muon(self._weights_of("muon"), config)
        self._muon_elements = sum(weight.value.numel() for weight in self._weights_of("muon"))
        self._adamw = AdamW(self._weights_of("adamw"), config)
        self._lr_scale = self._adamw_lr_scale = 1.0
        self._count = 0

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

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for weight in self._weights:
            weight.parameter.grad = None

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
        if not self.config.qk_clip_off:
            raise_if_any(_logit_problems(max_logits, self._layers))
        require_finite(max_logits)
        self._count += 1
        lr = self.lr
        squares = self._muon.step(lr)
        self._adamw.step(self.config.adamw_lr * self._adamw_lr_scale, self._count)
        gamma = self._clip(max_logits)
        for weight in self._weights:
            if weight.master is not None:
                weight.parameter.copy_(weight.master)
        return StepTelemetry(
            count=self._count,
            lr=lr,
            update_rms=math.sqrt(squares / max(self._muon_elements, 1)),
            qk_clip_gamma=gamma,
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
        raise_if_any(_state_problems(own, state))
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

    def _clip(self, max_logits: Tensor) -> Tensor:
        config = self.config
        if config.qk_clip_off or not self._layers:
            return torch.ones_like(max_logits)
        thresholds = config.thresholds(self._count, len(self._layers))
        if config.qk_clip_mode == "observe":
            return layer_gamma(max_logits, thresholds)
        return qk_clip(self._layers, max_logits, thresholds, config.qk_clip_grouped_query)


def _multi_head(query: Sequence[Tensor], key: Sequence[Tensor]) -> AttentionHeads:
    """Multi-head attention of as many heads as there are logits."""
    parts = ((LogitPart.QUERY, query), (LogitPart.KEY, key))
    parameters = tuple(HeadParameter(str(part), each, part, 0) for part, those in parts for each in those)
    return AttentionHeads("multiHead", 0, parameters)


def _name_problems(named: Sequence[tuple[str, Tensor]]) -> Iterator[str]:
    """Of two parameters of one name only one would be trained, and one of two names would be updated twice."""
    names, tensors = Counter(name for name, _ in named), dict[Tensor, str]()
    for name, count in names.items():
        if count > 1:
            yield f"{name}: {count} parameters have this name; give each one of its own"
    for name, tensor in named:
        first = tensors.setdefault(tensor, name)
        if first != name:
            yield f"{name}: is the same parameter as {first}; name it once"


def _weight(route: Route, masters: Mapping[str, Tensor]) -> Weight:
    master = masters.get(route.name)
    return Weight(route.name, route.parameter, master, route.decay, route.rows, route.learning_rate_scale)


def _on_masters(layer: AttentionHeads, masters: Mapping[Tensor, Tensor]) -> AttentionHeads:
    """The same layer with the float32 copies in place of the parameters."""
    parameters = (replace(each, parameter=in_master(each.parameter, masters)) for each in layer.parameters)
    return replace(layer, parameters=tuple(parameters))


def _attention_problems(
    layers: Sequence[AttentionHeads], parameters: Mapping[str, Tensor], config: MuonClipConfig
) -> Iterator[str]:
    if config.qk_clip_off:
        return
    thresholds = config.qk_clip_layer_thresholds
    if thresholds and len(thresholds) != len(layers):
        yield f"qk_clip_layer_thresholds: {len(thresholds)} must be one for each of the {len(layers)} attention layers"
    known = {id(parameter) for parameter in parameters.values()}
    for index, layer in enumerate(layers):
        if layer.normalised:
            yield (
                f"qk_clip_mode: must be disabled: layer {index} normalises the query and key of each head, so that "
                "scaling their weights changes no logit"
            )
        rule = config.qk_clip_grouped_query
        if layer.kind == "groupedQuery" and rule != "query" and not layer.of(LogitPart.SHARED_KEY):
            yield f"qk_clip_grouped_query: {rule} needs the shared key of attention layer {index}"
        yield from (f"attention layer {index}: {each.name}: {problem}" for each, problem in _unfit(layer, known))
        yield from (f"attention layer {index}: {problem}" for problem in (*_wrong_parts(layer), *_unequal_heads(layer)))
    if len(counts := {layer.heads for layer in layers if layer.heads}) > 1:
        yield f"attention: its layers have {sorted(counts)} heads; largest logits need the same number in each"


def _unfit(layer: AttentionHeads, known: Set[int]) -> Iterator[tuple[HeadParameter, str]]:
    for each in layer.parameters:
        base = each.parameter._base  # noqa: SLF001
        if id(each.parameter) not in known and id(base) not in known:
            yield each, "is not among the parameters of the optimizer"
        if each.heads and len(each.parameter) % each.heads:
            yield each, f"{each.heads} heads must divide its {len(each.parameter)} rows"


def _wrong_parts(layer: AttentionHeads) -> Iterator[str]:
    """What a kind of attention has not would never be scaled, and without a part that it has too little would be."""
    if layer.kind not in LOGIT_PARTS:
        yield f"kind: {layer.kind!r} must be one of {', '.join(LOGIT_PARTS)}"
        return
    known, named = LOGIT_PARTS[layer.kind], {each.part for each in layer.parameters}
    for each in layer.parameters:
        if each.part not in known:
            yield f"{each.name}: part {each.part!s} must be one of {', '.join(known)}"
    for part in known:
        if named and part != LogitPart.SHARED_KEY and part not in named:
            yield f"no parameter has part {part!s}, of which {layer.kind} logits are made"


def _unequal_heads(layer: AttentionHeads) -> Iterator[str]:
    """What shows that a layer has another number of key heads than it says: rows of other heads would be scaled."""
    if layer.kind == "latent":
        for each in layer.parameters:
            if each.part != LogitPart.SHARED_KEY and each.heads != layer.heads:
                yield f"{each.name}: {each.heads} heads must be the layer's {layer.heads}"
        return
    queries, keys = layer.of(LogitPart.QUERY), layer.of(LogitPart.KEY) or layer.of(LogitPart.SHARED_KEY)
    for query, key in zip(queries[:1], keys[:1], strict=False):
        if key.heads and layer.heads % key.heads:
            yield f"its {layer.heads} query heads must be a multiple of its {key.heads} key heads"
        sizes = [len(each.parameter) // (each.heads or 1) for each in (query, key)]
        if sizes[0] != sizes[1]:
            yield f"heads of {sizes[0]} rows in {query.name} and of {sizes[1]} in {key.name} must be of equal size"


def _logit_problems(max_logits: object, layers: Sequence[AttentionHeads]) -> Iterator[str]:
    """Numbers of another shape would be broadcast, and scale heads that did nothing."""
    if not isinstance(max_logits, Tensor):
        yield f"max_logits: must be a tensor [layers, heads], not {type(max_logits).__name__}"
        return
    if not max_logits.is_floating_point():
        yield f"max_logits: {max_logits.dtype} must be a type of floating point: thresholds would be cut to its numbers"
    if not layers:
        return
    heads = max(layer.heads for layer in layers) or max(max_logits.shape[-1:], default=0)
    if heads == 0 or max_logits.shape != (len(layers), heads):
        yield (
            f"max_logits: shape {list(max_logits.shape)} must be [{len(layers)}, {heads or 'heads'}], one number for "
            "each head of each attention layer"
        )
        return
    for index, layer in enumerate(layers):
        if any(not each.heads and len(each.parameter) % heads for each in layer.parameters):
            yield f"max_logits: {heads} heads must divide the rows of attention layer {index}"


def _state_problems(own: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Iterator[str]:
    if state.get("version") != STATE_VERSION:
        yield f"version: {state.get('version')} must be {STATE_VERSION}"
    count = state.get("count")
    if not isinstance(count, int) or count < 0:
        yield f"count: {count} must be a whole number from 0 on"
    for kind in sorted(state.keys() - own.keys() - {"version", "count"}):
        yield f"{kind}: unknown"
    for kind, tensors in own.items():
        yield from _tensor_problems(kind, tensors, state.get(kind, {}))


def _tensor_problems(kind: str, tensors: Mapping[str, Tensor], saved: object) -> Iterator[str]:
    if not isinstance(saved, Mapping):
        yield f"{kind}: must be the tensors by name, not {type(saved).__name__}"
        return
    found = cast("Mapping[str, object]", saved)
    for name in sorted(tensors.keys() - found.keys()):
        yield f"{kind}.{name}: missing"
    for name in sorted(found.keys() - tensors.keys()):
        yield f"{kind}.{name}: unknown"
    for name in sorted(tensors.keys() & found.keys()):
        mine, other = tensors[name], found[name]
        if not isinstance(other, Tensor):
            yield f"{kind}.{name}: must be a tensor, not {type(other).__name__}"
        elif (mine.shape, mine.dtype) != (other.shape, other.dtype):
            yield f"{kind}.{name}: {tuple(other.shape)} {other.dtype} must be {tuple(mine.shape)} {mine.dtype}"
