"""Makes a recorded incident of a trail that `trimtab audit export` packed: any run's incident can be kept.

The trail has the journal, the policies' texts, the metric records that were frozen with each hold, and what was
measured. What an operator saw besides is in none of it, so only what follows from these is decided again.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from recording import Act, EvidenceLine, Header, MetricsLine, PolicyLine, Recording, RecordLine
from trimtab_cli.trail_file import TrailFile
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.journal import JournalRecord, parse_record
from trimtab_contract.keys import policy_text
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.commands import DECISION_VERSION
from trimtab_operator.journal_fold import fold_all
from trimtab_operator.run_state import JournalAction
from trimtab_policies.policy import AcceptedPolicy, parse_policy

AUDIT = "audit"
SOURCE = "a trail that `trimtab audit export` packed"


def trail_recording(name: str, title: str, trail: TrailFile) -> Recording:
    """The recording of a trail; what the trail lacks is missing in it, too."""
    records = [parse_record(body) for _, body in trail.bodies]
    policies = _policies(records, trail.objects)
    frozen, measured = _evidence(records, trail.objects)
    acts: list[Act] = [PolicyLine.of(policy) for policy in policies]
    acts += [MetricsLine.of(frozen[place]) for place in sorted(frozen)]
    acts += [EvidenceLine(sha256=sha256_hex(body), body=msgspec.Raw(body)) for body in measured]
    acts += [RecordLine(body=msgspec.Raw(body)) for _, body in trail.bodies]
    header = Header(
        name=name,
        title=title,
        source=SOURCE,
        run=str(trail.run),
        job=trail.run.name,
        decision_version=DECISION_VERSION,
    )
    return Recording(header, tuple(acts))


def _policies(records: Iterable[JournalRecord], objects: Mapping[tuple[str, str], bytes]) -> tuple[AcceptedPolicy, ...]:
    found: dict[str, AcceptedPolicy] = {}
    for guard in fold_all(records).guards:
        for one in guard.policies:
            spec = parse_policy(json.loads(objects[AUDIT, policy_text(one.hash)]))
            found[one.hash] = AcceptedPolicy(
                one.kind, one.namespace or None, one.name, one.uid, one.generation, one.hash, spec
            )
    return tuple(found.values())


def _evidence(
    records: Iterable[JournalRecord], objects: Mapping[tuple[str, str], bytes]
) -> tuple[dict[tuple[int, int], MetricRecord], tuple[bytes, ...]]:
    """The metric records of every hold, and what worlds measured, each once."""
    frozen: dict[tuple[int, int], MetricRecord] = {}
    measured: dict[bytes, None] = {}
    for record in records:
        for one in record.evidence:
            body = objects.get((one.store, one.key)) if one.store == AUDIT else None
            if body is None:
                continue
            if record.action == JournalAction.HELD:
                lines = [cast("dict[str, Any]", json.loads(line)) for line in body.splitlines()]
                found = [_metrics(line) for line in lines if "scalars" in line]  # else it tells of batches
                frozen.update({(line.attempt, line.step): line for line in found})
            elif record.action in {JournalAction.DIAGNOSED, JournalAction.EXTENT_FOUND, JournalAction.NEEDS_HUMAN}:
                measured[body] = None
    return frozen, tuple(measured)


def _metrics(raw: Mapping[str, Any]) -> MetricRecord:
    """A record as evidence has it: numbers that are not finite are words."""
    scalars = {name: float(value) for name, value in raw["scalars"].items()}
    return msgspec.convert({**raw, "scalars": scalars}, type=MetricRecord)
