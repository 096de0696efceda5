"""Where an incident's metric records are read from: the archive beside the checkpoints, else the frozen evidence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

import msgspec
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.errors import UNREADABLE, ContractError
from trimtab_contract.evidence import ProbeEvidence, decode_probe
from trimtab_contract.journal import JournalRecord
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import Vector
from trimtab_operator.run_state import JournalAction
from trimtab_policies.lineage import Segment
from trimtab_policies.log_readers.points import LogPoint

from trimtab_cli.access import Access
from trimtab_cli.adapters.object_store import BucketAddress, ObjectStore
from trimtab_cli.errors import CliError, UsageError
from trimtab_cli.report.samples import Batches, decode_batches
from trimtab_cli.run_records import archived_points

Reader = Callable[[Sequence[Segment], int, int], Iterator[LogPoint]]
"""The records of steps `first` to `last` of a surviving history, in order."""


class _FrozenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A metric record as JSON, in which numbers that are not finite are texts."""

    attempt: int
    step: int
    window: int
    time: float
    scalars: dict[str, float | str]
    vectors: dict[str, Vector] = {}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The bucket with the checkpoints and the archive; None where it cannot be reached, and why."""

    store: ObjectStore | None
    root: str
    why_not: str = ""


def find_checkpoints(access: Access, run: RunId, uri: str | None) -> Checkpoints:
    """The bucket of the run's job, or the one that `uri` (`s3://BUCKET/ROOT`) names for a job that is gone."""
    if uri is not None:
        location = urlsplit(uri)
        if location.scheme != "s3" or not location.netloc:
            raise UsageError(f"--checkpoints {uri!r} is no address like s3://BUCKET/ROOT.")
        environment = access.environment
        keys = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
        address = BucketAddress(location.netloc, access.checkpoint_endpoint or "", *keys)
        return Checkpoints(ObjectStore(address), location.path.strip("/"))
    try:
        store, root = access.checkpoints(access.job_of(run))
    except CliError as error:
        return Checkpoints(None, "", str(error))
    return Checkpoints(store, root)


class Sources:
    """Where the content of a page lies: evidence and policy texts by key, each read once; the archive, if there is one.

    `evidence` raises CliError; `why_not` says why there is no archive.
    """

    def __init__(self, evidence: Callable[[str], bytes], archive: Reader | None, why_not: str = "") -> None:
        self.evidence = cache(evidence)
        self.archive = archive
        self.why_not = why_not


def archive_reader(store: ObjectStore, root: str, run: RunId) -> Reader:
    """Reads the archive that rank 0 kept."""
    return lambda segments, first, last: archived_points(store, root, run, segments, first, last)


def frozen_reader(sources: Sources, records: Sequence[JournalRecord]) -> Reader:
    """Reads what was frozen when the incident's ranks held: the records around each firing, and no others."""
    known: dict[tuple[int, int], LogPoint] = {}
    for record in records:
        if record.action == JournalAction.HELD:
            for body in _bodies(sources, record):
                known.update({((point.attempt or 0), point.step): point for point in frozen_points(body)})

    def read(segments: Sequence[Segment], first: int, last: int) -> Iterator[LogPoint]:
        for segment in segments:
            end = last if segment.last is None else min(last, segment.last)
            for step in range(max(first, segment.first), end + 1):
                if (segment.attempt, step) in known:
                    yield known[segment.attempt, step]

    return read


def frozen_points(body: bytes) -> Iterator[LogPoint]:
    """The records of a frozen object, one JSON object a line; lines that are no records are left out."""
    for index, line in enumerate(body.splitlines(), 1):
        try:
            record = msgspec.json.decode(line, type=_FrozenRecord)
            scalars = {name: float(value) for name, value in record.scalars.items()}
            for name, vector in record.vectors.items():
                vector.check(name)
        except (ValueError, *UNREADABLE):
            continue
        yield LogPoint(
            step=record.step,
            attempt=record.attempt,
            window=record.window,
            time=record.time,
            scalars=scalars,
            vectors=record.vectors,
            line=index,
        )


def probes_of(sources: Sources, records: Sequence[JournalRecord]) -> Iterator[tuple[JournalRecord, ProbeEvidence]]:
    """The losses that were measured forward-only, with the record that names them."""
    for record in records:
        for body in _bodies(sources, record):
            try:
                yield record, decode_probe(body)
            except ContractError:
                continue  # Other evidence than a probe's.


def batches_of(sources: Sources, records: Sequence[JournalRecord]) -> Iterator[Batches]:
    """What was frozen of the batches of the suspect steps."""
    for record in records:
        if record.action == JournalAction.HELD:
            for body in _bodies(sources, record):
                found = decode_batches(body)
                if found is not None:
                    yield found


def _bodies(sources: Sources, record: JournalRecord) -> Iterator[bytes]:
    """The objects that a record names in the audit bucket, as far as they are what it names."""
    for evidence in record.evidence:
        if evidence.store != "audit":
            continue
        try:
            body = sources.evidence(evidence.key)
        except CliError:
            continue  # The proof says so.
        if sha256_hex(body) == evidence.sha256:
            yield body
