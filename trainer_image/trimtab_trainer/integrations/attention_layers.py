"""Which modules of a model attend, what makes their logits, and how large those became in a step."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import torch
from torch import nn

from trimtab_trainer.fields import InvalidFields, raise_if_any
from trimtab_trainer.head_parameters import AttentionHeads
from trimtab_trainer.max_logits import AttentionTelemetry
from trimtab_trainer.optim import LogitRecorder, latent_projections, multihead_attention, separate_projections
from trimtab_trainer.optim.logit_recorder import Noted, measure_together

_OF_HEADS: Final = re.compile(r"(^|_)(q|k|qk|query|key)(_|$|norm|layernorm)")
"""Is in every name that models of Hugging Face have for what normalises the query and key of each head behind their
maps: `q_norm`, `key_layernorm`, `qk_norm`, `q_layer_norm`, …"""

_OF_LATENTS: Final = re.compile(r"(q|kv)_a_")
"""Begins the name of what normalises what they are compressed to: `q_a_layernorm`, `kv_a_layernorm`."""

_LATENT_DIMENSIONS: Final = ("num_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""What the modules of latent attention call the number of heads and the parts of each: content, rotary, value."""


def attention_layers(model: nn.Module) -> dict[str, AttentionHeads]:
    """Return what makes the logits of each layer that attends, by the name of its module, in the model's order.

    Known are `torch.nn.MultiheadAttention`, every module with linear maps `q_proj` and `k_proj` and a `head_dim`, as
    Llama and most models of Hugging Face have them (fewer key heads than query heads are grouped-query attention), and
    latent attention with the maps and dimensions of DeepSeek's.

    Raises:
        InvalidFields: a sentence for each kind of attention that is none of these, or for a model without any.
    """
    found: dict[str, AttentionHeads] = {}
    unknown: dict[str, list[str]] = {}
    modules = model.named_modules()  # pyright: ignore[reportUnknownVariableType] partly untyped
    for name, module in cast("Iterator[tuple[str, nn.Module]]", modules):
        if isinstance(module, nn.MultiheadAttention):
            found[name] = multihead_attention(name, module)
        elif (layer := _separate(name, module) or _latent(name, module)) is not None:
            found[name] = layer
        elif type(module).__name__.endswith("Attention") and next(module.parameters(), None) is not None:
            unknown.setdefault(type(module).__name__, []).append(name)
    # A module around one that is known is its wrapping.
    strange = {kind: left for kind, names in unknown.items() if (left := _without_known(names, found))}
    raise_if_any(
        f"model: {names[0]}{_more(names)}: {kind} has no linear maps q_proj and k_proj whose rows are the heads, so "
        "QK-Clip cannot scale them; take a model that has, or say in `attention` what makes its logits"
        for kind, names in strange.items()
    )
    if not found:
        raise InvalidFields(("model: nothing in it is known to attend; say in `attention` what makes its logits",))
    return found


class LogitWatch:
    """Notes the largest logits of some modules while they train, by hooks around their forward passes.

    Evaluation leaves no trace. What a module computes stays as it is, and its attention must be computed by
    `scaled_dot_product_attention` or `torch.nn.MultiheadAttention`. `threshold` is that of `LogitRecorder`.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, AttentionHeads], threshold: Callable[[], float]) -> None:
        """Begin to watch; raises InvalidFields for layers that attend in another way or differ in their heads."""
        raise_if_any(watch_problems(model, layers))
        self._modules = {name: model.get_submodule(name) for name in layers}
        self._recorders = {name: LogitRecorder(1, threshold) for name in layers}
        for recorder in self._recorders.values():
            recorder.measured_together = True
        for name, module in self._modules.items():
            module.register_forward_pre_hook(partial(_enter, self._recorders[name]))
            module.register_forward_hook(partial(_leave, self._recorders[name]), always_call=True)
        forward = ForwardPass(tuple(self._recorders.values()))
        model.register_forward_pre_hook(forward.begin)
        model.register_forward_hook(forward.end, always_call=True)

    def measure_exactly(self, *, exact: bool) -> None:
        """Say whether every head is measured exactly from now on, not only those above the threshold."""
        for recorder in self._recorders.values():
            recorder.exact = exact

    def take(self) -> AttentionTelemetry:
        """Return the largest logits [layers, heads] since the last call, of all micro-batches, and begin anew.

        Raises:
            InvalidFields: a layer was not seen to attend.
        """
        measure_together(tuple(self._recorders.values()))
        taken = [self._taken(name) for name in self._recorders]
        if not taken:
            return AttentionTelemetry(torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool))
        return AttentionTelemetry(
            max_logit=torch.cat([one.max_logit for one in taken]), exact=torch.cat([one.exact for one in taken])
        )

    def _taken(self, name: str) -> AttentionTelemetry:
        try:
            return self._recorders[name].take()
        except ValueError as error:
            kind = type(self._modules[name]).__name__
            problem = (
                f"model: {name}: {kind} was not seen to call scaled_dot_product_attention in training mode since its "
                "logits were last taken; call model.train() before the forward pass, have it call that, and give what "
                "take_logits returned to step as agreed_logits"
            )
            raise InvalidFields((problem,)) from error


class ForwardPass:
    """One forward pass of a whole model: one that breaks off takes along what was noted in it, in all layers."""

    def __init__(self, recorders: Sequence[LogitRecorder]) -> None:
        self._recorders = recorders
        self._before: list[Noted] | None = None

    def begin(self, module: nn.Module, _arguments: Any) -> None:
        """Behind an interrupted pass no hook was called: it ends here at the latest."""
        if torch.compiler.is_compiling():
            return  # no compiler follows what is done to a recorder from outside
        self._break_off()
        if module.training:
            self._before = [recorder.noted() for recorder in self._recorders]

    def end(self, _module: nn.Module, _arguments: Any, output: Any) -> None:
        """PyTorch calls this without an output behind an exception."""
        if torch.compiler.is_compiling():
            return
        if output is None:
            self._break_off()
        else:
            measure_together(self._recorders)
        self._before = None

    def _break_off(self) -> None:
        for recorder, before in zip(self._recorders, self._before or (), strict=False):
            recorder.abandon()
            recorder.put_back(before)


def watch_problems(model: nn.Module, layers: Mapping[str, AttentionHeads]) -> Iterator[str]:
    """Why the largest logits of these layers could not be noted, a sentence each."""
    modules = (model.get_submodule(name) for name in layers)
    ways = {str(getattr(getattr(module, "config", None), "_attn_implementation", "sdpa")) for module in modules}
    for way in sorted(ways - {"sdpa"}):
        yield f"model.config.attn_implementation: {way} keeps its logits to itself; build the model with sdpa"
    if len(counts := {layer.heads for layer in layers.values()}) > 1:
        yield f"model: its layers have {sorted(counts)} heads; largest logits need the same number in each"


def _enter(recorder: LogitRecorder, module: nn.Module, _arguments: Any) -> None:
    if not torch.compiler.is_compiling():
        # Behind what was interrupted from the keyboard, PyTorch calls no hook.
        recorder.abandon()
    if module.training:
        recorder.__enter__()


def _leave(recorder: LogitRecorder, module: nn.Module, _arguments: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        if module.training:
            recorder.__exit__(None, None, None)
    elif output is None:
        recorder.abandon()
    elif recorder.entered:
        recorder.__exit__(None, None, None)


def _separate(name: str, module: nn.Module) -> AttentionHeads | None:
    query, key = getattr(module, "q_proj", None), getattr(module, "k_proj", None)
    dimension = getattr(module, "head_dim", None)
    if type(query) is not nn.Linear or type(key) is not nn.Linear or not isinstance(dimension, int):
        return None
    return separate_projections(
        name,
        query,
        key,
        heads=query.out_features // dimension,
        key_heads=key.out_features // dimension,
        normalised=any(_normalises_heads(child, one) for child, one in module.named_children()),
    )


def _latent(name: str, module: nn.Module) -> AttentionHeads | None:
    """Norms of what queries and keys are compressed to lie before the maps that QK-Clip scales, and do no harm."""
    query = getattr(module, "q_b_proj", None) or getattr(module, "q_proj", None)
    key_value = getattr(module, "kv_b_proj", None)
    heads, content, rotary, value = (getattr(module, field, None) for field in _LATENT_DIMENSIONS)
    if type(query) is not nn.Linear or type(key_value) is not nn.Linear:
        return None
    if not (isinstance(heads, int) and isinstance(content, int) and isinstance(rotary, int) and isinstance(value, int)):
        return None
    layer = latent_projections(
        name,
        query,
        key_value,
        heads=heads,
        content_dimension=content,
        rotary_dimension=rotary,
        value_dimension=value,
    )
    norms = (child for child, one in module.named_children() if _normalises_heads(child, one))
    return replace(layer, normalised=any(not _OF_LATENTS.match(child) for child in norms))


def _normalises_heads(name: str, module: nn.Module) -> bool:
    norm = "norm" in name or "Norm" in type(module).__name__
    return norm and _OF_HEADS.search(name) is not None


def _without_known(names: Iterable[str], known: Iterable[str]) -> list[str]:
    return [name for name in names if not any(one.startswith(f"{name}.") for one in known)]


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
