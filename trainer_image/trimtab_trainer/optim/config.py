"""The settings of MuonClip."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from trimtab_trainer.fields import at_least, instances, one_of, positive, raise_if_any, within

Optimizer = Literal["muon", "adamw"]
CoefficientSet = Literal["quintic", "tuned_quintic", "polar_express", "deepseek_v4", "cubic"]
ComputeType = Literal["bfloat16", "float32", "float64"]
NewtonSchulzMode = Literal["distributed", "duplicated"]
QkClipMode = Literal["clip", "observe", "disabled"]
GroupedQueryRule = Literal["query", "group", "roots", "balanced"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterGroup:
    """What is special about the parameters whose name matches a pattern.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    pattern: str
    """Shell-style pattern of parameter names, such as `blocks.*.qkv.weight`."""

    optimizer: Optimizer | None = None
    """Which optimizer updates them; as for any other parameter where it is left out."""

    split: tuple[int, ...] = ()
    """Rows of the matrices that are fused in one parameter (query, key, value; gate, up). Each is orthogonalised
    alone: the update of a fused matrix would mix them."""

    heads: int | None = None
    """Cut the rows into so many equal matrices, one for each attention head, and orthogonalise each alone."""

    decay: float | None = None
    """Weight decay, in place of the optimizer's."""

    learning_rate_scale: float = 1.0
    """Multiplies the learning rate of their updates. Their decay stays on the base rate: it has a field of its own."""

    gradient_clip: float | None = None
    """Largest norm of the gradient of all of them together; they take no part in the norm of the others then. It is the
    loop that clips, by `GradientClipping`."""

    def __post_init__(self) -> None:
        raise_if_any(
            (
                None if self.pattern else "pattern: '' must name parameters, such as blocks.*.qkv.weight",
                None if self.optimizer is None else one_of("optimizer", self.optimizer, get_args(Optimizer)),
                *(f"split: {rows} must be at least 1" for rows in self.split if rows < 1),
                None if self.heads is None else at_least("heads", self.heads, 1),
                "heads: not together with split; a list of equal rows in split says the same"
                if self.heads is not None and self.split
                else None,
                None if self.decay is None else within("decay", self.decay, 0.0, math.inf),
                positive("learning_rate_scale", self.learning_rate_scale),
                None if self.gradient_clip is None else positive("gradient_clip", self.gradient_clip),
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdPoint:
    """The factor on QK-Clip's thresholds at one update; between two points it changes linearly."""

    update: int
    factor: float

    def __post_init__(self) -> None:
        raise_if_any((at_least("update", self.update, 1), positive("factor", self.factor)))


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
    """Decoupled weight decay of every matrix, multiplied by its base learning rate, whatever its group's scale."""

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

    newton_schulz_mode: NewtonSchulzMode = "distributed"
    """Whether each matrix is orthogonalised on one rank for all, or on every rank again (`duplicated`)."""

    gram: bool = False
    """Iterate long matrices in the Gram form: fewer products, and in bfloat16 about twice the rounding error."""

    groups: tuple[ParameterGroup, ...] = ()
    """What is special about some parameters; of several patterns that match, the first one counts."""

    master_weights: bool = False
    """Keep a float32 copy of every parameter of fewer bits, and update that: in bfloat16 small changes are lost."""

    qk_clip_threshold: float | None = 100.0
    """Largest logit a head may have before its query and key weights shrink; None turns QK-Clip off."""

    qk_clip_mode: QkClipMode = "clip"
    """`observe` reports the factors and changes nothing. (Not `on` and `off`, which YAML takes for true and false.)"""

    qk_clip_layer_thresholds: tuple[float, ...] = ()
    """A threshold for every layer, in place of the one for all."""

    qk_clip_schedule: tuple[ThresholdPoint, ...] = ()
    """Factors on the thresholds at some updates, in rising order: a warm-up, or a threshold that is lowered."""

    qk_clip_grouped_query: GroupedQueryRule = "query"
    """How the factor is shared out where several heads use one key; see `trimtab_trainer.optim.qk_clip`."""

    def __post_init__(self) -> None:
        threshold = self.qk_clip_threshold
        raise_if_any(
            (
                *instances("groups", self.groups, ParameterGroup),
                *instances("qk_clip_schedule", self.qk_clip_schedule, ThresholdPoint),
            )
        )
        updates = [point.update for point in self.qk_clip_schedule]
        raise_if_any(
            (
                positive("muon_lr", self.muon_lr),
                positive("adamw_lr", self.adamw_lr),
                within("momentum", self.momentum, 0.0, 1.0),
                within("decay", self.decay, 0.0, float("inf")),
                within("beta1", self.beta1, 0.0, 1.0),
                within("beta2", self.beta2, 0.0, 1.0),
                positive("epsilon", self.epsilon),
                one_of("coefficients", self.coefficients, get_args(CoefficientSet)),
                one_of("newton_schulz_dtype", self.newton_schulz_dtype, get_args(ComputeType)),
                one_of("newton_schulz_mode", self.newton_schulz_mode, get_args(NewtonSchulzMode)),
                one_of("qk_clip_mode", self.qk_clip_mode, get_args(QkClipMode)),
                one_of("qk_clip_grouped_query", self.qk_clip_grouped_query, get_args(GroupedQueryRule)),
                None if threshold is None else positive("qk_clip_threshold", threshold),
                *(positive("qk_clip_layer_thresholds", each) for each in self.qk_clip_layer_thresholds),
                "qk_clip_schedule: the updates of its points must rise"
                if any(later <= earlier for earlier, later in pairwise(updates))
                else None,
            )
        )

    @property
    def qk_clip_off(self) -> bool:
        """Whether no factor is ever computed."""
        return self.qk_clip_mode == "disabled" or self.qk_clip_threshold is None

    def thresholds(self, update: int, layers: int) -> tuple[float, ...]:
        """QK-Clip's threshold of each layer in an update, counted from 1; infinities where it is off."""
        if self.qk_clip_off or self.qk_clip_threshold is None:
            return (math.inf,) * layers
        factor = self._threshold_factor(update)
        return tuple(each * factor for each in self.qk_clip_layer_thresholds or (self.qk_clip_threshold,) * layers)

    def _threshold_factor(self, update: int) -> float:
        points = self.qk_clip_schedule
        if not points or update >= points[-1].update:
            return points[-1].factor if points else 1.0
        if update <= points[0].update:
            return points[0].factor
        before, after = next(pair for pair in pairwise(points) if update < pair[1].update)
        progress = (update - before.update) / (after.update - before.update)
        return before.factor + progress * (after.factor - before.factor)
