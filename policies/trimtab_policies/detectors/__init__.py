"""Is one observed value bad? One module per detector; each sees a metric's observations in order.

A non-finite value breaches every detector and enters no baseline. Add a detector by a module here, its line in
DETECTORS, its field in `rules.Rule`, its name in `checks.DETECTOR_FIELDS` and its reach in `reach`. `stale` and the
composites look at no value: `evaluation` has them.
"""

from collections.abc import Callable
from typing import Any

from trimtab_policies.detectors.base import Assessment, Comparison, Detector
from trimtab_policies.detectors.divergence import DivergenceDetector
from trimtab_policies.detectors.non_finite import NonFiniteDetector
from trimtab_policies.detectors.range import RangeDetector
from trimtab_policies.detectors.spike import SpikeDetector
from trimtab_policies.errors import PolicyError
from trimtab_policies.rules import Rule

DETECTORS: dict[str, Callable[[Any], Detector]] = {
    "range": RangeDetector,
    "spike": SpikeDetector,
    "non_finite": NonFiniteDetector,
    "divergence": DivergenceDetector,
}

__all__ = ["DETECTORS", "Assessment", "Comparison", "Detector", "detector_of"]


def detector_of(rule: Rule) -> Detector:
    """A fresh detector as the rule describes it; raises PolicyError for a rule that looks at no value."""
    for name, make in DETECTORS.items():
        settings = getattr(rule, name)
        if settings is not None:
            return make(settings)
    message = f"rule {rule.name} has no detector that looks at values"
    raise PolicyError(message)
