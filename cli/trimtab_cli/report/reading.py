"""The metric records of an incident, from the archive through the engine to what is drawn."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab_contract.keys import policy_text
from trimtab_operator.incidents import Incident, Latch
from trimtab_operator.run_state import RunState
from trimtab_policies.errors import InvalidLineage
from trimtab_policies.lineage import Segment
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.reach import retention

from trimtab_cli.errors import CliError
from trimtab_cli.report.chapters import number
from trimtab_cli.report.collecting import Collector
from trimtab_cli.report.episodes import Chapters
from trimtab_cli.report.records import Reader, Sources, frozen_reader
from trimtab_cli.report.replay import narrowed, policy_name, replayed, watched_rules
from trimtab_cli.report.span import lineage_of, span_of, survivors
from trimtab_cli.run_records import read_policy

Advance = Callable[[int], None]
"""Told the step of each record that was read."""


@dataclass(frozen=True, slots=True)
class Story:
    """An incident as its journal tells it: the run's state when it ended, its chapters, and itself."""

    state: RunState
    chapters: Chapters
    incident: Incident

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Everything that it acted on; what a damaged journal has lost is the last one."""
        return self.chapters.latches or (self.incident.latch,)


def collect(sources: Sources, story: Story, advance: Advance) -> tuple[Collector, tuple[str, ...]]:
    """Read the records of every attempt in the span, from the frozen evidence where there is no archive to read.

    Also says what is not as it should be.
    """
    texts, notes = _policies(sources, story)
    reading = _Reading(story, texts, advance)
    if sources.archive is None:
        notes.append(f"The archive of records cannot be found, so only frozen records are shown: {sources.why_not}")
        return _frozen(sources, reading, notes)
    try:
        collector = reading.read(sources.archive)
    except CliError as error:
        notes.append(f"The archive of records cannot be read, so only frozen records are shown: {error}")
        return _frozen(sources, reading, notes)
    if collector.records:
        gaps = [f"Attempt {attempt}: {count} steps have no record." for attempt, count in collector.missing.items()]
        return collector, (*notes, *_lacking(collector), *_disagreements(collector), *gaps)
    notes.append("The archive has no records of these steps, so only those that were frozen as evidence are shown.")
    return _frozen(sources, reading, notes)


def _frozen(sources: Sources, reading: "_Reading", notes: list[str]) -> tuple[Collector, tuple[str, ...]]:
    """The frozen records; judged again only where they are enough for what the journal says to come out again."""
    reader = frozen_reader(sources, reading.story.chapters.records)
    collector = reading.read(reader)
    if not _disagreements(collector):
        return collector, tuple(notes)
    notes.append("No baseline and no threshold is drawn: too few records were frozen to compute them again.")
    return replace(reading, texts={}).read(reader), tuple(notes)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads one incident's records through any reader."""

    story: Story
    texts: Mapping[str, AcceptedPolicy]
    advance: Advance

    def read(self, reader: Reader) -> Collector:
        """Follow each attempt from as far back as the rules look."""
        state, chapters, latches = self.story.state, self.story.chapters, self.story.latches
        span, watched = span_of(chapters, self.story.incident), watched_rules(latches, self.texts)
        narrow = {hashed: narrowed(policy, watched) for hashed, policy in self.texts.items()}
        ranges = tuple(dict.fromkeys((one.skip.first, one.skip.last) for one in chapters.plans if one.skip is not None))
        collector = Collector(span, latches, watched, survivors(state), state.attempt, ranges)
        back = retention(narrow.values())
        for one in state.attempts:
            first = max(span.first, one.branch_step + 1)
            if first > span.last:
                continue
            points = reader(_segments(state, one.number), max(1, first - back), span.last)
            for seen in replayed(points, state, one.number, watched, narrow):
                collector.take(one.number, seen)
                self.advance(seen.point.step)
        return collector


def _segments(state: RunState, attempt: int) -> Sequence[Segment]:
    try:
        return lineage_of(state).surviving(attempt)
    except InvalidLineage:
        return (Segment(attempt, 1, None),)


def _policies(sources: Sources, story: Story) -> tuple[Mapping[str, AcceptedPolicy], list[str]]:
    """Every text of the policies that fired; what cannot be read is left out with the reason."""
    fired = {policy_name(one.policy) for one in story.latches if one.policy is not None}
    notes: list[str] = []
    texts: dict[str, AcceptedPolicy] = {}
    tried: set[str] = set()
    for identity in (one for guard in story.state.guards for one in guard.policies):
        if policy_name(identity) not in fired or identity.hash in tried:
            continue
        tried.add(identity.hash)
        try:
            policy = read_policy(sources.evidence(policy_text(identity.hash)), identity)
            # Under the hash it had: this version may fill in other defaults than the one that accepted it.
            texts[identity.hash] = replace(policy, hash=identity.hash)
        except CliError as error:
            notes.append(
                f"No baseline and no threshold is drawn for {identity.name} generation {identity.generation}: {error}"
            )
    return texts, notes


def _lacking(collector: Collector) -> list[str]:
    """The records at which a rule fired, and which are not there."""
    return [
        f"The archive has no record of step {one.fired_step} of attempt {one.attempt}, where {one.rule} fired."
        for one in collector.latches
        if one.asked is None and (one.attempt, one.fired_step) not in collector.fired
    ]


def _disagreements(collector: Collector) -> list[str]:
    """Whether the records, judged again, give what the journal says."""
    return [said for one in collector.latches for said in _disagreement(collector, one)]


def _disagreement(collector: Collector, latch: Latch) -> list[str]:
    seen = collector.fired.get((latch.attempt, latch.fired_step))
    if seen is None or latch.policy is None:
        return []
    name = policy_name(latch.policy)
    verdict = next((one for key, one in seen.verdicts.items() if (key.policy, key.rule) == (name, latch.rule)), None)
    if verdict is None or verdict.observed is None:
        return []
    compared = (
        ("observed value", latch.observed, verdict.observed),
        ("threshold", latch.threshold, verdict.threshold),
    )
    return [
        f"Judged again, the record of step {latch.fired_step} gives "
        f"{f'no {what}' if again is None else f'the {what} {again:.6g}'}; the journal says {journal}."
        for what, journal, again in compared
        if (said := number(journal)) is not None and (again is None or not _same(said, again))
    ]


def _same(one: float, other: float) -> bool:
    """Equal, but for the last digits of a sum that was taken in another order; NaN is NaN."""
    return (math.isnan(one) and math.isnan(other)) or one == other or math.isclose(one, other, rel_tol=1e-9)
