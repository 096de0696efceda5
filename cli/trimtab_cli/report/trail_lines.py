"""The trail and its proof as values. Pure."""

from trimtab_contract.journal import JournalRecord

from trimtab_cli.narrative import words
from trimtab_cli.report.views import Proof, TrailLine
from trimtab_cli.report.words import moment, since
from trimtab_cli.trail import Trail
from trimtab_cli.trail_verification import Verified, told_end, told_signature, told_snapshots, told_versions


def trail_lines(trail: Trail, incident: str, opened: str) -> tuple[TrailLine, ...]:
    """Every record of the run in words; `opened` is when the incident's rule had fired."""
    counted = {one.seq for one in trail.counted}
    return tuple(_trail_line(one, incident, opened, counts=one.seq in counted) for one in trail.records)


def _trail_line(record: JournalRecord, incident: str, opened: str, *, counts: bool) -> TrailLine:
    phase = f" {record.phase.lower()}" if record.phase else ""
    try:
        says = words(record)
    except (AttributeError, KeyError, TypeError, ValueError):
        # A record that was tampered with; the proof names it.
        says = "cannot be told"
    return TrailLine(
        seq=record.seq,
        time=moment(record.time),
        since=since(opened, record.time) if record.incident == incident else "",
        action=f"{record.action}{phase}",
        says=says,
        ours=record.incident == incident,
        counts=counts,
    )


def proof_of(verified: Verified) -> Proof:
    """What verification found."""
    report = verified.report
    return Proof(
        verified=not verified.problems,
        records=report.records,
        head_seq=report.head_seq,
        head_hash=report.head_hash,
        intact_until=report.intact_until,
        end=told_end(report),
        signature=told_signature(verified.signature),
        versions=told_versions(verified.storage),
        snapshots=told_snapshots(report),
        ignored=report.ignored,
        fetched=verified.fetched,
        unchecked=verified.unchecked,
        problems=tuple(verified.problems),
    )
