"""A decoder-only transformer whose attention reports its largest logit per head.

Computes only: no I/O, no clock, no global random state.
"""

from trimtab_trainer.model.attention_config import AttentionConfig
from trimtab_trainer.model.config import TransformerConfig
from trimtab_trainer.model.experts_config import ExpertsConfig
from trimtab_trainer.model.transformer import ExpertTelemetry, ModelOutput, Transformer

__all__ = [
    "AttentionConfig",
    "ExpertTelemetry",
    "ExpertsConfig",
    "ModelOutput",
    "Transformer",
    "TransformerConfig",
]
