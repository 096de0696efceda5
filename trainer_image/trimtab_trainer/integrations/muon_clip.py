"""MuonClip as an optimizer of PyTorch, for the loops of frameworks; QK-Clip's logits come by themselves."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, cast, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab_trainer.collectives import GroupPeers
from trimtab_trainer.fields import InvalidFields, raise_if_any
from trimtab_trainer.head_parameters import AttentionHeads
from trimtab_trainer.integrations.attention_layers import LogitWatch, attention_layers, watch_problems
from trimtab_trainer.max_logits import AttentionTelemetry
from trimtab_trainer.optim import MuonClip, MuonClipConfig, StepTelemetry, parameter_groups, routing_table
from trimtab_trainer.optim.muon_clip import STATE_VERSION
from trimtab_trainer.optim.shared_results import Peers


class MuonClipOptimizer(Optimizer):
    """MuonClip over all parameters of a model that require a gradient; embeddings go to AdamW under whatever name.

    There are two groups, Muon's and AdamW's, so that any schedule of PyTorch's sets their rates. The largest logits are
    those of the forward passes in training mode since the last update, over all processes of the default group: by its
    own batches alone each replica would clip otherwise. Where no parameter has a gradient, nothing is updated and no
    head clipped.

    `attention` tells what makes the logits of each module of the model that attends, by the module's name.

    Raises:
        InvalidFields: one sentence for each parameter, group and layer that cannot be served.
    """

    def __init__(
        self,
        model: nn.Module,
        config: MuonClipConfig | None = None,
        attention: Callable[[nn.Module], Mapping[str, AttentionHeads]] = attention_layers,
    ) -> None:
        self._trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
        settings = _with_embeddings(config or MuonClipConfig(), model, self._trained)
        own_clips = tuple(_clip_problems(settings))

        def build() -> MuonClip:
            return MuonClip(self._trained.items(), list(attention(model).values()), settings)

        self._build = build
        layers = attention(model)
        try:
            self._muon_clip = build()
        except InvalidFields as error:
            raise InvalidFields((*own_clips, *error.problems, *watch_problems(model, layers))) from error
        raise_if_any(own_clips)
        self._watch = LogitWatch(model, layers, lambda: self.lowest_threshold)
        self._places = self._where()
        self._peers: Peers | None = None
        self.agreed_logits: Tensor | None = None
        """The largest logits [layers, heads] over all processes, for the next update; None where `step` shall ask."""
        self.telemetry: StepTelemetry | None = None
        """What the last update did."""
        groups = [
            {
                "params": [route.parameter for route in self._muon_clip.routes if route.optimizer == kind],
                "lr": rate,
                "updates": 0,
            }
            for kind, rate in (("muon", settings.muon_lr), ("adamw", settings.adamw_lr))
        ]
        super().__init__(groups, {})
        self._show_state()

    @property
    def routing(self) -> str:
        """One line for each parameter: which optimizer updates it, and why."""
        return routing_table(self._muon_clip.routes)

    @property
    def muon_clip(self) -> MuonClip:
        """What updates the parameters as they lie now."""
        return self._muon_clip

    @property
    def lowest_threshold(self) -> float:
        """See `MuonClip.lowest_threshold`."""
        self._recount()
        return self._muon_clip.lowest_threshold

    def measure_exactly(self, *, exact: bool) -> None:
        """Say whether the largest logit of every head is measured from now on, not only where one may be clipped.

        It changes no bit of an update.
        """
        self._watch.measure_exactly(exact=exact)

    def divide(self, peers: Peers) -> None:
        """See `MuonClip.divide`."""
        self._follow()
        self._peers = peers
        self._muon_clip.divide(peers)

    def take_logits(self) -> AttentionTelemetry:
        """Return this process's largest logits [layers, heads] since the last update; see `LogitWatch.take`.

        Of a head that is at or below the thresholds of the next update they may be upper bounds.
        """
        return self._watch.take()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters from their gradients, then clip heads; raises NonFiniteLogitsError, InvalidFields."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        muon, adamw = self.param_groups
        if any(parameter.grad is not None for group in (muon, adamw) for parameter in group["params"]):
            self._follow()
            self._recount()
            inner, settings = self._muon_clip, self._muon_clip.config
            inner.set_lr(muon["lr"] / settings.muon_lr, adamw["lr"] / settings.adamw_lr)
            device = next(iter(self._trained.values())).device
            agreed, self.agreed_logits = self.agreed_logits, None
            logits = (
                _over_all_processes(self.take_logits().max_logit.to(device)) if agreed is None else agreed.to(device)
            )
            self.telemetry = inner.step(logits)
            muon["updates"] = adamw["updates"] = inner.count
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into this one, whose tensors stay the same; raises InvalidFields as `MuonClip` does."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._trained.items()}
        parameters = [cast("Tensor", one) for group in self.param_groups for one in group["params"]]
        kinds: dict[str, dict[str, Tensor]] = {}
        for number, parameter in enumerate(parameters):
            for kind, tensor in state_dict["state"].get(number, {}).items():
                kinds.setdefault(kind, {})[names[parameter]] = tensor
        count = state_dict["param_groups"][0].get("updates")
        self._muon_clip.load_state_dict({"version": STATE_VERSION, "count": count, **kinds})
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})

    def _follow(self) -> None:
        """Take hold of the parameters anew where a framework has moved their elements since, as `Module.to` does."""
        if self._where() == self._places:
            return
        moved = self._build()
        moved.load_state_dict(self._muon_clip.state_dict())
        self._muon_clip, self._places = moved, self._where()
        if self._peers is not None:
            moved.divide(self._peers)
        self._show_state()

    def _recount(self) -> None:
        """Take the number of updates from the groups, in which a framework restores it."""
        inner, updates = self._muon_clip, self.param_groups[0]["updates"]
        if inner.count != updates:
            inner.load_state_dict({**inner.state_dict(), "count": updates})

    def _where(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._trained.values()]

    def _show_state(self) -> None:
        for kind, tensors in self._muon_clip.tensors().items():
            for name, tensor in tensors.items():
                self.state[self._trained[name]][kind] = tensor


def _over_all_processes(logits: Tensor) -> Tensor:
    """The largest of every process."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 and logits.numel():
        GroupPeers().max(logits)
    return logits


def _clip_problems(config: MuonClipConfig) -> Iterator[str]:
    """A bound that nobody would obey: the loop clips all gradients together, before this optimizer sees them."""
    for number, group in enumerate(config.groups):
        if group.gradient_clip is not None:
            yield (
                f"groups[{number}].gradient_clip: {group.gradient_clip} is not supported: the loops of frameworks clip "
                "all gradients together; take it out, and in a loop of your own clip by GradientClipping"
            )


def _with_embeddings(config: MuonClipConfig, model: nn.Module, trained: Mapping[str, Tensor]) -> MuonClipConfig:
    """The settings, with groups for what is special in the model and trained, and no group of theirs speaks of."""
    left = [name for name in trained if not any(fnmatchcase(name, group.pattern) for group in config.groups)]
    found = [group for group in parameter_groups(model) if any(fnmatchcase(name, group.pattern) for name in left)]
    return replace(config, groups=(*config.groups, *found))
