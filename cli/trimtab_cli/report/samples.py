"""Which samples the suspect steps trained on, and what each rank says that it read of them. Pure."""

from collections.abc import Iterable

import msgspec
from trimtab_contract.errors import UNREADABLE

from trimtab_cli.report.views import Block, Fact, Table

MOST_SAMPLES_NAMED = 64
"""Of one window; all are in the evidence."""
MOST_RANKS_NAMED = 4
HASH_DIGITS = 16


class SuspectStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A step as the evidence has it: its samples as source and index, and a SHA-256 by rank."""

    step: int
    window: int
    samples: tuple[tuple[str, int], ...] | None = None
    sha256_by_rank: dict[str, str] = {}


class Batches(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="Batches"):
    """The frozen object that an incident keeps of its batches."""

    attempt: int
    steps: tuple[SuspectStep, ...]


def decode_batches(body: bytes) -> Batches | None:
    """The object, or None where it is another kind of evidence."""
    try:
        return msgspec.json.decode(body, type=Batches)
    except (ValueError, *UNREADABLE):
        return None


def sample_views(found: Iterable[Batches]) -> tuple[Block, ...]:
    """One block for each hold: the last step before the damage, and the suspect ones."""
    return tuple(dict.fromkeys(_view(one) for one in found if one.steps))


def _view(batches: Batches) -> Block:
    rows = tuple((str(one.step), str(one.window), _samples(one), _hashes(one)) for one in batches.steps)
    columns = ("Step", "Window", "Samples by source, in batch order", "SHA-256 of what was read")
    facts = (Fact("Attempt", str(batches.attempt)),)
    return Block("Batches of the suspect steps", facts, (Table("From the last step before them on", columns, rows),))


def _samples(step: SuspectStep) -> str:
    if step.samples is None:
        return "not named"
    by_source: dict[str, list[str]] = {}
    for source, sample in step.samples[:MOST_SAMPLES_NAMED]:
        by_source.setdefault(source, []).append(str(sample))
    more = len(step.samples) - MOST_SAMPLES_NAMED
    named = "; ".join(f"{source}: {', '.join(samples)}" for source, samples in by_source.items())
    return f"{named}; {more} more" if more > 0 else named


def _hashes(step: SuspectStep) -> str:
    ranks = sorted(step.sha256_by_rank, key=lambda rank: (len(rank), rank))
    named = "; ".join(f"rank {rank} {step.sha256_by_rank[rank][:HASH_DIGITS]}" for rank in ranks[:MOST_RANKS_NAMED])
    more = len(ranks) - MOST_RANKS_NAMED
    return f"{named}; {more} more ranks" if more > 0 else named or "not logged"
