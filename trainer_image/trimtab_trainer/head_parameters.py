"""What the model tells QK-Clip: which parameters make the logits of each attention head, and in which role.

A head's logit is the scaled product of its query and its key. How a factor on the logit may be shared out among the
weights depends on who else uses them, so each parameter says what part of the product it makes:

* `multiHead` (QUERY, KEY): the root of the factor on both.
* `groupedQuery` (QUERY, SHARED_KEY): the whole factor on the query, for other heads use the key too.
* `latent` (CONTENT_QUERY, CONTENT_KEY, ROTARY_QUERY, SHARED_KEY): the root of the factor on both contents, the whole
  factor on the rotary query.

A SHARED_KEY stays as it is, but under the rules for grouped queries that say otherwise; see `optim.qk_clip`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from torch import Tensor

from trimtab_trainer.distributed_tensors import is_sharded

AttentionKind = Literal["multiHead", "groupedQuery", "latent"]


Cut = Callable[[Tensor], Tensor]
"""Takes a view of some elements of a whole parameter."""


class LogitPart(StrEnum):
    """What of a logit a parameter makes."""

    QUERY = "query"
    KEY = "key"
    CONTENT_QUERY = "contentQuery"
    CONTENT_KEY = "contentKey"
    ROTARY_QUERY = "rotaryQuery"
    SHARED_KEY = "sharedKey"
    """The key of several heads: of a group, or the rotary key that all heads share."""


LOGIT_PARTS: Final[Mapping[AttentionKind, tuple[LogitPart, ...]]] = {
    "multiHead": (LogitPart.QUERY, LogitPart.KEY),
    "groupedQuery": (LogitPart.QUERY, LogitPart.SHARED_KEY),
    "latent": (LogitPart.CONTENT_QUERY, LogitPart.CONTENT_KEY, LogitPart.ROTARY_QUERY, LogitPart.SHARED_KEY),
}
"""Of each kind the parts that a logit is made of. What is never scaled need not be named: a SHARED_KEY."""


@dataclass(frozen=True, slots=True)
class HeadParameter:
    """A weight [heads * rows, inputs] or bias [heads * rows] whose consecutive blocks of rows belong to one head each.

    Where other rows lie between those of two heads, it is a view [heads, rows, inputs] or [heads, rows] of a parameter.
    `name` is the parameter's name in the model; `heads` is the number of blocks, for a SHARED_KEY that of the keys.
    Of a parameter whose other rows are on other ranks (`fully_shard`) there is no such view; `cut` makes it of the
    whole.
    """

    name: str
    parameter: Tensor
    part: LogitPart
    heads: int
    cut: Cut | None = None

    @classmethod
    def of(cls, name: str, parameter: Tensor, part: LogitPart, heads: int, cut: Cut) -> "HeadParameter":
        """The elements that `cut` takes of a parameter: the view of them, or, where it is sharded, how to make it."""
        sharded = cls(name, parameter, part, heads, cut)
        return sharded if is_sharded(parameter) else sharded.resolved()

    def resolved(self, whole: Tensor | None = None) -> "HeadParameter":
        """The same with the view that `cut` makes of the parameter, or of `whole`, which stands in its place."""
        parameter = self.parameter if whole is None else whole
        return replace(self, parameter=parameter if self.cut is None else self.cut(parameter), cut=None)


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """One attention layer: its kind, its number of query heads, and every parameter that makes its logits."""

    kind: AttentionKind
    heads: int
    parameters: tuple[HeadParameter, ...]
    normalised: bool = False
    """Whether the query and key of each head are normalised after these parameters, so that scaling them is in vain."""

    def of(self, part: LogitPart) -> tuple[HeadParameter, ...]:
        """The parameters (weight, then bias if any) that make one part."""
        return tuple(parameter for parameter in self.parameters if parameter.part == part)
