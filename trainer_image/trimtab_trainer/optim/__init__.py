"""MuonClip and what surrounds it: schedule, gradient clipping, parameter checksums.

Computes only: no I/O, no clock, no random numbers, and no communication but through the peers that it is given.
"""

from trimtab_trainer.head_parameters import AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim.attention_logits import largest_logits
from trimtab_trainer.optim.checksum import ParameterChecksum, parameter_checksum, whole_checksum
from trimtab_trainer.optim.config import MuonClipConfig, ParameterGroup, ThresholdPoint
from trimtab_trainer.optim.gradients import (
    GradientClip,
    GradientClipping,
    clip_gradients,
    count_non_finite,
    first_non_finite,
    gradient_norms,
)
from trimtab_trainer.optim.logit_recorder import LogitRecorder
from trimtab_trainer.optim.muon_clip import MuonClip, StepTelemetry
from trimtab_trainer.optim.plain_models import (
    fused_projection,
    latent_projections,
    multihead_attention,
    parameter_groups,
    separate_projections,
)
from trimtab_trainer.optim.qk_clip import NonFiniteLogitsError
from trimtab_trainer.optim.routing import routing_table
from trimtab_trainer.optim.schedule import RateOverride, Schedule
from trimtab_trainer.optim.sharded_muon_clip import ShardedMuonClip

__all__ = [
    "AttentionHeads",
    "GradientClip",
    "GradientClipping",
    "HeadParameter",
    "LogitPart",
    "LogitRecorder",
    "MuonClip",
    "MuonClipConfig",
    "NonFiniteLogitsError",
    "ParameterChecksum",
    "ParameterGroup",
    "RateOverride",
    "Schedule",
    "ShardedMuonClip",
    "StepTelemetry",
    "ThresholdPoint",
    "clip_gradients",
    "count_non_finite",
    "first_non_finite",
    "fused_projection",
    "gradient_norms",
    "largest_logits",
    "latent_projections",
    "multihead_attention",
    "parameter_checksum",
    "parameter_groups",
    "routing_table",
    "separate_projections",
    "whole_checksum",
]
