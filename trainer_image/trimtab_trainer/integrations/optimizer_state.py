"""The state of a PyTorch optimizer and its schedule, complete before the first step and restored in place."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trimtab_trainer.fields import raise_if_any

STEP = "step"
"""How optimizers of PyTorch call their count of updates, the only thing that a first update finds at 0 and leaves at
1."""


class ResumableOptimizer:
    """What a checkpoint holds of an optimizer and its schedule.

    Optimizers of PyTorch make their state in the first update, and a checkpoint of the state before it would have other
    names. So the state is made at once, by an update that changes nothing.

    Raises:
        InvalidFields: one sentence for each thing that a checkpoint could not hold.
    """

    def __init__(self, optimizer: Optimizer, scheduler: LRScheduler | None, model: nn.Module) -> None:
        self._optimizer, self._scheduler = optimizer, scheduler
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        raise_if_any(self._problems())
        if not optimizer.state:
            raise_if_any(_made_at_once(optimizer, self._names))
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        """The count of updates, the live tensors of each parameter, settings of groups, and the schedule."""
        return {
            "count": self.count,
            "state": {self._names[parameter]: dict(own) for parameter, own in _states(self._optimizer)},
            "groups": [_settings(group) for group in self._optimizer.param_groups],
            "schedule": {} if self._scheduler is None else self._scheduler.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a state of the same structure into the live one."""
        for parameter, own in _states(self._optimizer):
            for key, value in state["state"][self._names[parameter]].items():
                if isinstance(own[key], Tensor):
                    own[key].copy_(value)
                else:
                    own[key] = value
        for group, settings in zip(self._optimizer.param_groups, state["groups"], strict=True):
            group.update({key: _like(group[key], value) for key, value in settings.items()})
        if self._scheduler is not None:
            self._scheduler.load_state_dict(dict(state["schedule"]))
        self.count = state["count"]

    def _problems(self) -> Iterator[str]:
        groups = self._optimizer.param_groups
        if any(parameter not in self._names for group in groups for parameter in group["params"]):
            yield "optimizer: it updates a parameter that is not the model's; give it parameters of the model only"
        if any(isinstance(group["lr"], Tensor) for group in groups):
            yield "optimizer: its learning rate is a tensor; give it a number"


def _made_at_once(optimizer: Optimizer, names: Mapping[Tensor, str]) -> Iterator[str]:
    """Make the state by an update with gradients and a learning rate of zero; tells what such an update changes."""
    rates = [group["lr"] for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter in parameters:
        parameter.grad = None
    for parameter, own in _states(optimizer):
        for key, value in own.items():
            if key == STEP:
                own[key] = value.zero_() if isinstance(value, Tensor) else 0
            elif bool(torch.as_tensor(0 if value is None else value).count_nonzero()):
                kind = type(optimizer).__name__
                yield f"optimizer: {kind} starts {names[parameter]} with {key} other than 0, which is not supported"


def _states(optimizer: Optimizer) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """The state of each parameter that has one, in the order of the groups."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in optimizer.state:
                yield parameter, cast("dict[str, Any]", optimizer.state[parameter])


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _like(live: object, value: Any) -> Any:
    """A checkpoint returns tuples as lists."""
    return tuple(value) if isinstance(live, tuple) else value
