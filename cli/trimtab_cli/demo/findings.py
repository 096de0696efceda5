"""What the demo promises, held against what the trail, the batch logs and the records show. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from trimtab_operator.incidents import Incident
from trimtab_operator.run_state import RunPhase, RunState

from trimtab_cli.exactness import ExactnessReport

HEALTHY_RECORDS = 100
COMPARED_RECORDS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise: whether it holds, and the numbers."""

    name: str
    holds: bool
    detail: str


def damage_incident(state: RunState, damaged: tuple[int, int]) -> Incident | None:
    """The closed incident that was about the damaged windows."""
    first, last = damaged
    flagged = ((one, one.latch.flagged) for one in state.closed)
    return next((one for one, windows in flagged if windows and windows[0] <= last and windows[1] >= first), None)


def judge_run(
    state: RunState,
    damaged: tuple[int, int],
    exactness: ExactnessReport,
    losses: Mapping[int, float],
    audit_problems: Sequence[str],
    storage: str,
) -> tuple[Finding, ...]:
    """Every promise; `losses` maps the steps of the surviving history to their loss, `storage` is the bucket's word."""
    findings = [Finding("the run completed", state.phase is RunPhase.COMPLETED, f"phase {state.phase}")]
    incident = damage_incident(state, damaged)
    if incident is None:
        seen = ", ".join(one.name for one in state.closed) or "none"
        findings.append(Finding("the damage was seen", holds=False, detail=f"incidents: {seen}"))
    else:
        findings += [_seen(incident), _rolled_back(incident), _skipped(incident, damaged), _continued(incident, losses)]
    findings += [
        _trained(exactness),
        Finding("the audit trail is verified", not audit_problems, "; ".join(audit_problems) or storage),
    ]
    return tuple(findings)


def _seen(incident: Incident) -> Finding:
    latch = incident.latch
    return Finding("the damage was seen", holds=True, detail=f"{latch.rule} at step {latch.fired_step}")


def _rolled_back(incident: Incident) -> Finding:
    target = incident.target
    holds = target is not None and incident.outcome == "Recovered" and target.step < incident.latch.first_bad_step
    restored = f"step {target.step} was restored" if target else "nothing was restored"
    return Finding("it was rolled back and recovered", holds, f"{restored}; outcome {incident.outcome or 'none'}")


def _skipped(incident: Incident, damaged: tuple[int, int]) -> Finding:
    """All that is damaged, and besides the flagged windows only the policy's border."""
    name = "every damaged window is skipped, and little else"
    extent, settings = incident.extent, incident.latch.remediation
    if extent is None:
        return Finding(name, holds=False, detail="nothing was skipped")
    flagged = incident.latch.flagged or damaged
    first = min(damaged[0], flagged[0]) - settings.before
    last = max(damaged[1], flagged[1]) + settings.after
    holds = first <= extent.first <= damaged[0] and damaged[1] <= extent.last <= last
    detail = f"windows {extent.first} to {extent.last}; the damage lies in {damaged[0]} to {damaged[1]}"
    return Finding(name, holds, detail)


def _continued(incident: Incident, losses: Mapping[int, float]) -> Finding:
    """The mean loss behind the skipped windows against the healthy records before them."""
    name = "the loss continues the healthy curve"
    first = incident.latch.first_bad_step
    before = [losses[step] for step in range(first - HEALTHY_RECORDS, first) if step in losses]
    after = [losses[step] for step in range(first, first + COMPARED_RECORDS) if step in losses]
    if len(before) < HEALTHY_RECORDS // 2 or len(after) < COMPARED_RECORDS:
        return Finding(
            name, holds=False, detail=f"only {len(before)} records before and {len(after)} after are archived"
        )
    bound = fmean(before) + pstdev(before)
    detail = (
        f"mean {fmean(after):.3f} over {len(after)} steps behind it, "
        f"{fmean(before):.3f} over {len(before)} steps before it"
    )
    return Finding(name, fmean(after) <= bound, detail)


def _trained(exactness: ExactnessReport) -> Finding:
    detail = (
        f"{exactness.windows} windows over {exactness.steps} steps on {exactness.ranks} ranks, "
        f"{exactness.skipped} skipped and never trained on again"
    )
    name = "every other window was trained on exactly once"
    return Finding(name, exactness.exact, detail if exactness.exact else "; ".join(exactness.problems))
