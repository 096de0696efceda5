"""The largest logit of every head of any model that attends with functions of PyTorch's own."""

from types import TracebackType
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trimtab_trainer.fields import at_least, raise_if_any
from trimtab_trainer.optim.attention_logits import largest_logits
from trimtab_trainer.optim.multihead_logits import multihead_largest_logits

_POSITIONAL: Final = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class LogitRecorder(TorchFunctionMode):
    """While entered, attention leaves its largest logits here.

    What is seen is `scaled_dot_product_attention` and `torch.nn.MultiheadAttention`.

    Enter it around the forward pass alone: activation checkpointing attends again in the backward pass. Calls are
    taken for the layers in turn, so that the forward passes of several micro-batches end in one maximum for each head.
    The attention itself is left as it is. Attention of another kind is not seen: call `observe` for it.

    An exception that leaves the block takes all that was noted in it along: a forward pass that broke off would shift
    the layers of the next one.
    """

    def __init__(self, layers: int) -> None:
        """`layers` attend in each forward pass; raises InvalidFields unless that is one at least."""
        super().__init__()
        raise_if_any((at_least("layers", layers, 1),))
        self._layers = layers
        self._maxima: list[Tensor] = []
        self._calls = 0
        self._before: tuple[list[Tensor], int] = ([], 0)

    def max_logits(self) -> Tensor:
        """Return the largest logits [layers, heads] since the last call, and begin anew.

        Raises:
            ValueError: attention was not computed a whole number of times in every layer; begins anew, too.
        """
        maxima, calls = self._maxima, self._calls
        self._maxima, self._calls = [], 0
        if calls == 0 or calls % self._layers:
            raise ValueError(
                f"layers: {self._layers} layers attended {calls} times in all; each must do so as often as the "
                "others, by scaled_dot_product_attention or with a call of observe"
            )
        return torch.stack(maxima)

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> None:
        """Note the attention of the next layer; see `largest_logits`."""
        self._note(largest_logits(query, key, attn_mask=attn_mask, is_causal=is_causal, scale=scale))

    def _note(self, maximum: Tensor) -> None:
        layer = self._calls % self._layers
        if self._calls < self._layers:
            self._maxima.append(maximum)
        else:
            self._maxima[layer] = torch.maximum(self._maxima[layer], maximum)
        self._calls += 1

    def __enter__(self) -> "LogitRecorder":
        """Begin to see attention."""
        self._before = list(self._maxima), self._calls
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See no more; behind an exception, forget what was seen since the beginning."""
        super().__exit__(kind, error, trace)  # pyright: ignore[reportUnknownMemberType] untyped
        if kind is not None:
            self._maxima, self._calls = self._before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass everything on, and note attention."""
        given = kwargs or {}
        if func is F.scaled_dot_product_attention:
            named = dict(zip(_POSITIONAL, args, strict=False)) | given
            self.observe(
                cast("Tensor", named["query"]),
                cast("Tensor", named["key"]),
                attn_mask=named.get("attn_mask"),
                is_causal=bool(named.get("is_causal", False)),
                scale=named.get("scale"),
            )
        elif func is F.multi_head_attention_forward:
            self._note(multihead_largest_logits(args, given))
        return func(*args, **given)
