"""What saves that never ended left in the checkpoint bucket: objects without a manifest, and uploads in parts. Pure.

A trainer that is killed aborts nothing, and a prefix is never used again; so what lies there stays, is no checkpoint
and never becomes one.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import MANIFEST_NAME, RunId, checkpoints_prefix, manifest_identity

from trimtab_operator.adapters.ports import Upload
from trimtab_operator.observation import Leftover
from trimtab_operator.run_state import RunState

LEAST_AGE = timedelta(days=1)
"""Far longer than the deadline of any save, and than any two clocks differ."""

NO_MANIFEST = "0" * 64
"""In the place of the hash of a manifest that was never written."""


def find_leftovers(
    state: RunState,
    root: str,
    run: RunId,
    objects: Mapping[str, datetime],
    uploads: Iterable[Upload],
    now: datetime,
) -> tuple[Leftover, ...]:
    """What may go, oldest step first: under a prefix of this run without a manifest, which the journal does not know,
    where nothing is younger than `LEAST_AGE`, and of which the save is known to be over.

    `objects` are when each was last written.
    """
    folder = checkpoints_prefix(root, run)
    touched: dict[str, datetime] = {}
    for key, time in (*objects.items(), *((one.key, one.begun) for one in uploads)):
        if key.startswith(folder):
            prefix = _prefix(folder, key)
            touched[prefix] = max(time, touched.get(prefix, time))
    found: list[Leftover] = []
    for prefix, youngest in touched.items():
        manifest = f"{prefix}{MANIFEST_NAME}"
        try:
            step, attempt = manifest_identity(root, run, manifest)
        except ContractError:
            continue
        if manifest in objects or state.knows(manifest) or now - youngest < LEAST_AGE:
            continue
        if _is_over(state, step, attempt):
            reference = CheckpointReference(key=manifest, sha256=NO_MANIFEST, step=step)
            found.append(Leftover(reference=reference, attempt=attempt, since=youngest.isoformat(timespec="seconds")))
    return tuple(sorted(found, key=lambda one: (one.reference.step, one.reference.key)))


def _prefix(folder: str, key: str) -> str:
    """The part of a key up to the first slash below the folder of all checkpoints."""
    name, slash, _ = key.removeprefix(folder).partition("/")
    return f"{folder}{name}{slash}"


def _is_over(state: RunState, step: int, attempt: int) -> bool:
    """Whether a save cannot be on its way any more: a trainer makes one after another, and each attempt its own."""
    later = any(one.attempt == attempt and one.reference.step > step for one in state.checkpoints)
    return attempt < state.attempt or later
