"""What a step trains on."""

from dataclasses import dataclass

from torch import Tensor

from trimtab_trainer.optim import RateOverride


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's share of the window of one step: `tokens` and `targets` [share, sequence], int64.

    A target of -100 belongs to another document than its token and is no target (`torch` ignores it by default).
    """

    attempt: int
    step: int
    window: int
    tokens: Tensor
    targets: Tensor
    sample_ids: Tensor
    """[share] int64, the absolute positions of the samples: what dropout is keyed by."""

    rate_override: RateOverride | None
