"""What is kept of an incident in the audit bucket, before the run is said to be held: each object says what it is.

The records around the event, statistics of their vectors, the batches of the suspect steps with the hashes of what the
ranks read, where the pods ran and of which images, and the text of the policy that acted. Which checkpoints were
candidates, and why each was taken or not, is in the record of the plan itself.
"""

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import structlog
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.data_description import DataDescription, decode_data
from trimtab_contract.errors import ContractError
from trimtab_contract.evidence import BatchLogEntry, decode_batch_log
from trimtab_contract.journal import Evidence, plain
from trimtab_contract.keys import (
    RunId,
    audit_evidence,
    batches_stretches,
    data_object,
    data_prefix,
    policy_text,
    segment_steps,
)
from trimtab_contract.metrics import MetricRecord, Vector

from trimtab_operator.adapters.ports import CheckpointStore, JournalStore
from trimtab_operator.errors import OperatorError
from trimtab_operator.incidents import Latch
from trimtab_operator.observation import Pods
from trimtab_operator.resources.training_job import POSITION_FIELDS

MOST_RANKS = 32
"""Of so many ranks the log of batches is read; every rank's is in the checkpoint bucket."""
MOST_RECORDS = 24
"""Of so many suspect records the vectors are spelt out; all are among the records."""
MOST_SAMPLES = 1 << 14
"""So many samples are named."""
READING_SECONDS = 5.0
"""The hold is out, and a rollback waits for no longer than this for the ranks' logs."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What an incident is about: its latch, the records, the newest world's pods and ranks, the data's order."""

    latch: Latch
    body: bytes
    """The records around the event, one JSON object a line."""
    records: tuple[MetricRecord, ...]
    """From the last one before the first bad step on."""
    pods: Pods
    ranks: int
    data_order: Mapping[str, Any]
    """What of the trainer's configuration gives a data position its meaning."""


class EvidenceFreezer:
    """Keeps one run's evidence, each object once for equal bytes."""

    def __init__(self, run: RunId, journal: JournalStore) -> None:
        self._run = run
        self._journal = journal
        self._kept: frozenset[Evidence] = frozenset()
        self._read: tuple[Suspicion, bytes] | None = None

    async def freeze(self, suspicion: Suspicion, store: CheckpointStore | None) -> tuple[Evidence, ...]:
        """Keep all of it, the records first; raises as `JournalStore.put_object`."""
        if self._read is None or self._read[0] != suspicion:
            logs, data = await self._logs(suspicion, store), await self._data(suspicion, store)
            self._read = suspicion, batches(suspicion, logs, data)
        bodies = (suspicion.body, statistics(suspicion.records), self._read[1], placement(suspicion.pods))
        kept = tuple([await self._keep(body) for body in bodies])
        self._kept = frozenset(kept)
        policy = suspicion.latch.policy_hash
        # The text lies there since the policy was accepted, under the hash of its bytes.
        return (*kept, Evidence(key=policy_text(policy), sha256=policy)) if policy else kept

    async def _keep(self, body: bytes) -> Evidence:
        digest = sha256_hex(body)
        kept = Evidence(key=audit_evidence(self._run, digest), sha256=digest)
        if kept not in self._kept:
            await self._journal.put_object(kept.key, body)
        return kept

    async def _logs(
        self, suspicion: Suspicion, store: CheckpointStore | None
    ) -> Mapping[int, tuple[BatchLogEntry, ...]]:
        """By rank, what it logged of the suspect steps; what cannot be read in time is missing."""
        if store is None or not suspicion.records:
            return {}
        attempt, last = suspicion.latch.attempt, suspicion.records[-1].step
        ranks = range(min(suspicion.ranks, MOST_RANKS))
        reads = [_log(store, self._run, attempt, rank, suspicion.latch.first_bad_step, last) for rank in ranks]
        try:
            async with asyncio.timeout(READING_SECONDS):
                found = await asyncio.gather(*reads)
        except (TimeoutError, OperatorError, ContractError) as error:
            log.warning("batch logs not frozen", run=str(self._run), error=str(error) or "no answer in time")
            return {}
        return dict(zip(ranks, found, strict=True))

    async def _data(self, suspicion: Suspicion, store: CheckpointStore | None) -> DataDescription | None:
        """What the attempt said that it trains on, or the last one before it that did: a run's data never change."""
        if store is None:
            return None
        latest = data_object(store.root, self._run, suspicion.latch.attempt)
        try:
            async with asyncio.timeout(READING_SECONDS):
                found = [key for key in await store.sizes(data_prefix(store.root, self._run)) if key <= latest]
                return decode_data(await store.get(max(found))) if found else None
        except (TimeoutError, OperatorError, ContractError) as error:
            log.warning("data not described", run=str(self._run), error=str(error) or "no answer in time")
            return None


async def _log(
    store: CheckpointStore, run: RunId, attempt: int, rank: int, first: int, last: int
) -> tuple[BatchLogEntry, ...]:
    entries: list[BatchLogEntry] = []
    for prefix in batches_stretches(store.root, run, attempt, rank, first, last):
        for key in await store.sizes(prefix):
            begins, ends = segment_steps(key.removesuffix(".jsonl"))
            if begins <= last and ends >= first:
                entries += decode_batch_log(await store.get(key))
    return tuple(one for one in entries if one.attempt == attempt and first <= one.step <= last)


def order_of_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `POSITION_FIELDS` that a trainer's configuration has, under their dotted names."""
    found: dict[str, Any] = {}
    for name in POSITION_FIELDS:
        value: Any = config
        for part in name.split("."):
            value = cast("Mapping[str, Any]", value).get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[name] = value
    return found


def statistics(records: Sequence[MetricRecord]) -> bytes:
    """Each vector of the suspect records, by layer and by head, as JSON."""
    shown = [*records[: MOST_RECORDS // 2], *records[MOST_RECORDS // 2 :][-MOST_RECORDS // 2 :]]
    return _json(
        "VectorStatistics",
        records=[
            {
                "attempt": record.attempt,
                "step": record.step,
                "vectors": {name: _vector(vector) for name, vector in record.vectors.items()},
            }
            for record in shown
        ],
    )


def _vector(vector: Vector) -> dict[str, Any]:
    values, layers = vector.values(), vector.shape[0] if vector.shape else 1
    width = len(values) // layers
    rows = [values[row * width : (row + 1) * width] for row in range(layers)]
    return {"shape": list(vector.shape), "layers": [_row(row) for row in rows], "values": [list(row) for row in rows]}


def _row(row: Sequence[float]) -> dict[str, Any]:
    finite = [value for value in row if math.isfinite(value)]
    return {
        "min": min(finite, default=None),
        "mean": math.fsum(finite) / len(finite) if finite else None,
        "max": max(finite, default=None),
        "nonfinite": len(row) - len(finite),
    }


def batches(
    suspicion: Suspicion, logs: Mapping[int, Sequence[BatchLogEntry]], data: DataDescription | None = None
) -> bytes:
    """The windows of the suspect steps, their samples, and what each rank read, as JSON.

    `samples` has source and index of each position in turn, of as many steps as `MOST_SAMPLES` allow; those of any
    other follow from `data`, which is `trimtab_contract.data_description.DataDescription`.
    """
    batch = suspicion.data_order.get("globalBatch")
    hashes: dict[int, dict[str, str]] = {}
    for rank, entries in logs.items():
        for entry in entries:
            hashes.setdefault(entry.step, {})[str(rank)] = entry.sha256
    steps = [
        {
            "step": record.step,
            "window": record.window,
            "positions": [record.window * batch, (record.window + 1) * batch - 1] if isinstance(batch, int) else None,
            "samples": _samples(record.window, data) if number < _spelt_out(data) else None,
            "sha256ByRank": hashes.get(record.step, {}),
        }
        for number, record in enumerate(suspicion.records)
    ]
    return _json(
        "Batches",
        attempt=suspicion.latch.attempt,
        ranks=suspicion.ranks,
        order=dict(suspicion.data_order),
        data=None if data is None else msgspec.to_builtins(data),
        steps=steps,
    )


def _spelt_out(data: DataDescription | None) -> int:
    """Of how many steps the samples are named."""
    return 0 if data is None else MOST_SAMPLES // data.global_batch


def _samples(window: int, data: DataDescription | None) -> list[list[Any]] | None:
    if data is None:
        return None
    return [list(data.named(sample)) for sample in data.data_order().samples_of_window(window)]


def placement(pods: Pods) -> bytes:
    """Where the pods of the newest world ran, and of which images, as JSON."""
    places = [
        {"index": one.index, "pod": one.pod, "node": one.node, "image": one.image, "digest": _digest(one.image)}
        for one in pods.places
    ]
    return _json("Placement", world=pods.world, pods=places)


def _digest(image: str) -> str | None:
    found = re.search(r"sha256:[0-9a-f]{64}\Z", image)
    return found[0] if found else None


def _json(kind: str, **content: Any) -> bytes:
    return json.dumps(plain({"kind": kind, **content}), sort_keys=True).encode()
