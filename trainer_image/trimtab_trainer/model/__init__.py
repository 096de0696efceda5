"""A byte-level decoder-only transformer whose attention reports its largest logit per head.

Computes only: no I/O, no clock, no global random state.
"""

from trimtab_trainer.model.config import TransformerConfig
from trimtab_trainer.model.transformer import AttentionTelemetry, ModelOutput, Transformer

__all__ = ["AttentionTelemetry", "ModelOutput", "Transformer", "TransformerConfig"]
