"""What the evidence of an incident is consistent with: the held state, and later the restored one beside it. Pure.

The same windows are measured forward only on both states: the flagged ones, and control windows from before the damage.
A measurement never names a cause. It says with which of a few simple explanations it agrees, and what it lacks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Diagnose
from trimtab_contract.evidence import ProbeEvidence

from trimtab_operator.extent import MINIMUM_CONTROL, control_windows, measure_control
from trimtab_operator.incidents import Finding, Incident, Latch, Measurement

MEASURED_WINDOWS = 32
"""At most so many flagged windows, the first ones, are measured on the held state: every rank waits meanwhile."""

_SHOWN_LOSSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A finding, the sentence with the numbers it rests on, and the evidence it lacks."""

    finding: Finding
    why: str
    missing: tuple[str, ...] = ()
    suspect: Measurement | None = None
    restored: Measurement | None = None


def held_windows(flagged: tuple[int, int], doubtful: SkipLedger) -> Diagnose:
    """What is measured on the held state: the flagged windows, and the control windows a restored state gets too."""
    first, last = flagged
    return Diagnose(
        windows=(first, min(last, first + MEASURED_WINDOWS - 1)),
        control=control_windows(first, doubtful),
    )


def measure(probe: ProbeEvidence, latch: Latch, flagged: tuple[int, int], level: float | None = None) -> Measurement:
    """The flagged windows of a probe against its control, by the rule's sigma (else 4) and control limit.

    `level` is the lowest loss that the run is known to have had at the step that was restored.
    """
    control = measure_control(probe, sigma=latch.sigma, limit=latch.control_limit, level=level)
    first, last = flagged[0], min(flagged[1], flagged[0] + MEASURED_WINDOWS - 1)
    losses = tuple((window, _finite(loss)) for window, loss in probe.windows if first <= window <= last)
    return Measurement(
        control=control.count,
        control_nonfinite=control.count - control.finite,
        control_mean=_finite(control.mean),
        control_std=_finite(control.std),
        control_bad=control.bad,
        threshold=_finite(control.threshold),
        flagged=losses,
        bad=tuple(window for window, loss in losses if loss is None or loss > control.threshold),
    )


def diagnose_held(incident: Incident, probe: ProbeEvidence | None, missing: str = "") -> Diagnosis:
    """What the held state shows by itself; only a transient fault can be told from it alone.

    `missing` says why there is no probe.
    """
    flagged = incident.latch.flagged
    suspect = measure(probe, incident.latch, flagged) if probe is not None and flagged is not None else None
    lacks = (missing,) if missing else ()
    if incident.replicas_agree is False:
        why = "replicas disagree: one of them was damaged, the data is not to blame"
        return Diagnosis(finding=Finding.TRANSIENT, why=why, suspect=suspect)
    if incident.replicas_agree is None and not incident.world_lost:
        lacks = ("the replicas of the held state were not compared", *lacks)
    withheld, loss = incident.withheld, _withheld_loss(incident, probe)
    if withheld is not None and loss is not None:
        if not withheld.loss_finite and incident.state_finite:
            why = (
                f"the update of step {withheld.step} was withheld, and its window {withheld.window}, which gave no "
                f"finite loss, has a loss of {loss:.4f} on the same untouched state: consistent with a transient fault"
            )
            return Diagnosis(finding=Finding.TRANSIENT, why=why, missing=lacks, suspect=suspect)
        if withheld.loss_finite:
            lacks = (*lacks, f"the gradient of the withheld step {withheld.step} was not computed again")
    why = f"{'replicas agree; ' if incident.replicas_agree else ''}nothing proves a transient fault"
    if suspect is None:
        return Diagnosis(finding=Finding.UNDECIDED, why=why, missing=lacks)
    why = f"{why}; {measured_words('the held state', suspect)}; the restored state is next"
    return Diagnosis(finding=Finding.UNDECIDED, why=why, missing=lacks, suspect=suspect)


def diagnose_restored(
    incident: Incident, probe: ProbeEvidence, flagged: tuple[int, int], level: float | None = None
) -> Diagnosis:
    """What both states show together; `level` as in `measure`."""
    suspect, restored = incident.suspect, measure(probe, incident.latch, flagged, level)
    finding, why = _compared(suspect, restored)
    numbers = [measured_words("the restored state", restored)]
    if suspect is not None:
        numbers.insert(0, measured_words("the held state", suspect))
    missing = incident.missing
    if min(restored.control, suspect.control if suspect else restored.control) < MINIMUM_CONTROL:
        few = (
            f"fewer than {MINIMUM_CONTROL} control windows lie before the flagged ones, so only non-finite losses count"
        )
        missing = missing if few in missing else (*missing, few)
    return Diagnosis(
        finding=finding,
        why="; ".join((why, *numbers)),
        missing=missing,
        suspect=suspect,
        restored=restored,
    )


def content(found: Diagnosis, attempt: int = 0) -> dict[str, Any]:
    """What a record of the finding carries; `attempt` is the restored one that was measured, 0 for none."""
    return {
        "finding": found.finding.value,
        "why": found.why,
        "missing": list(found.missing),
        "attempt": attempt,
        "suspect": found.suspect,
        "restored": found.restored,
    }


def _compared(suspect: Measurement | None, restored: Measurement) -> tuple[Finding, str]:
    """The simple explanation that agrees with both measurements, if one does."""
    if restored.control_bad:
        return Finding.UNDECIDED, "the control is bad on the restored state, which therefore tells nothing"
    if suspect is None:
        return Finding.UNDECIDED, "there is no measurement of the held state to compare with"
    if suspect.control_bad:
        return (Finding.BAD_BATCH, _TAKEN_UP) if restored.bad else (Finding.BAD_STATE, _ONLY_HELD)
    if suspect.bad:
        return (Finding.BAD_BATCH, _ON_BOTH) if restored.bad else (Finding.INTERACTION, _ONLY_TOGETHER)
    return Finding.UNDECIDED, _LEARNT if restored.bad else _NOTHING


_ON_BOTH = "consistent with bad batches: they are bad on both states, which are fine on the control"
_TAKEN_UP = (
    "consistent with bad batches: they are bad on a state that has taken none of their updates and is fine on the "
    "control; the held state, which took them, is bad on the control as well"
)
_ONLY_HELD = "consistent with a bad state: only the held one is bad, and it is bad on the control as well"
_ONLY_TOGETHER = (
    "consistent with an interaction: the flagged windows are bad on the held state only, which is fine on the control"
)
_LEARNT = "the flagged windows are bad on the restored state only: the held one may have learnt them since"
_NOTHING = "no flagged window is bad on either state, and both are fine on the control: losses show nothing"


def measured_words(state: str, measured: Measurement) -> str:
    """One state's numbers in a sentence."""
    if measured.control_mean is None:
        control = f"no finite loss on {measured.control} control windows"
    else:
        control = f"control mean {measured.control_mean:.4f}, std {measured.control_std or 0.0:.4f}"
        control += f" over {measured.control - measured.control_nonfinite}"
    if measured.control_nonfinite and measured.control_mean is not None:
        control += f", {measured.control_nonfinite} non-finite"
    limit = "" if measured.threshold is None else f" against {measured.threshold:.4f}"
    losses = _losses(loss for _, loss in measured.flagged)
    return (
        f"on {state} {len(measured.bad)} of {len(measured.flagged)} flagged windows are bad ({losses}{limit}; {control}"
        f"{', bad' if measured.control_bad else ''})"
    )


def _losses(losses: Iterable[float | None]) -> str:
    words = ["non-finite" if loss is None else f"{loss:.4f}" for loss in losses]
    return " ".join(words[:_SHOWN_LOSSES]) + (" …" if len(words) > _SHOWN_LOSSES else "") or "none measured"


def _withheld_loss(incident: Incident, probe: ProbeEvidence | None) -> float | None:
    """The loss of the withheld window, measured again on the state that its update never touched."""
    withheld = incident.withheld
    if probe is None or withheld is None or withheld.step != incident.held_step:
        return None
    return _finite(dict(probe.windows).get(withheld.window))


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None
