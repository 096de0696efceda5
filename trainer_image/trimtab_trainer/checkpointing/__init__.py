"""Checkpoints that can be trusted: inspected before they are stored, verified after, restored whole or not at all."""

from trimtab_trainer.checkpointing.backlog import Backlog
from trimtab_trainer.checkpointing.checkpointer import Checkpointer, CheckpointLimits
from trimtab_trainer.checkpointing.events import (
    CheckpointBehind,
    CheckpointEvent,
    Saved,
    SaveFailed,
    SaveRefused,
    VerificationAbandoned,
    Verified,
    VerifyFailed,
)
from trimtab_trainer.checkpointing.measurement import ShareMeasurement
from trimtab_trainer.checkpointing.reasons import RestoreFailure, SaveRefusal
from trimtab_trainer.checkpointing.state import CountingOptimizer, TrainingState

__all__ = [
    "Backlog",
    "CheckpointBehind",
    "CheckpointEvent",
    "CheckpointLimits",
    "Checkpointer",
    "CountingOptimizer",
    "RestoreFailure",
    "SaveFailed",
    "SaveRefusal",
    "SaveRefused",
    "Saved",
    "ShareMeasurement",
    "TrainingState",
    "VerificationAbandoned",
    "Verified",
    "VerifyFailed",
]
