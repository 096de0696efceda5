"""What was measured forward-only: each state's losses, judged as the operator judged them, and the findings. Pure."""

import math
from collections.abc import Iterable, Mapping

import msgspec
from trimtab_contract.evidence import ProbeEvidence
from trimtab_contract.journal import JournalRecord
from trimtab_operator.diagnosis import measure
from trimtab_operator.extent import find_extent
from trimtab_operator.incidents import Latch, Measurement, SkipRange

from trimtab_cli.report.episodes import Chapters, FindingStory
from trimtab_cli.report.views import Block, Fact, ProbeView, Table
from trimtab_cli.report.words import moment

Judged = tuple[frozenset[int], float | None, float | None]
"""The bad windows, the control's mean, the threshold."""


def finding_views(chapters: Chapters) -> tuple[Block, ...]:
    """Every finding with the numbers it rests on: the flagged windows on both states, and their control windows."""
    return tuple(_finding_view(one) for one in chapters.findings)


def _finding_view(one: FindingStory) -> Block:
    states = [("held state", one.suspect), ("restored state", one.restored)]
    measured = [(name, found) for name, found in states if found is not None]
    facts = [
        Fact("Found", moment(one.time)),
        Fact("Because", one.why),
        *(Fact("Missing evidence", lacks) for lacks in one.missing),
    ]
    columns = ("", *(f"On the {name}" for name, _ in measured))
    rows = [(title, *(say(found) for _, found in measured)) for title, say in _FIGURES.items()] if measured else []
    windows = sorted({window for _, found in measured for window, _ in found.flagged})
    losses = [(f"window {window}", *(_loss(found, window) for _, found in measured)) for window in windows]
    title = f"Finding: {one.finding}" if one.finding == "Undecided" else f"Finding: consistent with {one.finding}"
    table = Table("Losses in nats per token", columns, (*rows, *losses))
    return Block(title, tuple(fact for fact in facts if fact.value), (table,))


def _control(found: Measurement) -> str:
    if found.control_mean is None:
        return f"no finite loss on {found.control} windows"
    lost = f", {found.control_nonfinite} not finite" if found.control_nonfinite else ""
    bad = ", bad" if found.control_bad else ""
    return f"mean {found.control_mean:.6g}, std {found.control_std or 0.0:.3g}, {found.control} windows{lost}{bad}"


def _threshold(found: Measurement) -> str:
    return "only what is not finite is bad" if found.threshold is None else f"{found.threshold:.6g}"


def _bad(found: Measurement) -> str:
    return f"{len(found.bad)} of {len(found.flagged)}"


def _loss(found: Measurement, window: int) -> str:
    losses = dict(found.flagged)
    if window not in losses:
        return "not measured"
    loss = losses[window]
    return ("not finite" if loss is None else f"{loss:.6g}") + (", bad" if window in found.bad else "")


_FIGURES = {"control windows": _control, "threshold": _threshold, "bad of the flagged": _bad}


def probe_views(
    probes: Iterable[tuple[JournalRecord, ProbeEvidence]], latches: Mapping[int, Latch]
) -> tuple[ProbeView, ...]:
    """The losses of each probe; `latches` are the ones in force, by record.

    What several records name is shown once, with what the last of them says of it.
    """
    found: dict[tuple[int, str], ProbeView] = {}
    for record, probe in probes:
        if record.seq in latches:
            key = (probe.attempt, probe.state.key if probe.state else "")
            found[key] = _probe_view(record, probe, latches[record.seq])
    return tuple(found.values())


def _probe_view(record: JournalRecord, probe: ProbeEvidence, latch: Latch) -> ProbeView:
    bad, mean, threshold = _judged(probe, latch)
    first, last = latch.flagged or (0, -1)
    losses = [(window, loss, "control") for window, loss in probe.control]
    for window, loss in probe.windows:
        kind = "bad" if window in bad else "flagged" if first <= window <= last else "healthy"
        losses.append((window, loss, kind))
    try:
        skip = msgspec.convert((record.after or {}).get("skip"), type=SkipRange)
    except msgspec.ValidationError:
        skip = None
    state = f"the checkpoint of step {probe.state.step}" if probe.state else "the held state"
    said = (record.reason or {}).get("message") or (record.after or {}).get("why")
    return ProbeView(
        title=f"Losses measured forward-only on {state}, attempt {probe.attempt}",
        summary=str(said or ""),
        losses=tuple(sorted(losses, key=lambda one: one[0])),
        mean=mean,
        threshold=threshold,
        skip=(skip.first, skip.last) if skip else None,
    )


def _judged(probe: ProbeEvidence, latch: Latch) -> Judged:
    """A held state as the diagnosis judged it, a restored one as the extent was found on it."""
    if latch.flagged is None:
        return frozenset(), None, None
    if probe.state is None:
        found = measure(probe, latch, latch.flagged)
        return frozenset(found.bad), found.control_mean, found.threshold
    settings = latch.remediation
    extent = find_extent(
        probe,
        flagged=latch.flagged,
        before=settings.before,
        after=settings.after,
        sigma=latch.sigma,
        control_limit=latch.control_limit,
        shrink=latch.on_loss,
    )
    return frozenset(extent.bad), _finite(extent.control_mean), _finite(extent.threshold)


def latches_by_record(chapters: Chapters) -> Mapping[int, Latch]:
    """What the incident acted on at each of its records: the last rule that fired, or person that asked, before it."""
    begins = {one.seq: one.latch for one in chapters.firings}
    current: Latch | None = None
    found: dict[int, Latch] = {}
    for record in chapters.records:
        if record.seq in begins:
            current = begins[record.seq]
        if current is not None:
            found[record.seq] = current
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
