"""All that can be held against a trail: chain and fold, anchor and signature, evidence, the bucket's versions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab_contract.anchors import Anchor
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.keys import RunId, journal_prefix
from trimtab_operator.signatures import AnchorVerifier

from trimtab_cli.access import Access, Bodies
from trimtab_cli.adapters.object_store import ObjectStore
from trimtab_cli.anchor_signature import SignatureReport, check_signature
from trimtab_cli.bucket_versions import StorageReport, Versioning, storage_report
from trimtab_cli.errors import CliError, NotFound
from trimtab_cli.job_view import section
from trimtab_cli.output import Output
from trimtab_cli.trail import (
    NamedEvidence,
    TrailReport,
    deleted_manifests,
    examine,
    named_evidence,
    readable_records,
)
from trimtab_cli.trail_file import TrailFile

_WITHOUT = "Give --without-checkpoints to prove the trail and the audit bucket alone"

_LEAVE_OUT = "Give --without-checkpoints to leave them out"


class Verified:
    """A trail's report together with what its evidence, its anchor's signature and its bucket turned out to be."""

    def __init__(
        self,
        report: TrailReport,
        signature: SignatureReport,
        storage: StorageReport | None,
        evidence_problems: list[str],
        fetched: int,
        unchecked: int,
        deleted: int = 0,
    ) -> None:
        self.report = report
        self.signature = signature
        self.storage = storage
        behind = storage.problems if storage is not None else ()
        self.problems = (*report.problems, *signature.problems, *behind, *evidence_problems)
        self.fetched = fetched
        self.unchecked = unchecked
        self.deleted = deleted


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a trail outside its bucket."""

    anchor: Anchor | None = None
    vouched: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class StoredTrail:
    """A run's journal as it was read, and what was known of it outside before that."""

    known: Known
    bodies: Bodies


def read_stored(access: Access, run: RunId) -> StoredTrail:
    """Read a journal; raises NotFound where there is none.

    What vouches for it is asked for first: a run that goes on meanwhile has more records then than were vouched for.
    The other way round it would have fewer, and would look like one whose end was cut off.
    """
    known = known_outside(access, run)
    return StoredTrail(known, access.journal(run))


def known_outside(access: Access, run: RunId) -> Known:
    """The run's JournalAnchor, and the record that its TrainingJob's status knows, where the cluster can be asked."""
    try:
        anchor = access.anchor_of(run)
    except CliError:
        anchor = None
    head: Mapping[str, Any] = {}
    try:
        head = section(section(access.job_of(run), "status"), "journal")
    except CliError:
        return Known(anchor, None)
    return Known(anchor, (int(head["seq"]), str(head["hash"])) if head else None)


def verify_run(
    output: Output,
    access: Access,
    run: RunId,
    stored: StoredTrail,
    *,
    checkpoints: bool = True,
    store: ObjectStore | None = None,
    keys: Sequence[AnchorVerifier] = (),
) -> Verified:
    """Verify a journal and fetch and hash every object it names; `store` is the checkpoint bucket, where known."""
    items = named_evidence(readable_records(stored.bodies))
    getters, problems = evidence_getters(access, run, items, checkpoints=checkpoints, store=store)
    with output.busy("looking at the bucket's versions"):
        storage = look_at_versions(access, run, items)
    return _verified(output, run, stored, keys, storage, getters, problems, lambda: access.journal(run))


def verify_file(output: Output, trail: TrailFile, keys: Sequence[AnchorVerifier] = ()) -> Verified:
    """Verify a packed trail by itself; without `keys` by the public keys that were packed with it."""
    getters: dict[str, Callable[[str], bytes]] = {"audit": _packed(trail, "audit")}
    if trail.checkpoints:
        getters["checkpoint"] = _packed(trail, "checkpoint")
    stored = StoredTrail(Known(trail.anchor, trail.vouched), trail.bodies)
    return _verified(output, trail.run, stored, keys or trail.keys, trail.storage, getters, [], lambda: trail.bodies)


def gather_trail(
    output: Output,
    access: Access,
    run: RunId,
    stored: StoredTrail,
    *,
    checkpoints: bool = True,
    keys: Sequence[AnchorVerifier] = (),
) -> TrailFile:
    """Fetch all that a trail names, as it is; raises CliError where a bucket cannot be reached."""
    known, bodies = stored.known, stored.bodies
    items = named_evidence(readable_records(bodies))
    getters, problems = evidence_getters(access, run, items, checkpoints=checkpoints)
    if problems:
        raise CliError(problems[0].replace("are not proved", "cannot be packed").replace(_WITHOUT, _LEAVE_OUT))
    objects, gone = _fetched(output, items, getters)
    if gone:
        # A run that goes on may have deleted a checkpoint meanwhile; its newer records say so, and may name more.
        bodies = access.journal(run)
        items = named_evidence(readable_records(bodies))
        objects |= _fetched(output, [item for item in items if _place(item) not in objects], getters)[0]
    storage = look_at_versions(access, run, items)
    return TrailFile(run, bodies, objects, known.anchor, tuple(keys), known.vouched, storage, checkpoints)


def _fetched(
    output: Output, items: Sequence[NamedEvidence], getters: Mapping[str, Callable[[str], bytes]]
) -> tuple[dict[tuple[str, str], bytes], bool]:
    """The bytes of what is there, by store and key, and whether anything is gone: `verify` says what."""
    objects: dict[tuple[str, str], bytes] = {}
    wanted = [one for one in items if one.evidence.store in getters]
    for item in output.each(wanted, "fetching evidence"):
        try:
            objects[_place(item)] = getters[item.evidence.store](item.evidence.key)
        except NotFound:
            continue
    return objects, any(_place(item) not in objects for item in wanted)


def _place(item: NamedEvidence) -> tuple[str, str]:
    return item.evidence.store, item.evidence.key


def _verified(
    output: Output,
    run: RunId,
    stored: StoredTrail,
    keys: Sequence[AnchorVerifier],
    storage: StorageReport | None,
    getters: Mapping[str, Callable[[str], bytes]],
    problems: list[str],
    journal_now: Callable[[], Bodies],
) -> Verified:
    known, bodies = stored.known, stored.bodies
    report = examine(bodies, known.vouched, known.anchor, run)
    records = readable_records(bodies)
    items, gone = named_evidence(records), deleted_manifests(records)
    deleted = [item for item in items if _went(item, gone)]
    known_store = [item for item in items if item.evidence.store in getters or item.evidence.store != "checkpoint"]
    wanted = [item for item in known_store if item not in deleted]
    unchecked = len(items) - len(wanted) - len(deleted)
    found = {item: _check(item, getters) for item in output.each(wanted, "fetching evidence")}
    if any(found.values()):
        # A run that goes on may have deleted a checkpoint since its journal was read.
        gone = deleted_manifests(readable_records(journal_now()))
        deleted += [item for item in wanted if found[item] and _went(item, gone)]
        wanted = [item for item in wanted if item not in deleted]
    problems += [found[item] for item in wanted if found[item]]
    signature = check_signature(known.anchor, keys)
    return Verified(report, signature, storage, problems, len(wanted), unchecked, len(deleted))


def _went(item: NamedEvidence, deleted: frozenset[str]) -> bool:
    return item.evidence.store == "checkpoint" and item.evidence.key in deleted


def evidence_getters(
    access: Access,
    run: RunId,
    items: Sequence[NamedEvidence],
    *,
    checkpoints: bool,
    store: ObjectStore | None = None,
) -> tuple[dict[str, Callable[[str], bytes]], list[str]]:
    """How to fetch what a trail names, by store, and why some of it cannot be fetched."""
    getters: dict[str, Callable[[str], bytes]] = {"audit": access.audit.get}
    elsewhere = sum(item.evidence.store == "checkpoint" for item in items)
    if not checkpoints or not elsewhere:
        return getters, []
    try:
        getters["checkpoint"] = (store or access.checkpoints(access.job_of(run))[0]).get
    except CliError as error:
        unproved = f"{elsewhere} objects in the checkpoint bucket are not proved"
        return getters, [f"{unproved}, for where it is cannot be told now: {error} {_WITHOUT}"]
    return getters, []


def look_at_versions(access: Access, run: RunId, items: Sequence[NamedEvidence]) -> StorageReport:
    """What the audit bucket's versions say of every record and every object that the trail names there."""
    audit = access.audit
    versioning = audit.versioning()
    if versioning is not Versioning.ENABLED:
        return storage_report(versioning, {})
    found = audit.versions(journal_prefix(run))
    for key in {item.evidence.key for item in items if item.evidence.store == "audit"}:
        found |= {name: one for name, one in audit.versions(key).items() if name == key}
    return storage_report(versioning, found)


def _packed(trail: TrailFile, store: str) -> Callable[[str], bytes]:
    def get(key: str) -> bytes:
        try:
            return trail.objects[store, key]
        except KeyError:
            raise NotFound(f"{key} is not in the file.") from None

    return get


def _check(item: NamedEvidence, getters: Mapping[str, Callable[[str], bytes]]) -> str:
    evidence = item.evidence
    if evidence.store not in getters:
        return f"record {item.seq}: its evidence {evidence.key} lies in an unknown store, {evidence.store}"
    try:
        found = sha256_hex(getters[evidence.store](evidence.key))
    except NotFound:
        return f"record {item.seq}: its evidence {evidence.key} is gone"
    return "" if found == evidence.sha256 else f"record {item.seq}: its evidence {evidence.key} has another hash"


def as_json(run: RunId, verified: Verified) -> dict[str, Any]:
    """The answer of `audit verify`."""
    report, storage = verified.report, verified.storage
    return {
        "run": str(run),
        "verified": not verified.problems,
        "records": report.records,
        "headSeq": report.head_seq,
        "headHash": report.head_hash,
        "intactUntil": report.intact_until,
        "vouchedUntil": report.vouched_until,
        "anchoredUntil": report.anchored_until,
        "ended": report.ended,
        "signature": verified.signature.state,
        "signingKey": verified.signature.key_id,
        "versioning": storage.versioning if storage is not None else Versioning.UNKNOWN,
        "snapshotsComputed": report.snapshots,
        "snapshotsOfOtherVersions": report.other_snapshots,
        "phase": report.phase,
        "fencedRecords": report.ignored,
        "evidenceFetched": verified.fetched,
        "evidenceUnchecked": verified.unchecked,
        "evidenceDeleted": verified.deleted,
        "problems": verified.problems,
    }


def report_lines(run: RunId, verified: Verified) -> list[tuple[str, str]]:
    """The answer of `audit verify` for people, as (text, style)."""
    report = verified.report
    lines = [(f"run {run}: {report.records} records, phase {report.phase}", "")]
    if report.ignored:
        listed = ", ".join(map(str, report.ignored))
        lines.append((f"records of an operator that had been replaced, which count for nothing: {listed}", ""))
    lines += [(problem, "red") for problem in verified.problems]
    lines.append((f"the chain is intact from record 1 to {report.intact_until} of {report.head_seq}", ""))
    lines.append((told_end(report), ""))
    lines.append((told_signature(verified.signature), ""))
    lines.append((told_versions(verified.storage), ""))
    if snapshots := told_snapshots(report):
        lines.append((f"snapshots: {snapshots}", ""))
    unchecked = f", {verified.unchecked} not fetched" if verified.unchecked else ""
    deleted = f"; {verified.deleted} manifests went with checkpoints that nothing needed" if verified.deleted else ""
    lines.append((f"evidence: {verified.fetched} objects fetched and hashed{unchecked}{deleted}", ""))
    failed = f"NOT verified: {len(verified.problems)} problem(s)"
    lines.append((failed, "bold red") if verified.problems else ("verified", "bold green"))
    return lines


def told_end(report: TrailReport) -> str:
    """How far the end of the trail is proved, and by what."""
    if not report.vouched_until:
        return f"nothing outside the bucket vouches for the end: proved up to record {max(0, report.head_seq - 1)}"
    by = "its JournalAnchor" if report.anchored_until == report.vouched_until else "the TrainingJob's status"
    rest = report.head_seq - report.vouched_until
    behind = f"; the {rest} behind it are known to the bucket alone" if rest > 0 else ""
    last = "; it is the run's last, for its TrainingJob was deleted" if report.ended else ""
    whole = report.intact_until >= report.vouched_until
    before = "and so all before it" if whole else f"but from record {report.intact_until + 1} on the chain is broken"
    return f"record {report.vouched_until} is vouched for by {by}, outside the bucket, {before}{last}{behind}"


def told_versions(storage: StorageReport | None) -> str:
    """What the bucket's versions prove."""
    return storage.says if storage is not None else "nothing is known of the bucket's versions"


def told_snapshots(report: TrailReport) -> str:
    """How many snapshots were computed again; empty where there is none."""
    if not report.snapshots and not report.other_snapshots:
        return ""
    others = f", {report.other_snapshots} of another version hashed only" if report.other_snapshots else ""
    return f"{report.snapshots} computed again from the records{others}"


def told_signature(signature: SignatureReport) -> str:
    """What the anchor's signature proves."""
    return {
        "NoAnchor": "there is no JournalAnchor, or none that could be asked for",
        "Unsigned": "the anchor is not signed: whoever may write JournalAnchors could have written it",
        "NotChecked": f"the anchor names key {signature.key_id}; give --public-key to check its signature",
        "Verified": f"the anchor is signed by key {signature.key_id}",
        "Wrong": f"the anchor is not signed by key {signature.key_id}, which it names",
    }[signature.state]
