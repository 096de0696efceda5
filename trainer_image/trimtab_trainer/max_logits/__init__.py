"""The largest attention logit of every head: from the log-sum-exp that a kernel returns, or from the whole product.

Knows nothing of models, optimizers or loops.
"""

from trimtab_trainer.max_logits.gate import RowBounds, measured_max_logit, measured_max_logits
from trimtab_trainer.max_logits.logits import Logits
from trimtab_trainer.max_logits.masks import AttentionMask, Mask
from trimtab_trainer.max_logits.resolution import LARGEST_RESOLVED_LOGIT, infinite_beyond_resolution
from trimtab_trainer.max_logits.telemetry import AttentionTelemetry

__all__ = [
    "LARGEST_RESOLVED_LOGIT",
    "AttentionMask",
    "AttentionTelemetry",
    "Logits",
    "Mask",
    "RowBounds",
    "infinite_beyond_resolution",
    "measured_max_logit",
    "measured_max_logits",
]
