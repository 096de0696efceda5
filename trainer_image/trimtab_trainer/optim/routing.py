"""Which optimizer updates which parameter."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from trimtab_trainer.fields import raise_if_any

Optimizer = Literal["muon", "adamw"]

NOT_HIDDEN: Final = frozenset({"embedding", "head"})
"""Modules whose matrices look up or score tokens: their rows are not directions of one linear map."""

MASTER_TYPES: Final = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Route:
    """One parameter and the optimizer that updates it."""

    name: str
    parameter: Tensor
    optimizer: Optimizer


def route_parameters(named_parameters: Iterable[tuple[str, Tensor]]) -> tuple[Route, ...]:
    """Send the hidden matrices to Muon; embeddings, head, gains and biases to AdamW.

    Raises:
        InvalidFields: a parameter is not float32 or float64 (in bfloat16 small factors change nothing).
    """
    parameters = dict(named_parameters)
    raise_if_any(_type_problem(name, parameter) for name, parameter in parameters.items())
    return tuple(Route(name, parameter, _optimizer_of(name, parameter)) for name, parameter in parameters.items())


def routed_to(routes: Iterable[Route], optimizer: Optimizer) -> Mapping[str, Tensor]:
    """Return the parameters of one optimizer by name, in order."""
    return {route.name: route.parameter for route in routes if route.optimizer == optimizer}


def routing_table(routes: Iterable[Route]) -> str:
    """Return one line per parameter: name, shape, optimizer."""
    rows = [(route.name, "x".join(map(str, route.parameter.shape)), route.optimizer) for route in routes]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {shape:>{widths[1]}}  {kind}" for name, shape, kind in rows)


def _optimizer_of(name: str, parameter: Tensor) -> Optimizer:
    hidden = NOT_HIDDEN.isdisjoint(name.split("."))
    return "muon" if parameter.ndim == 2 and hidden else "adamw"


def _type_problem(name: str, parameter: Tensor) -> str | None:
    if parameter.dtype in MASTER_TYPES:
        return None
    return f"{name}: {parameter.dtype} must be torch.float32 (the master copy), computed on in any type"
