"""The mixture of experts of a model."""

from dataclasses import dataclass

from trimtab_trainer.fields import at_least, positive, raise_if_any, within


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsConfig:
    """A mixture of experts in the place of every layer's MLP.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    count: int
    """Experts per layer."""

    top_k: int = 2
    """Experts that each token is sent to."""

    mlp_ratio: int | None = None
    """Hidden width of an expert as a multiple of the model's width; that of the model if nothing is given."""

    capacity_factor: float | None = None
    """An expert takes at most so many times its even share of a window's tokens, the earliest ones; all that are sent
    to it if nothing is given."""

    balance_loss: float = 0.01
    """Weight of the loss that spreads the tokens of a window evenly (arXiv 2101.03961, section 2.2)."""

    z_loss: float = 0.001
    """Weight of the loss that keeps the router's logits small (arXiv 2202.08906, section 3.2)."""

    def __post_init__(self) -> None:
        ratio, factor = self.mlp_ratio, self.capacity_factor
        raise_if_any(
            (
                at_least("count", self.count, 2),
                at_least("top_k", self.top_k, 1),
                f"top_k: {self.top_k} must be at most count ({self.count})" if self.top_k > self.count >= 2 else None,
                None if ratio is None else at_least("mlp_ratio", ratio, 1),
                None if factor is None else positive("capacity_factor", factor),
                within("balance_loss", self.balance_loss, 0.0, float("inf")),
                within("z_loss", self.z_loss, 0.0, float("inf")),
            )
        )
