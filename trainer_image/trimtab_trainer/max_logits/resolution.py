"""Up to which size a largest logit says something of a head."""

import math
from typing import Final

import torch
from torch import Tensor

LARGEST_RESOLVED_LOGIT: Final = 2.0**24
"""Above it float32 numbers lie more than 1 apart, so a softmax of such logits weighs rounding errors."""


def infinite_beyond_resolution(max_logit: Tensor) -> Tensor:
    """Return `max_logit` with infinities where float32 cannot resolve the logits any more.

    A flipped exponent bit in a query weight gives logits of 1e36 beside a finite loss; whether the gradient is
    finite then depends on how the kernel rounds. No healthy head comes near the limit.
    """
    return torch.where(max_logit.abs() > LARGEST_RESOLVED_LOGIT, max_logit * math.inf, max_logit)
