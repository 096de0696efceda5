"""The shape of the transformer."""

from dataclasses import dataclass, field

from trimtab_trainer.fields import at_least, positive, raise_if_any, within
from trimtab_trainer.model.attention_config import AttentionConfig
from trimtab_trainer.model.experts_config import ExpertsConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """Shape of a decoder-only transformer.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    vocab_size: int = 256
    """Number of distinct tokens; 256 is one per byte."""

    width: int = 128
    """Model dimension: `heads` times an even head dimension, except for latent attention."""

    layers: int = 4
    """Number of transformer blocks."""

    heads: int = 4
    """Attention heads per layer."""

    sequence: int = 128
    """Longest window, in tokens."""

    mlp_ratio: int = 4
    """Hidden width of the MLP as a multiple of `width`."""

    dropout: float = 0.0
    """Probability that an element of a residual branch is dropped, in [0, 1)."""

    bias: bool = False
    """Whether the linear layers (not the head) have biases."""

    tied_head: bool = False
    """Whether the head reuses the embedding matrix."""

    rotary_base: float = 10_000.0
    """Base of the rotary frequencies."""

    norm_epsilon: float = 1e-6
    """Added to the mean square in RMSNorm."""

    attention: AttentionConfig = field(default_factory=AttentionConfig)
    """Which attention every layer has."""

    experts: ExpertsConfig | None = None
    """The mixture of experts in the place of every layer's MLP, if there is one."""

    activation_checkpointing: bool = False
    """Whether each block computes its forward pass again in the backward pass, which saves memory for time."""

    def __post_init__(self) -> None:
        raise_if_any(
            (
                at_least("vocab_size", self.vocab_size, 2),
                at_least("width", self.width, 1),
                at_least("layers", self.layers, 1),
                at_least("heads", self.heads, 1),
                at_least("sequence", self.sequence, 1),
                at_least("mlp_ratio", self.mlp_ratio, 1),
                within("dropout", self.dropout, 0.0, 1.0),
                positive("rotary_base", self.rotary_base),
                positive("norm_epsilon", self.norm_epsilon),
                *self._attention_problems(),
            )
        )

    def _attention_problems(self) -> tuple[str | None, ...]:
        return () if self.width < 1 or self.heads < 1 else self.attention.problems(self.width, self.heads)

    @property
    def head_dimension(self) -> int:
        """Dimensions of one attention head, except for latent attention."""
        return self.width // self.heads

    @property
    def rotary_dimension(self) -> int:
        """Dimensions of a head that rotary positions turn."""
        return self.attention.rotary_dimension or self.head_dimension
