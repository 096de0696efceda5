"""The largest logit of every head of any model that attends with functions of PyTorch's own."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trimtab_trainer.fields import at_least, raise_if_any
from trimtab_trainer.max_logits import AttentionTelemetry, RowBounds, measured_max_logits
from trimtab_trainer.max_logits.kernel_calls import KernelCall, seen_call
from trimtab_trainer.optim.attention_logits import (
    attention_logits,
    finite_where_nothing_is_seen,
    largest_logits,
    largest_of_nothing,
)
from trimtab_trainer.optim.multihead_logits import multihead_largest_logits
from trimtab_trainer.tensors import in_backward_pass, saved_tensors_are_hooked, withdraw_mode, without_autocast

_POSITIONAL: Final = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_ATTENTION: Final = (F.scaled_dot_product_attention, F.multi_head_attention_forward)


Noted = tuple[list[AttentionTelemetry], int]
"""What was seen so far: the numbers of each layer, and how many calls made them."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that is not measured yet."""

    call: int
    """Its number since the largest logits were last taken."""

    bounds: RowBounds
    lowest: float
    masked: bool
    exact: bool


class LogitRecorder(TorchFunctionMode):
    """While entered, attention leaves its largest logits here.

    What is seen is `scaled_dot_product_attention` and `torch.nn.MultiheadAttention`. Calls are taken for the layers in
    turn, so that the forward passes of several micro-batches end in one maximum for each head. What activation
    checkpointing computes again in the backward pass is not looked at. The attention itself is left as it is: PyTorch
    computes it with the kernel that it chooses, and where that one returns its log-sum-exp, the largest logits come
    nearly free. Attention of another kind is not seen: call `observe` for it.

    `threshold` says, at each entry, from which number on QK-Clip must know the largest logit itself, as
    `lambda: optimizer.lowest_threshold` does. For a head at or below it an upper bound will do, and costs still less.
    Without it, and while `exact` is true, every head is measured exactly; that changes no bit of a head above the
    threshold.

    While `measured_together` is true, what lies on a device is measured when it is asked for, or by `measure_together`:
    the recorders of one model then wait for the device once.

    An exception that leaves the block takes all that was noted in it along: a forward pass that broke off would shift
    the layers of the next one.
    """

    def __init__(self, layers: int, threshold: Callable[[], float] | None = None) -> None:
        """`layers` attend in each forward pass; raises InvalidFields unless that is one at least."""
        super().__init__()
        given = None if threshold is None or callable(threshold) else f"threshold: {threshold} must be a function"
        raise_if_any(
            (at_least("layers", layers, 1), given and f"{given} that returns it, as lambda: optimizer.lowest_threshold")
        )
        self.exact = False
        self.measured_together = False
        self._layers = layers
        self._threshold = threshold
        self._lowest = -math.inf
        self._entered = False
        self._noted: list[AttentionTelemetry] = []
        self._calls = 0
        self._waiting: list[_Waiting] = []
        self._before: Noted = [], 0

    def max_logits(self) -> Tensor:
        """Return the largest logits [layers, heads] since the last call, or upper bounds, and begin anew.

        Raises:
            ValueError: attention was not computed a whole number of times in every layer; begins anew, too.
        """
        return self.take().max_logit

    def take(self) -> AttentionTelemetry:
        """Return the same, and which of them are the largest logits themselves; raises ValueError likewise."""
        noted, calls = self.noted()
        self.put_back(([], 0))
        if calls == 0:
            raise ValueError(
                f"layers: {self._layers} layers were not seen to attend since their largest logits were last taken; "
                "take them once, and keep what take or max_logits returns"
            )
        if calls % self._layers:
            raise ValueError(
                f"layers: {self._layers} layers attended {calls} times in all; each must do so as often as the "
                "others, by scaled_dot_product_attention or with a call of observe"
            )
        return AttentionTelemetry(
            max_logit=torch.stack([one.max_logit for one in noted]), exact=torch.stack([one.exact for one in noted])
        )

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> None:
        """Note the attention of the next layer, exactly and from the whole product; see `largest_logits`."""
        self._note_exact(largest_logits(query, key, attn_mask=attn_mask, is_causal=is_causal, scale=scale))

    @property
    def entered(self) -> bool:
        """Whether it sees attention now."""
        return self._entered

    def abandon(self) -> None:
        """See no more, and forget what was seen since the beginning: behind what left the block without a word."""
        if self._entered:
            withdraw_mode(self)
            self._entered = False
            self.put_back(self._before)

    def noted(self) -> Noted:
        """What was seen since `take`, for `put_back`."""
        self._measure_waiting()
        return list(self._noted), self._calls

    def put_back(self, noted: Noted) -> None:
        """Have seen what `noted` once returned, and nothing since."""
        self._noted, self._calls, self._waiting = list(noted[0]), noted[1], []

    def __enter__(self) -> "LogitRecorder":
        """Begin to see attention; raises RuntimeError while it does."""
        if self._entered:
            raise RuntimeError("LogitRecorder: is entered already; one forward pass is within one block")
        self._entered = True
        self._before = self.noted()
        self._lowest = -math.inf if self._threshold is None else self._threshold()
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See no more; behind an exception, forget what was seen since the beginning."""
        super().__exit__(kind, error, trace)  # pyright: ignore[reportUnknownMemberType] untyped
        self._entered = False
        if kind is not None:
            self.put_back(self._before)
        elif not self.measured_together:
            self._measure_waiting()

    def __getstate__(self) -> dict[str, Any]:
        # A copy goes with a copied model, whose updates are not those that the threshold is of.
        return self.__dict__ | {"_threshold": None, "_entered": False, "_waiting": []}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass everything on, and note attention."""
        given = kwargs or {}
        if func not in _ATTENTION:
            return func(*args, **given)
        if torch.compiler.is_compiling():
            # A compiler follows no call of a kernel.
            self._note_exact(_whole_product(func, args, given))
            return func(*args, **given)
        if in_backward_pass():
            return func(*args, **given)
        output, call = seen_call(func, args, given)
        nothing = None if call is None else largest_of_nothing(call.query, call.key)
        if nothing is not None:
            self._note_exact(nothing)
        elif call is None:
            self._note_exact(_whole_product(func, args, given))
        else:
            self._note_bounds(_with_mask_of_booleans(call, func, args, given))
        return output

    def _note_bounds(self, call: KernelCall) -> None:
        logits = attention_logits(
            call.query, call.key, attn_mask=call.attn_mask, is_causal=call.is_causal, scale=call.scale
        )
        bounds = RowBounds(logits, call.log_sum_exp)
        self._waiting.append(_Waiting(self._calls, bounds, self._lowest, call.attn_mask is not None, self.exact))
        self._calls += 1
        # What the graph keeps in any case costs nothing to keep, and a device is waited for once in a forward pass.
        kept = call.query.requires_grad and not saved_tensors_are_hooked()
        if call.query.device.type == "cpu" or not kept:
            self._measure_waiting()

    def _measure_waiting(self) -> None:
        measure_together((self,))

    def _note_exact(self, max_logit: Tensor) -> None:
        self._note(AttentionTelemetry(max_logit, torch.ones_like(max_logit, dtype=torch.bool)))

    def _note(self, found: AttentionTelemetry) -> None:
        self._measure_waiting()
        self.keep(self._calls, found)
        self._calls += 1

    def withdraw_waiting(self) -> "list[_Waiting]":
        """What is not measured yet, for whoever measures it now and calls `keep`."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def keep(self, call: int, found: AttentionTelemetry) -> None:
        """Keep what was found in a call, by its number; calls come in their order."""
        layer = call % self._layers
        if call < self._layers:
            self._noted.append(found)
        else:
            self._noted[layer] = _larger(self._noted[layer], found)


def measure_together(recorders: Sequence[LogitRecorder]) -> None:
    """Measure what waits in any of `recorders`: a device is waited for once, and again for heads near a threshold."""
    waiting = [(recorder, one) for recorder in recorders for one in recorder.withdraw_waiting()]
    if not waiting:
        return
    bounds, exact = [one.bounds for _, one in waiting], any(one.exact for _, one in waiting)
    lowest = min(one.lowest for _, one in waiting)
    with torch.no_grad(), without_autocast(bounds[0].log_sum_exp.device.type):
        measured = measured_max_logits(bounds, lowest, exact=exact)
    for (recorder, one), (found, known) in zip(waiting, measured, strict=True):
        max_logit = finite_where_nothing_is_seen(found) if one.masked else found
        # What opens no gate then is no number, and known as well as it can be.
        is_known = torch.ones_like(known) if lowest == -math.inf else known
        recorder.keep(one.call, AttentionTelemetry(max_logit, is_known))


def _larger(one: AttentionTelemetry, other: AttentionTelemetry) -> AttentionTelemetry:
    """The larger of two numbers of each head; it is exact if one is that is not the smaller."""
    # A comparison with what is not a number is false.
    kept, taken = ~(one.max_logit < other.max_logit), ~(other.max_logit < one.max_logit)
    return AttentionTelemetry(torch.maximum(one.max_logit, other.max_logit), (one.exact & kept) | (other.exact & taken))


def _whole_product(func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
    if func is F.multi_head_attention_forward:
        return multihead_largest_logits(args, given)
    named = _named(args, given)
    return largest_logits(
        cast("Tensor", named["query"]),
        cast("Tensor", named["key"]),
        attn_mask=named.get("attn_mask"),
        is_causal=bool(named.get("is_causal", False)),
        scale=named.get("scale"),
    )


def _with_mask_of_booleans(call: KernelCall, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> KernelCall:
    """The call with its mask as the caller has it, where it only hides: under such a mask less is computed."""
    if call.attn_mask is None or func is not F.scaled_dot_product_attention:
        return call
    mask = _named(args, given)["attn_mask"]
    return replace(call, attn_mask=mask) if mask.dtype == torch.bool else call


def _named(args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(_POSITIONAL, args, strict=False)) | given
