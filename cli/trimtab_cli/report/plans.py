"""The plans of an incident, what was measured for them, and what each thought of the checkpoints. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from trimtab_contract.evidence import ProbeEvidence
from trimtab_contract.journal import JournalRecord
from trimtab_operator.extent import Extent, find_extent
from trimtab_operator.incidents import Latch, SkipRange
from trimtab_operator.run_state import CheckpointState, JournalAction, RunState

from trimtab_cli.report.chapters import Chapters, PlanStory
from trimtab_cli.report.span import Span
from trimtab_cli.report.views import CheckpointView, Fact, PlanView, ProbeView
from trimtab_cli.report.words import moment

MOST_CHECKPOINTS = 200
_STATES = frozenset(state.value for state in CheckpointState)


def plan_views(chapters: Chapters) -> tuple[PlanView, ...]:
    """Every plan with its target, its skip, its learning rate, and the numbers they rest on."""
    return tuple(_plan_view(one) for one in chapters.plans)


def _plan_view(story: PlanStory) -> PlanView:
    target, rate, skip = story.plan.target, story.learning_rate, story.skip
    numbers = story.numbers or {}
    rows = [
        ("Target", story.why),
        ("Chosen", moment(story.time)),
        ("Checkpoint", f"step {target.step}, manifest {target.key}, SHA-256 {target.sha256}"),
        ("Restored", f"as attempt {story.attempt}: {story.restored}" if story.restored else ""),
        ("Failed", story.failed),
        ("Extent", story.extent),
        ("Control", _control(numbers)),
        ("Skip", f"windows {skip.first} to {skip.last}, {skip.bad} of them measured as bad" if skip else ""),
        ("Learning rate", f"scaled by {rate.scale:g} up to step {rate.until_step}" if rate else ""),
        ("Resumed", moment(story.resumed_at)),
    ]
    shown = tuple(Fact(name, value) for name, value in rows if value)
    return PlanView(f"Plan {story.plan.number}: back to step {target.step}", shown, bool(story.failed))


def _control(numbers: Mapping[str, float]) -> str:
    names = {"control_mean": "mean", "control_std": "std", "threshold": "threshold"}
    return ", ".join(f"{said} {numbers[name]:.6g}" for name, said in names.items() if name in numbers)


def probe_views(
    probes: Iterable[tuple[JournalRecord, ProbeEvidence]], latches: Mapping[int, Latch]
) -> tuple[ProbeView, ...]:
    """The losses of each probe, judged as the operator judged them; `latches` are the ones in force, by record."""
    return tuple(_probe_view(record, probe, latches[record.seq]) for record, probe in probes if record.seq in latches)


def _probe_view(record: JournalRecord, probe: ProbeEvidence, latch: Latch) -> ProbeView:
    extent = _extent(probe, latch)
    bad = frozenset(extent.bad) if extent else frozenset[int]()
    first, last = latch.flagged or (0, -1)
    losses = [(window, loss, "control") for window, loss in probe.control]
    for window, loss in probe.windows:
        kind = "bad" if window in bad else "flagged" if first <= window <= last else "healthy"
        losses.append((window, loss, kind))
    try:
        skip = msgspec.convert((record.after or {}).get("skip"), type=SkipRange)
    except msgspec.ValidationError:
        skip = None
    state = f"the checkpoint of step {probe.state.step}" if probe.state else "the state at the hold"
    return ProbeView(
        title=f"Losses measured forward-only on {state}, attempt {probe.attempt}",
        summary=str((record.reason or {}).get("message") or (extent.message if extent else "")),
        losses=tuple(sorted(losses, key=lambda one: one[0])),
        mean=_finite(extent.control_mean) if extent else None,
        threshold=_finite(extent.threshold) if extent else None,
        skip=(skip.first, skip.last) if skip else None,
    )


def _extent(probe: ProbeEvidence, latch: Latch) -> Extent | None:
    settings = latch.remediation
    if latch.flagged is None:
        return None
    return find_extent(
        probe,
        flagged=latch.flagged,
        before=settings.before,
        after=settings.after,
        sigma=latch.sigma,
        control_limit=latch.control_limit,
        shrink=latch.on_loss,
    )


def checkpoint_views(
    state: RunState, records: Sequence[JournalRecord], chapters: Chapters, span: Span
) -> tuple[tuple[CheckpointView, ...], int]:
    """The checkpoints in the span or considered by a plan, and how many others there are."""
    histories = _histories(records)
    thoughts = _thoughts(chapters)
    targets = {one.plan.target.key for one in chapters.plans}
    found: list[CheckpointView] = []
    for one in state.checkpoints:
        step, place = one.reference.step, (one.reference.step, one.attempt)
        near = span.first <= step <= span.last
        if not near and one.reference.key not in targets:
            continue
        found.append(
            CheckpointView(
                step=step,
                attempt=one.attempt,
                state=one.state.value,
                surviving=state.surviving(one),
                chosen=one.reference.key in targets,
                history=tuple(histories.get(one.reference.key, ())),
                thoughts=tuple(thoughts.get(place, ())),
            )
        )
    shown = found if len(found) <= MOST_CHECKPOINTS else [one for one in found if one.chosen or one.thoughts]
    shown = shown[-MOST_CHECKPOINTS:]
    return tuple(shown), len(state.checkpoints) - len(shown)


def _histories(records: Iterable[JournalRecord]) -> Mapping[str, list[tuple[str, str, str]]]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for record in records:
        content = (record.after or {}).get("checkpoint")
        if record.action in _STATES and isinstance(content, dict):
            line = record.time, record.action, str((record.after or {}).get("why") or "")
            found.setdefault(str(content.get("key")), []).append(line)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - JSON
    return found


def _thoughts(chapters: Chapters) -> Mapping[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for story in chapters.plans:
        for one in story.candidates:
            verdict = "chosen" if one.chosen else "not chosen"
            text = f"plan {story.plan.number}, then {one.state}: {verdict}, {one.why}"
            found.setdefault((one.step, one.attempt), []).append(text)
    return found


def latches_by_record(chapters: Chapters) -> Mapping[int, Latch]:
    """Which firing was under way at each of the incident's records."""
    firings = iter(chapters.firings)
    current: Latch | None = None
    found: dict[int, Latch] = {}
    for record in chapters.records:
        if record.action in _FIRINGS:
            firing = next(firings, None)
            current = firing.latch if firing is not None else current
        if current is not None:
            found[record.seq] = current
    return found


_FIRINGS = frozenset({JournalAction.INCIDENT_OPENED, JournalAction.RELAPSED, JournalAction.UPGRADED})


def closing_seq(records: Iterable[JournalRecord], incident: str) -> int | None:
    """The record behind which the incident changed nothing any more; None while it is open."""
    ends = {JournalAction.INCIDENT_CLOSED, JournalAction.STOPPED, JournalAction.FAILED, JournalAction.COMPLETED}
    own: Iterator[int] = (one.seq for one in records if one.incident == incident and one.action in ends)
    return max(own, default=None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
