"""The state a checkpoint holds, as flat names: copies of it, and its exchange for another one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from trimtab_contract.checkpoints import TensorDescription

from trimtab_trainer.distributed_tensors import own_part

FlatState = dict[str, Any]
"""Tensors and plain values under names such as `model.head.weight` and `optimizer.count`, in name order."""


class CountingOptimizer(Protocol):
    """What a checkpoint needs of an optimizer. `load_state_dict` copies, and changes nothing when it raises."""

    @property
    def count(self) -> int:
        """Updates made so far."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Nested mappings and lists of tensors and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Copy a state of the same structure."""
        ...


class Scaler(Protocol):
    """What a checkpoint needs of a loss scaler."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """The live tensors, under keys that never change."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The live state of one rank; `scaler` where a loss is scaled."""

    model: nn.Module
    optimizer: CountingOptimizer
    scaler: Scaler | None = None

    def flat(self) -> FlatState:
        """Every live tensor and plain value, in name order."""
        found: FlatState = {}
        _flatten("model", self.model.state_dict(), found)
        _flatten("optimizer", self.optimizer.state_dict(), found)
        _flatten("scaler", self._scaling(), found)
        return dict(sorted(found.items()))

    @torch.no_grad()
    def replace(self, flat: FlatState) -> None:
        """Copy another state of the same names, types and shapes into the live one.

        The optimizer comes first: it checks before it copies, and a model whose names and shapes fit cannot fail.
        """
        self.optimizer.load_state_dict(_rebuild("optimizer", self.optimizer.state_dict(), flat))
        for name, tensor in cast("Mapping[str, Tensor]", self.model.state_dict()).items():
            own_part(tensor).copy_(own_part(flat[f"model.{name}"]))
        for name, tensor in self._scaling().items():
            tensor.copy_(flat[f"scaler.{name}"])

    def _scaling(self) -> Mapping[str, Tensor]:
        return {} if self.scaler is None else self.scaler.state_dict()


def tensors_of(flat: FlatState) -> dict[str, Tensor]:
    """The tensors among the values, in the same order; a sharded one stands for the rows that this rank has."""
    return {name: value for name, value in flat.items() if isinstance(value, Tensor)}


def describe(flat: FlatState) -> dict[str, TensorDescription]:
    """Type and shape of every tensor, a sharded one's as a whole."""
    return {
        name: TensorDescription(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        for name, tensor in tensors_of(flat).items()
    }


def _flatten(name: str, value: Any, found: FlatState) -> None:
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            _flatten(f"{name}.{key}", item, found)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            _flatten(f"{name}.{index}", item, found)
    else:
        found[name] = value


def _rebuild(name: str, like: Any, flat: FlatState) -> Any:
    if isinstance(like, Mapping):
        return {key: _rebuild(f"{name}.{key}", item, flat) for key, item in cast("Mapping[Any, Any]", like).items()}
    if isinstance(like, (list, tuple)):
        return [_rebuild(f"{name}.{index}", item, flat) for index, item in enumerate(cast("Sequence[Any]", like))]
    return flat[name]
