"""The metric records of an incident, from the archive through the engine to what is drawn."""

import math
from collections.abc import Mapping, Sequence

from trimtab_contract.keys import RunId
from trimtab_operator.incidents import Incident, Latch
from trimtab_operator.run_state import RunState
from trimtab_policies.errors import InvalidLineage
from trimtab_policies.lineage import Segment
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.reach import retention

from trimtab_cli.access import Access
from trimtab_cli.errors import CliError
from trimtab_cli.report.chapters import Chapters, number
from trimtab_cli.report.collecting import Collector
from trimtab_cli.report.records import Checkpoints, Reader, archive_reader, frozen_reader
from trimtab_cli.report.replay import replayed
from trimtab_cli.report.span import lineage_of, span_of, survivors
from trimtab_cli.run_records import policy_of


def collect(
    access: Access, run: RunId, checkpoints: Checkpoints, state: RunState, story: tuple[Chapters, Incident]
) -> tuple[Collector, tuple[str, ...]]:
    """Read the records of every attempt in the span, from the frozen evidence where there is no archive to read.

    Also says what is not as it should be.
    """
    chapters, incident = story
    latch = chapters.firings[0].latch if chapters.firings else incident.latch
    texts, notes = _policies(access, state, latch)
    source = _Source(state, latch, texts, story)
    frozen = frozen_reader(access.audit, chapters.records)
    if checkpoints.store is None:
        notes.append(f"The archive of records cannot be found, so only frozen records are shown: {checkpoints.why_not}")
        return source.read(frozen), tuple(notes)
    try:
        collector = source.read(archive_reader(checkpoints.store, checkpoints.root, run))
    except CliError as error:
        notes.append(f"The archive of records cannot be read, so only frozen records are shown: {error}")
        return source.read(frozen), tuple(notes)
    if collector.records:
        return collector, (*notes, *_disagreement(collector, latch), *_gaps(collector))
    notes.append("The archive has no records of these steps, so only those that were frozen as evidence are shown.")
    return source.read(frozen), tuple(notes)


class _Source:
    """Reads one incident's records through any reader."""

    def __init__(
        self,
        state: RunState,
        latch: Latch,
        texts: Mapping[str, AcceptedPolicy],
        story: tuple[Chapters, Incident],
    ) -> None:
        chapters, incident = story
        self._state, self._latch, self._texts = state, latch, texts
        self._span = span_of(chapters, incident)
        self._ranges = tuple({(one.skip.first, one.skip.last): 0 for one in chapters.plans if one.skip is not None})

    def read(self, reader: Reader) -> Collector:
        """Follow each attempt from as far back as the rule looks."""
        state, span = self._state, self._span
        collector = Collector(span, self._latch, survivors(state), state.attempt, self._ranges)
        back = retention(self._texts.values())
        for one in state.attempts:
            first = max(span.first, one.branch_step + 1)
            if first > span.last:
                continue
            points = reader(_segments(state, one.number), max(1, first - back), span.last)
            for seen in replayed(points, state, one.number, self._latch, self._texts):
                collector.take(one.number, seen)
        return collector


def _segments(state: RunState, attempt: int) -> Sequence[Segment]:
    try:
        return lineage_of(state).surviving(attempt)
    except InvalidLineage:
        return (Segment(attempt, 1, None),)


def _policies(access: Access, state: RunState, latch: Latch) -> tuple[Mapping[str, AcceptedPolicy], list[str]]:
    """Every text of the policy that fired; what cannot be read is left out with the reason."""
    policy, notes = latch.policy, list[str]()
    texts: dict[str, AcceptedPolicy] = {}
    for guard in state.guards if policy is not None else ():
        for identity in guard.policies:
            same = policy is not None and (identity.kind, identity.name) == (policy.kind, policy.name)
            if not same or identity.hash in texts:
                continue
            try:
                texts[identity.hash] = policy_of(access.audit, identity)
            except CliError as error:
                notes.append(f"No baseline and no threshold is drawn for generation {identity.generation}: {error}")
    return texts, notes


def _disagreement(collector: Collector, latch: Latch) -> list[str]:
    """Whether the archive, judged again, gives what the journal says."""
    fired, place = collector.fired, f"step {latch.fired_step}"
    if fired is None:
        return [f"The archive has no record of {place} of attempt {latch.attempt}, where the rule fired."]
    verdict = fired.verdict
    if verdict is None or verdict.observed is None:
        return []
    compared = (
        ("observed value", latch.observed, verdict.observed),
        ("threshold", latch.threshold, verdict.threshold),
    )
    return [
        f"Judged again, the archive's record of {place} gives the {name} {again:.6g}; the journal says {journal}."
        for name, journal, again in compared
        if again is not None and (said := number(journal)) is not None and not _same(said, again)
    ]


def _same(one: float, other: float) -> bool:
    """Equal, but for the last digits of a sum that was taken in another order; NaN is NaN."""
    return (math.isnan(one) and math.isnan(other)) or one == other or math.isclose(one, other, rel_tol=1e-9)


def _gaps(collector: Collector) -> list[str]:
    return [f"Attempt {attempt}: {count} steps have no record." for attempt, count in collector.missing.items()]
