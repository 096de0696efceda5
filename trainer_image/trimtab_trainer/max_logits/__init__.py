"""The largest attention logit of every head: from the log-sum-exp that a kernel returns, or from the whole product.

Knows nothing of models, optimizers or loops.
"""

from trimtab_trainer.max_logits.gate import RowBounds, measured_max_logit, measured_max_logits
from trimtab_trainer.max_logits.logits import Logits
from trimtab_trainer.max_logits.masks import AttentionMask, Mask
from trimtab_trainer.max_logits.telemetry import AttentionTelemetry

__all__ = [
    "AttentionMask",
    "AttentionTelemetry",
    "Logits",
    "Mask",
    "RowBounds",
    "measured_max_logit",
    "measured_max_logits",
]
