"""Why MuonClip cannot serve what it was given, a sentence for each thing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final, cast

from torch import Tensor

from trimtab_trainer.head_parameters import LOGIT_PARTS, AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim.config import MuonClipConfig

STATE_VERSION: Final = 1


def name_problems(named: Sequence[tuple[str, Tensor]]) -> Iterator[str]:
    """Of two parameters of one name only one would be trained, and one of two names would be updated twice."""
    names, tensors = Counter(name for name, _ in named), dict[Tensor, str]()
    for name, count in names.items():
        if count > 1:
            yield f"{name}: {count} parameters have this name; give each one of its own"
    for name, tensor in named:
        first = tensors.setdefault(tensor, name)
        if first != name:
            yield f"{name}: is the same parameter as {first}; name it once"


def attention_problems(
    layers: Sequence[AttentionHeads], parameters: Mapping[str, Tensor], config: MuonClipConfig
) -> Iterator[str]:
    """What of the layers QK-Clip cannot scale, or would scale wrongly, under these settings."""
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


def logit_problems(max_logits: object, layers: Sequence[AttentionHeads]) -> Iterator[str]:
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


def state_problems(own: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Iterator[str]:
    """What of a state does not fit that of an optimizer, whose tensors `own` are, of each kind by name."""
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
