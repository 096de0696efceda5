"""Reading what the ranks of a run logged: the windows they trained on, and the records they archived."""

import re
from collections.abc import Sequence

from trimtab_contract import keys
from trimtab_contract.errors import ContractError
from trimtab_contract.evidence import BatchLogEntry, decode_batch_log
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import MetricRecord, decode_archive
from trimtab_operator.run_state import Attempt, RunState

from trimtab_cli.adapters.object_store import ObjectStore
from trimtab_cli.errors import CliError

_RANK = re.compile(r"/a\d{6}-r(\d{6})/")


def read_batch_logs(store: ObjectStore, root: str, run: RunId) -> dict[int, list[BatchLogEntry]]:
    """Every entry of every attempt, by rank; raises CliError when a segment cannot be read."""
    logs: dict[int, list[BatchLogEntry]] = {}
    for key in store.sizes(keys.batches_prefix(root, run)):
        rank = _RANK.search(key)
        if rank is None:
            raise CliError(f"A foreign object lies among the batch logs: {key}.")
        try:
            logs.setdefault(int(rank[1]), []).extend(decode_batch_log(store.get(key)))
        except ContractError as error:
            raise CliError(f"{key}: {error}.") from error
    return logs


def read_surviving_records(
    store: ObjectStore, root: str, run: RunId, attempts: Sequence[Attempt]
) -> dict[int, MetricRecord]:
    """The archived record of each step of the surviving history."""
    owner = RunState(attempts=tuple(attempts)).owner
    found: dict[int, MetricRecord] = {}
    for attempt in attempts:
        for key in store.sizes(keys.records_prefix(root, run, attempt.number)):
            try:
                records = decode_archive(store.get(key))
            except ContractError as error:
                raise CliError(f"{key}: {error}.") from error
            found.update({one.step: one for one in records if owner(one.step) == attempt.number})
    return dict(sorted(found.items()))
