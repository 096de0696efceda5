"""Which attention a model has."""

from dataclasses import dataclass
from typing import Final

from trimtab_trainer.fields import at_least, raise_if_any
from trimtab_trainer.head_parameters import AttentionKind

_LATENT_FIELDS: Final = ("key_value_rank", "content_dimension", "rotary_dimension", "value_dimension")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionConfig:
    """Attention of every layer: how queries, keys and values are made, and what a query sees.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    kind: AttentionKind = "multiHead"
    """`multiHead`; `groupedQuery`, where several query heads share a key head (arXiv 2305.13245); or `latent`, where
    keys and values come from one small vector and a rotary key that all heads share (DeepSeek-V2, arXiv 2405.04434)."""

    key_value_heads: int | None = None
    """Key and value heads of `groupedQuery`; must divide `heads`."""

    query_rank: int | None = None
    """Dimension that `latent` compresses queries to; without it they are made from the input itself."""

    key_value_rank: int | None = None
    """Dimension that `latent` compresses keys and values to."""

    content_dimension: int | None = None
    """Dimensions of a `latent` head that know no position."""

    rotary_dimension: int | None = None
    """Dimensions of a `latent` head that rotary positions turn; even."""

    value_dimension: int | None = None
    """Dimensions of a `latent` head's value."""

    window: int | None = None
    """A token sees at most so many tokens, itself included; all earlier ones if nothing is given."""

    bias: bool = False
    """Whether queries, keys and values have biases though the other linear layers may have none."""

    qk_norm: bool = False
    """Whether queries and keys of each head are normalised. QK-Clip would do nothing then and must be off."""

    sinks: bool = False
    """Whether each head has a learned logit that every token sees and that has no value (attention sink)."""

    def __post_init__(self) -> None:
        raise_if_any(
            (
                *self._grouped_problems(),
                *(self._latent_problem(name) for name in _LATENT_FIELDS),
                self._only_of("latent", "query_rank"),
                None if self.query_rank is None else at_least("query_rank", self.query_rank, 1),
                self._rotary_problem(),
                None if self.window is None else at_least("window", self.window, 1),
                "qk_norm: not with latent attention, which normalises what keys are made from"
                if self.qk_norm and self.kind == "latent"
                else None,
            )
        )

    def problems(self, width: int, heads: int) -> tuple[str | None, ...]:
        """What is wrong with this attention in a model of `width` and `heads`, both at least 1."""
        return (self._head_dimension_problem(width, heads), self._division_problem(heads))

    @property
    def latent_dimensions(self) -> tuple[int, int, int]:
        """Of a `latent` head: content, rotary, value."""
        return self.content_dimension or 0, self.rotary_dimension or 0, self.value_dimension or 0

    def _head_dimension_problem(self, width: int, heads: int) -> str | None:
        if self.kind == "latent" or width % (2 * heads) == 0:
            return None
        return (
            f"width: {width} must be a multiple of 2 x heads ({2 * heads}), "
            "because rotary positions turn pairs of a head's dimensions"
        )

    def _division_problem(self, heads: int) -> str | None:
        shared = self.key_value_heads
        if self.kind != "groupedQuery" or shared is None or shared < 1 or heads % shared == 0:
            return None
        return f"attention.key_value_heads: {shared} must divide heads ({heads})"

    def _grouped_problems(self) -> tuple[str | None, ...]:
        shared = self.key_value_heads
        if self.kind == "groupedQuery" and shared is None:
            return ("key_value_heads: missing; groupedQuery attention needs it",)
        return (
            self._only_of("groupedQuery", "key_value_heads"),
            None if shared is None else at_least("key_value_heads", shared, 1),
        )

    def _latent_problem(self, name: str) -> str | None:
        value: int | None = getattr(self, name)
        if self.kind == "latent":
            return f"{name}: missing; latent attention needs it" if value is None else at_least(name, value, 1)
        return self._only_of("latent", name)

    def _only_of(self, kind: AttentionKind, name: str) -> str | None:
        if self.kind == kind or getattr(self, name) is None:
            return None
        return f"{name}: only {kind} attention has it, not {self.kind}"

    def _rotary_problem(self) -> str | None:
        dimension = self.rotary_dimension
        if dimension is None or dimension < 1 or dimension % 2 == 0:
            return None
        return f"rotary_dimension: {dimension} must be even, because rotary positions turn pairs of dimensions"
