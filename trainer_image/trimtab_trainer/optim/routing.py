"""Which optimizer updates which parameter, and why."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.distributed_tensors import is_sharded
from trimtab_trainer.fields import raise_if_any
from trimtab_trainer.optim.config import Optimizer, ParameterGroup

NOT_HIDDEN: Final = {
    "embedding": "looks tokens up",
    "embeddings": "looks tokens up",
    "embed_tokens": "looks tokens up",
    "tok_embeddings": "looks tokens up",
    "wte": "looks tokens up",
    "wpe": "looks positions up",
    "head": "scores tokens",
    "lm_head": "scores tokens",
    "router": "scores experts",
}
"""Modules whose matrices are no maps between hidden vectors: each row is looked up or scored by itself."""

MASTER_TYPES: Final = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Route:
    """One parameter, the optimizer that updates it, and what that optimizer has to know."""

    name: str
    parameter: Tensor
    optimizer: Optimizer
    reason: str
    decay: float
    rows: tuple[int, ...] = ()
    learning_rate_scale: float = 1.0


def route_parameters(
    named_parameters: Iterable[tuple[str, Tensor]],
    groups: Sequence[ParameterGroup] = (),
    *,
    decay: float = 0.0,
    masters: bool = False,
) -> tuple[Route, ...]:
    """Send the hidden matrices to Muon; embeddings, head, routers, gains, biases and convolutions to AdamW.

    The first of `groups` whose pattern matches a parameter's name overrides this. `masters` says that parameters of
    few bits get float32 copies.

    Raises:
        InvalidFields: one sentence per parameter and group that cannot be served.
    """
    parameters = dict(named_parameters)
    raise_if_any(routing_problems(parameters, groups, masters=masters))
    return tuple(_route(name, parameter, _group_of(name, groups), decay) for name, parameter in parameters.items())


def routing_problems(
    parameters: Mapping[str, Tensor], groups: Sequence[ParameterGroup], *, masters: bool
) -> Iterator[str]:
    """One sentence for each parameter and each group that cannot be served."""
    for name, parameter in parameters.items():
        if (problem := _type_problem(name, parameter, masters=masters)) is not None:
            yield problem
    chosen = {name: _group_of(name, groups) for name in parameters}
    for name, group in chosen.items():
        yield from _group_problems(name, parameters[name], group)
    used = {id(group) for group in chosen.values()}
    for index, group in enumerate(groups):
        if id(group) not in used:
            yield unused(index, group)


def routing_table(routes: Iterable[Route]) -> str:
    """Return one line per parameter: name, shape, optimizer and the reason for it."""
    rows = [(route.name, "x".join(map(str, route.parameter.shape)), route.optimizer, route.reason) for route in routes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {shape:>{widths[1]}}  {kind:<{widths[2]}}  {reason}".rstrip()
        for name, shape, kind, reason in rows
    )


def first_match(name: str, groups: Sequence[ParameterGroup]) -> int | None:
    """Return the number of the group that a parameter of this name belongs to, or None."""
    return next((number for number, group in enumerate(groups) if fnmatchcase(name, group.pattern)), None)


def unused(number: int, group: ParameterGroup) -> str:
    """Say that a group has no parameter."""
    return f"groups[{number}].pattern: {group.pattern!r} matches no parameter that an earlier group left"


def _group_of(name: str, groups: Sequence[ParameterGroup]) -> ParameterGroup | None:
    number = first_match(name, groups)
    return None if number is None else groups[number]


def _route(name: str, parameter: Tensor, group: ParameterGroup | None, decay: float) -> Route:
    optimizer, reason = _default(name, parameter)
    usual = decay if parameter.ndim >= 2 else 0.0
    if group is None:
        return Route(name, parameter, optimizer, reason, usual)
    if group.optimizer is not None:
        optimizer, reason = group.optimizer, f"pattern {group.pattern}"
    rows = _rows_of(parameter, group)
    return Route(
        name,
        parameter,
        optimizer,
        "; ".join((reason, *_special(group, rows))),
        usual if group.decay is None else group.decay,
        rows,
        group.learning_rate_scale,
    )


def _special(group: ParameterGroup, rows: tuple[int, ...]) -> Iterator[str]:
    """What the table says of a group beside the optimizer."""
    if rows:
        yield f"{len(rows)} matrices of {_counted(rows)} rows"
    if group.learning_rate_scale != 1.0:
        yield f"{group.learning_rate_scale} times the learning rate"
    if group.gradient_clip is not None:
        yield f"gradient clipped to {group.gradient_clip} with its group"


def _default(name: str, parameter: Tensor) -> tuple[Optimizer, str]:
    special = next((part for part in name.split(".") if part in NOT_HIDDEN), None)
    if parameter.ndim < 2:
        return "adamw", "one number per channel"
    if name.endswith("bias"):
        return "adamw", "biases, one below the other"
    if not parameter.numel():
        return "adamw", "no elements"
    if special is not None:
        return "adamw", NOT_HIDDEN[special]
    if parameter.ndim > 2:
        return "adamw", f"{parameter.ndim} dimensions are no matrix"
    return "muon", "hidden matrix"


def _rows_of(parameter: Tensor, group: ParameterGroup) -> tuple[int, ...]:
    if group.heads is not None:
        return (parameter.shape[-2] // group.heads,) * group.heads
    return group.split


def _counted(rows: tuple[int, ...]) -> str:
    return str(rows[0]) if len(set(rows)) == 1 else " + ".join(map(str, rows))


def _type_problem(name: str, parameter: Tensor, *, masters: bool) -> str | None:
    if is_sharded(parameter):
        return (
            f"{name}: other ranks have other rows of it (fully_shard), and MuonClip updates whole matrices; take "
            "trimtab_trainer.optim.ShardedMuonClip, which puts them together for each update"
        )
    if parameter.dtype in MASTER_TYPES or (masters and parameter.is_floating_point()):
        return None
    if masters:
        return f"{name}: {parameter.dtype} must be a type of floating point"
    return f"{name}: {parameter.dtype} must be torch.float32, computed on in any type, or master_weights be set"


def _group_problems(name: str, parameter: Tensor, group: ParameterGroup | None) -> Iterator[str]:
    if group is None:
        return
    optimizer = group.optimizer or _default(name, parameter)[0]
    cut = bool(group.split) or group.heads is not None
    if optimizer == "adamw":
        if cut:
            yield f"{name}: split or heads (pattern {group.pattern!r}) is for Muon alone, and AdamW updates it"
        return
    if parameter.ndim not in {2, 3}:
        yield (
            f"{name}: Muon orthogonalises matrices and stacks of matrices; {parameter.ndim} dimensions "
            f"(pattern {group.pattern!r}) must go to adamw"
        )
        return
    if not parameter.numel():
        yield f"{name}: Muon has nothing to orthogonalise in it (pattern {group.pattern!r}): it has no elements"
        return
    rows = parameter.shape[-2]
    if group.split and sum(group.split) != rows:
        yield f"{name}: split (pattern {group.pattern!r}) adds up to {sum(group.split)} and must to its {rows} rows"
    if group.heads is not None and rows % group.heads:
        yield f"{name}: heads (pattern {group.pattern!r}): {group.heads} must divide its {rows} rows"
