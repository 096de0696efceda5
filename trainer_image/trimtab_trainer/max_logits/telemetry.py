"""What is known of the largest logits of a step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionTelemetry:
    """Largest logit of every head, [layers, heads], detached.

    `max_logit` is the maximum itself where `exact` is true, otherwise an upper bound.
    """

    max_logit: Tensor
    exact: Tensor

    @property
    def record_name(self) -> str:
        """The name under which `max_logit` may be published: a bound is called a bound."""
        return record_name(exact=bool(self.exact.all()))


def record_name(*, exact: bool) -> str:
    """The name of largest logits in a record, which are exact in every head or else bounds in some."""
    return "qk_max_logit" if exact else "qk_max_logit_bound"
