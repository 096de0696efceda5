"""The archived records of a job's run, as points, and the policies that were in force for them."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from trimtab_contract import keys
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import MetricRecord, decode_archive
from trimtab_operator.incidents import PolicyIdentity
from trimtab_operator.run_state import RunState
from trimtab_policies.errors import InvalidLineage, InvalidPolicy
from trimtab_policies.lineage import Attempt, Lineage, Segment
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy, parse_policy

from trimtab_cli.adapters.object_store import ObjectStore
from trimtab_cli.errors import CliError, NotFound

_PARALLEL_READS = 8


def surviving_segments(state: RunState, attempt: int) -> tuple[Segment, ...]:
    """The surviving history of an attempt; raises NotFound."""
    lineage = Lineage(Attempt(one.number, one.parent, one.branch_step) for one in state.attempts)
    try:
        return lineage.surviving(attempt)
    except InvalidLineage as error:
        known = ", ".join(str(one.number) for one in state.attempts) or "none"
        raise NotFound(f"The run has no attempt {attempt}; it has {known}.") from error


def archived_points(
    store: ObjectStore, root: str, run: RunId, segments: Sequence[Segment], first: int, last: int
) -> Iterator[LogPoint]:
    """The records of steps `first` to `last` of a surviving history as points, in order."""
    return map(LogPoint.of, archived_records(store, root, run, segments, first, last))


def archived_records(
    store: ObjectStore, root: str, run: RunId, segments: Sequence[Segment], first: int, last: int
) -> Iterator[MetricRecord]:
    """The records of steps `first` to `last` of a surviving history, in order."""
    for segment in segments:
        begin, end = max(first, segment.first), min(last, segment.last or last)
        if begin > end:
            continue
        stored = store.sizes(keys.records_prefix(root, run, segment.attempt))
        for key, body in _fetched(store, [key for key in stored if _holds_any(key, begin, end)]):
            try:
                records = decode_archive(body)
            except ContractError as error:
                raise CliError(f"{key}: {error}.") from error
            yield from (record for record in records if begin <= record.step <= end)


def _holds_any(key: str, first: int, last: int) -> bool:
    """Whether an archived stretch has any of the steps; raises CliError."""
    try:
        begin, end = keys.segment_steps(key)
    except ContractError as error:
        raise CliError(f"{key}: {error}.") from error
    return begin <= last and end >= first


def _fetched(store: ObjectStore, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The objects in order, a few at a time in parallel, so that memory holds no more than those."""
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        for index in range(0, len(wanted), _PARALLEL_READS):
            some = wanted[index : index + _PARALLEL_READS]
            yield from zip(some, pool.map(store.get, some), strict=True)


def policies_in_force(audit: ObjectStore, state: RunState, attempt: int, step: int) -> tuple[AcceptedPolicy, ...]:
    """The policies that judged a record, as the journal says and with the texts kept then; raises NotFound."""
    guard = state.guard_at(attempt, step)
    if guard is None:
        raise NotFound("The journal names no policy of this run: name policy files.")
    return tuple(policy_of(audit, identity) for identity in guard.policies)


def policy_of(audit: ObjectStore, identity: PolicyIdentity) -> AcceptedPolicy:
    """A policy that the journal names, with the text kept under its hash; raises CliError when that is another."""
    return read_policy(audit.get(keys.policy_text(identity.hash)), identity)


def read_policy(text: bytes, identity: PolicyIdentity) -> AcceptedPolicy:
    """The policy that the journal names, from its text; raises CliError when that is another's."""
    key = keys.policy_text(identity.hash)
    if sha256_hex(text) != identity.hash:
        raise CliError(f"{key} is not the policy that the journal names: its SHA-256 is another.")
    try:
        spec = parse_policy(json.loads(text))
    except (ValueError, InvalidPolicy) as error:
        raise CliError(f"{key} is no policy that this version reads: {error}.") from error
    return AcceptedPolicy.of(
        spec,
        kind=identity.kind,
        namespace=identity.namespace or None,
        name=identity.name,
        uid=identity.uid,
        generation=identity.generation,
    )
