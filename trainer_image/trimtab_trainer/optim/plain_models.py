"""What MuonClip has to know of a plain PyTorch model: which parameters are special, and which make logits."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import cast

from torch import Tensor, nn

from trimtab_trainer.fields import at_least, raise_if_any
from trimtab_trainer.head_parameters import AttentionHeads, Cut, HeadParameter, LogitPart
from trimtab_trainer.optim.config import ParameterGroup
from trimtab_trainer.optim.fused_maps import fused_groups
from trimtab_trainer.optim.mixtures import mixture_groups
from trimtab_trainer.optim.routing import first_match


def parameter_groups(
    model: nn.Module, *, adamw: tuple[str, ...] = (), groups: tuple[ParameterGroup, ...] = ()
) -> tuple[ParameterGroup, ...]:
    """Return groups that send embeddings and routers to AdamW under whatever name, for `MuonClipConfig.groups`.

    `adamw` are patterns of further matrices for AdamW, such as those of an output head. `groups` of your own come
    first, and what they match is left to them. The queries, keys and values that `nn.MultiheadAttention` packs in one
    parameter are orthogonalised each alone, and so are the parts of other fused maps and stacked matrices of experts;
    see `fused_groups` and `mixture_groups`.
    """
    modules = [(f"{name}." if name else "", module) for name, module in _modules(model)]
    found = (f"{prefix}weight" for prefix, module in modules if isinstance(module, (nn.Embedding, nn.EmbeddingBag)))
    packed = (
        (f"{prefix}in_proj_weight", module.out_proj.in_features)
        for prefix, module in modules
        if isinstance(module, nn.MultiheadAttention) and "in_proj_weight" in _own_parameters(module)
    )
    own = (*groups, *(ParameterGroup(pattern=pattern, optimizer="adamw") for pattern in adamw))
    known = (
        *(ParameterGroup(pattern=pattern, optimizer="adamw") for pattern in found),
        *(ParameterGroup(pattern=pattern, split=(width,) * 3) for pattern, width in packed),
        *fused_groups(model),
        *mixture_groups(model),
    )
    return (*own, *(group for group in known if first_match(group.pattern, own) is None))


def separate_projections(
    name: str, query: nn.Linear, key: nn.Linear, *, heads: int, key_heads: int | None = None, normalised: bool = False
) -> AttentionHeads:
    """Return what makes the logits of a layer with a linear map each for queries and keys.

    With fewer `key_heads` than `heads` it is grouped-query attention. `normalised` says that the query and key of each
    head are normalised behind the maps. `name` is the layer's in what is refused.
    """
    queries = [(f"{name}.query.{kind}", parameter, _whole) for kind, parameter in query.named_parameters()]
    keys = [(f"{name}.key.{kind}", parameter, _whole) for kind, parameter in key.named_parameters()]
    return _attention(queries, keys, heads, key_heads, normalised=normalised)


def fused_projection(
    name: str, projection: nn.Linear, *, heads: int, key_heads: int | None = None, normalised: bool = False
) -> AttentionHeads:
    """Return what makes the logits of a layer with one linear map for queries, keys and values, in this order.

    Its first rows are the queries of all heads, then come the keys of all, then the values. Muon needs a
    `ParameterGroup` with `split` for the weight, too.

    Raises:
        InvalidFields: the rows are no whole number for each head, or the map is no `torch.nn.Linear`.
    """
    raise_if_any((None if hasattr(projection, "out_features") else f"{name}: {_not_linear(projection)}",))
    shared = heads if key_heads is None else key_heads
    rows = projection.out_features
    count = heads + 2 * shared
    raise_if_any((f"{name}: {rows} rows must be a multiple of {count}, its heads" if rows % count else None,))
    dimension = rows // count
    middle, end = heads * dimension, (heads + shared) * dimension
    parameters = [(f"{name}.{kind}", parameter) for kind, parameter in projection.named_parameters()]
    return _attention(
        [(each, parameter, _rows(0, middle)) for each, parameter in parameters],
        [(each, parameter, _rows(middle, end)) for each, parameter in parameters],
        heads,
        key_heads,
        normalised=normalised,
    )


def latent_projections(
    name: str,
    query: nn.Linear,
    key_value: nn.Linear,
    *,
    heads: int,
    content_dimension: int,
    rotary_dimension: int,
    value_dimension: int,
) -> AttentionHeads:
    """Return what makes the logits of a layer of latent attention (MLA), its rows as DeepSeek has them.

    `query` (`q_b_proj`, or `q_proj` where queries are not compressed) has of one head after the other the rows of the
    content and those of the rotary part, `key_value` (`kv_b_proj`) those of the content key and those of the value.
    Values are left as they are, and so is the rotary key that all heads share (in `kv_a_proj_with_mqa`).

    Raises:
        InvalidFields: one sentence per dimension below 1, or per map whose rows are not those of so many heads.
    """
    dimensions = {
        "heads": heads,
        "content_dimension": content_dimension,
        "rotary_dimension": rotary_dimension,
        "value_dimension": value_dimension,
    }
    raise_if_any(
        (
            *(at_least(field, value, 1) for field, value in dimensions.items()),
            _rows_problem(f"{name}.query", query, heads, content_dimension, rotary_dimension),
            _rows_problem(f"{name}.key_value", key_value, heads, content_dimension, value_dimension),
        )
    )
    queries = [(f"{name}.query.{kind}", parameter) for kind, parameter in query.named_parameters()]
    keys = [(f"{name}.key_value.{kind}", parameter) for kind, parameter in key_value.named_parameters()]
    contents, others = (
        _rows_of_heads(heads, slice(None, content_dimension)),
        _rows_of_heads(heads, slice(content_dimension, None)),
    )
    parts = (
        (LogitPart.CONTENT_QUERY, queries, contents),
        (LogitPart.ROTARY_QUERY, queries, others),
        (LogitPart.CONTENT_KEY, keys, contents),
    )
    parameters = (
        HeadParameter.of(each, parameter, part, heads, cut) for part, named, cut in parts for each, parameter in named
    )
    return AttentionHeads("latent", heads, tuple(parameters))


def multihead_attention(name: str, module: nn.MultiheadAttention) -> AttentionHeads:
    """Return what makes the logits of a layer that is `torch.nn.MultiheadAttention`: its parameters have this prefix.

    Muon needs the groups of `parameter_groups` for its packed weight, too. The key that `add_bias_kv` appends is scaled
    like every other one.
    """
    width, own = module.out_proj.in_features, _own_parameters(module)
    packed = [(f"{name}.{kind}", own[kind]) for kind in ("in_proj_weight", "in_proj_bias") if kind in own]
    queries = [(each, parameter, _rows(0, width)) for each, parameter in packed]
    keys = [(each, parameter, _rows(width, 2 * width)) for each, parameter in packed]
    queries += [(f"{name}.{kind}", own[kind], _whole) for kind in ("q_proj_weight",) if kind in own]
    keys += [(f"{name}.{kind}", own[kind], _whole) for kind in ("k_proj_weight",) if kind in own]
    keys += [(f"{name}.{kind}", own[kind], _flat) for kind in ("bias_k",) if kind in own]
    return _attention(queries, keys, cast("int", module.num_heads), None, normalised=False)


def _attention(
    queries: Iterable[tuple[str, Tensor, Cut]],
    keys: Iterable[tuple[str, Tensor, Cut]],
    heads: int,
    key_heads: int | None,
    *,
    normalised: bool,
) -> AttentionHeads:
    grouped = key_heads is not None and key_heads != heads
    key_part = LogitPart.SHARED_KEY if grouped else LogitPart.KEY
    parameters = (
        *(HeadParameter.of(name, parameter, LogitPart.QUERY, heads, cut) for name, parameter, cut in queries),
        *(HeadParameter.of(name, parameter, key_part, key_heads or heads, cut) for name, parameter, cut in keys),
    )
    return AttentionHeads("groupedQuery" if grouped else "multiHead", heads, parameters, normalised)


def _rows_problem(name: str, projection: nn.Linear, heads: int, first: int, second: int) -> str | None:
    rows = heads * (first + second)
    if min(heads, first, second) < 1 or projection.out_features == rows:
        return None
    return f"{name}: {projection.out_features} rows must be {rows}, {heads} heads of {first} + {second}"


def _whole(parameter: Tensor) -> Tensor:
    return parameter


def _rows(start: int, stop: int) -> Cut:
    return itemgetter(slice(start, stop))


def _rows_of_heads(heads: int, rows: slice) -> Cut:
    """Takes the same rows of each head: [heads, rows, inputs] of a weight and [heads, rows] of a bias."""

    def cut(whole: Tensor) -> Tensor:
        return whole.view(heads, -1, *whole.shape[1:])[:, rows]

    return cut


def _flat(whole: Tensor) -> Tensor:
    return whole.view(-1)


def _not_linear(module: object) -> str:
    """As GPT-2's `Conv1D`, whose weight lies the other way round."""
    return (
        f"{type(module).__name__} is no torch.nn.Linear, whose weight has a row for each output; put one in its place"
    )


def _own_parameters(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters(recurse=False))


def _modules(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    yield name, module
    for child_name, child in module.named_children():
        yield from _modules(child, f"{name}.{child_name}" if name else child_name)
