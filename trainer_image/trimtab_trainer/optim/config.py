"""The settings of MuonClip."""

from dataclasses import dataclass
from typing import Literal

from trimtab_trainer.fields import positive, raise_if_any, within

CoefficientSet = Literal["quintic", "tuned_quintic", "polar_express", "deepseek_v4", "cubic"]
ComputeType = Literal["bfloat16", "float32", "float64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MuonClipConfig:
    """Settings of Muon for the matrices, AdamW for the rest, and QK-Clip.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    muon_lr: float = 0.01
    """Peak learning rate of Muon; its updates have a root mean square of about 0.2 before this factor."""

    adamw_lr: float = 0.005
    """Peak learning rate of AdamW."""

    momentum: float = 0.95
    """Muon's momentum, in [0, 1)."""

    nesterov: bool = True
    """Whether Muon looks ahead: orthogonalise G + momentum * M instead of M."""

    decay: float = 0.1
    """Decoupled weight decay of every matrix, multiplied by its base learning rate."""

    beta1: float = 0.9
    """AdamW's decay of the first moment, in [0, 1)."""

    beta2: float = 0.95
    """AdamW's decay of the second moment, in [0, 1)."""

    epsilon: float = 1e-8
    """Added to the root of AdamW's second moment."""

    coefficients: CoefficientSet = "quintic"
    """Newton-Schulz polynomials."""

    newton_schulz_dtype: ComputeType = "float32"
    """Precision of the Newton-Schulz products. `bfloat16` is accurate enough and faster on accelerators and on
    processors with bfloat16 products; on other processors it is far slower than `float32`."""

    qk_clip_threshold: float | None = 100.0
    """Largest logit a head may have before its query and key weights shrink; None turns QK-Clip off."""

    def __post_init__(self) -> None:
        threshold = self.qk_clip_threshold
        raise_if_any(
            (
                positive("muon_lr", self.muon_lr),
                positive("adamw_lr", self.adamw_lr),
                within("momentum", self.momentum, 0.0, 1.0),
                within("decay", self.decay, 0.0, float("inf")),
                within("beta1", self.beta1, 0.0, 1.0),
                within("beta2", self.beta2, 0.0, 1.0),
                positive("epsilon", self.epsilon),
                None if threshold is None else positive("qk_clip_threshold", threshold),
            )
        )
