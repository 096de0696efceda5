"""The largest attention logit of every head: from the log-sum-exp that a kernel returns, or from the whole product.

Knows nothing of models, optimizers or loops.
"""

from trimtab_trainer.max_logits.gate import gated_max_logit, measured_max_logit
from trimtab_trainer.max_logits.logits import Logits
from trimtab_trainer.max_logits.masks import AttentionMask, Mask
from trimtab_trainer.max_logits.telemetry import AttentionTelemetry

__all__ = ["AttentionMask", "AttentionTelemetry", "Logits", "Mask", "gated_max_logit", "measured_max_logit"]
