"""Deletes the data of checkpoints that the journal says are being deleted, and finds what saves left that never ended,
beside all reconciling.

One checkpoint at a time, one Lease duration after its intent was first seen, so that whoever led when it was written
has stopped acting. Every step may be repeated, by this operator or the next: what is gone stays gone, and what is left
is listed again. Nothing here decides; what became of it is an observation.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from zlib import crc32

import structlog
from trimtab_contract.checkpoints import decode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import ContractError, NewerManifest
from trimtab_contract.journal import parse_record
from trimtab_contract.keys import MANIFEST_NAME, RunId, checkpoints_prefix, manifest_identity

from trimtab_operator.adapters.ports import CheckpointStore, JournalStore, Lease, Upload
from trimtab_operator.deletion import being_deleted, may_go
from trimtab_operator.errors import (
    CredentialsRefused,
    NotFound,
    ObjectTooLarge,
    OperatorError,
    StoreRefused,
    StoreUnavailable,
)
from trimtab_operator.leftovers import NO_MANIFEST, find_leftovers
from trimtab_operator.observation import Leftover, Removal
from trimtab_operator.retention import NOBODY
from trimtab_operator.run_state import Checkpoint, RunPhase, RunState
from trimtab_operator.tasks import end_tasks

OBJECTS_AT_ONCE = 64
"""After so many deletions it is asked again whether this operator still leads."""
SEARCH_SECONDS = 6 * 3600.0
"""Between two looks for what saves left that never ended; a look is one listing."""
SEARCH_SPREAD_SECONDS = 3600
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 10.0, 600.0
SHOWN_FILES = 3

_OF_A_CHECKPOINT = re.compile(r"\.metadata|[A-Za-z0-9_.-]+\.(distcp|json)")
"""What a checkpoint's objects are called: all that tells them from others once their manifest is gone."""

log = structlog.stdlib.get_logger(__name__)


async def remove_checkpoint(
    store: CheckpointStore, run: RunId, reference: CheckpointReference, may_act: Callable[[], bool]
) -> Removal | None:
    """Delete what belongs to a checkpoint and nothing else, its manifest first, so that what is left never looks whole.

    None where `may_act` says no on the way. Where other files lie under its prefix nothing is deleted at all.
    Raises StoreUnavailable and StoreRefused.
    """
    try:
        manifest_identity(store.root, run, reference.key)
    except ContractError:
        return Removal(key=reference.key, deleted=False, message="its key is no checkpoint's of this run")
    prefix = reference.key.removesuffix(MANIFEST_NAME)
    found = await store.sizes(prefix)
    try:
        own = await _own_names(store, reference) if reference.key in found else None
    except NewerManifest as error:
        return Removal(key=reference.key, deleted=False, message=f"not deleted, for {error}")
    names = [key.removeprefix(prefix) for key in found]
    foreign = [name for name in names if not (name in own if own else _OF_A_CHECKPOINT.fullmatch(name))]
    if foreign:
        listed = ", ".join(ascii(name) for name in foreign[:SHOWN_FILES])
        more = f" and {len(foreign) - SHOWN_FILES} more" if len(foreign) > SHOWN_FILES else ""
        why = f"not deleted, for files that are not the checkpoint's lie there: {listed}{more}"
        return Removal(key=reference.key, deleted=False, message=why)
    if reference.sha256 == NO_MANIFEST and reference.key in found:
        return Removal(key=reference.key, deleted=False, message="not deleted, for its save has ended after all")
    uploads = await store.uploads(prefix)
    manifest = [key for key in found if key == reference.key]
    rest = [key for key in found if key != reference.key]
    for keys in (manifest, *(rest[at : at + OBJECTS_AT_ONCE] for at in range(0, len(rest), OBJECTS_AT_ONCE))):
        if not may_act():
            return None
        await store.delete(keys)
    if not may_act():
        return None
    parts = await _aborted(store, reference, uploads) if uploads else ""
    size = sum(found.values())
    return Removal(key=reference.key, deleted=True, message=f"{len(found)} objects, {size} bytes{parts} are gone")


async def _aborted(store: CheckpointStore, reference: CheckpointReference, uploads: tuple[Upload, ...]) -> str:
    """Give uploads up; what became of them, as a part of a sentence. A right to do so is no condition of retention."""
    try:
        await store.abort(uploads)
    except CredentialsRefused:
        raise
    except StoreRefused as error:
        log.warning("unfinished uploads stay", key=reference.key, uploads=len(uploads), error=str(error))
        return f" (but {len(uploads)} unfinished uploads, which the credentials may not abort)"
    return f", {len(uploads)} unfinished uploads"


async def _own_names(store: CheckpointStore, reference: CheckpointReference) -> frozenset[str]:
    """The names in the manifest that the journal knows by its hash; none where another one lies there.

    Raises NewerManifest.
    """
    try:
        body = await store.get(reference.key)
        if sha256_hex(body) == reference.sha256:
            return frozenset({MANIFEST_NAME, *decode_manifest(body).objects})
    except NewerManifest:
        raise
    except (NotFound, ObjectTooLarge, ContractError) as error:
        log.warning("manifest of a checkpoint that is deleted cannot be read", key=reference.key, error=str(error))
    return frozenset()


class CheckpointRemover:
    """One run's remover. `wake` is called when something became of a deletion."""

    def __init__(
        self,
        run: RunId,
        journal: JournalStore,
        lease: Lease,
        wake: Callable[[], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        continued: Callable[[], Mapping[str, str] | None] = lambda: NOBODY,
    ) -> None:
        """`clock` is the one on the wall, which the ages of objects are told by. Sends nothing.

        `continued` says which checkpoints other runs go on from, as `Oversight.continued` does.
        """
        self.trouble = ""
        """Why data that are to go are still there, while S3 refuses."""
        self.leftovers: tuple[Leftover, ...] = ()
        """What saves left that never ended, as it was found last."""
        self._clock, self._continued = clock, continued
        self._search_at: float | None = None
        self._run, self._journal, self._lease, self._wake = run, journal, lease, wake
        self._seen: dict[str, float] = {}
        self._removals: dict[str, Removal] = {}
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0

    def removals(self, state: RunState) -> tuple[Removal, ...]:
        """What became of those that the journal still waits for."""
        waiting = {one.reference.key for one in being_deleted(state)}
        return tuple(one for key, one in self._removals.items() if key in waiting)

    def attend(self, now: float, state: RunState, store: CheckpointStore | None) -> float:
        """Go on with what the journal asks for at monotonic time `now`, without waiting for it.

        Returns when to ask again, infinity where nothing is to be done.
        """
        deleting = {one.reference.key: one for one in being_deleted(state)}
        self._seen = {key: self._seen.get(key, now) for key in deleting}
        self._removals = {key: one for key, one in self._removals.items() if key in deleting}
        if not deleting:
            self.trouble = ""
        waiting = [one for key, one in deleting.items() if key not in self._removals and may_go(state, one)]
        if store is None or self._busy():
            return float("inf")
        if not waiting:
            self._attend_search(now, state, store)
            return float("inf")
        due = max(self._not_before, self._seen[waiting[0].reference.key] + self._lease.duration_seconds)
        if now < due:
            return due
        self._task = asyncio.create_task(self._remove(store, waiting[0], state.seq, state.epoch))
        return float("inf")

    def _attend_search(self, now: float, state: RunState, store: CheckpointStore) -> None:
        """Look for leftovers now and then, while the run trains: only then anything of them is deleted."""
        if state.phase is not RunPhase.WATCHING:
            return
        if self._search_at is None:
            # Not all runs at once behind a new operator's start.
            self._search_at = now + crc32(str(self._run).encode()) % SEARCH_SPREAD_SECONDS
        if now >= self._search_at:
            self._search_at = now + SEARCH_SECONDS
            self._task = asyncio.create_task(self._search(store, state))

    async def _search(self, store: CheckpointStore, state: RunState) -> None:
        folder = checkpoints_prefix(store.root, self._run)
        try:
            objects, uploads = await store.times(folder), await store.uploads(folder)
            self.leftovers = find_leftovers(state, store.root, self._run, objects, uploads, self._clock())
        except OperatorError as error:
            log.warning("leftovers of saves not looked for", run=str(self._run), error=str(error))
        except Exception:
            log.exception("defect", run=str(self._run), key=folder)
        self._wake()

    async def close(self) -> None:
        """End what is under way; the next operator goes on with it."""
        if self._task is not None:
            await end_tasks(self._task)

    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _remove(self, store: CheckpointStore, checkpoint: Checkpoint, seq: int, epoch: int) -> None:
        try:
            removal = self._claimed(checkpoint)
            if removal is None and not await self._another_leads(seq, epoch):
                removal = await remove_checkpoint(store, self._run, checkpoint.reference, self._lease.valid)
        except OperatorError as error:
            self._try_later(checkpoint, str(error))
        except Exception:
            log.exception("defect", run=str(self._run), key=checkpoint.reference.key)
            self._try_later(checkpoint, "a defect; the operator's log has it")
        else:
            self._failures, self.trouble = 0, ""
            if removal is not None:
                self._removals[removal.key] = removal
                self.leftovers = tuple(one for one in self.leftovers if one.reference.key != removal.key)
        self._wake()

    def _claimed(self, checkpoint: Checkpoint) -> Removal | None:
        """Another run may have begun to go on from it while its intent was written, and finds it there.

        Raises StoreUnavailable while the journals of other runs are still being read.
        """
        key, continued = checkpoint.reference.key, self._continued()
        if continued is None:
            raise StoreUnavailable("the journals of other runs, which may go on from it, are still being read")
        by = continued.get(key)
        return Removal(key=key, deleted=False, message=f"not deleted, for run {by} goes on from it") if by else None

    async def _another_leads(self, seq: int, epoch: int) -> bool:
        """Whether the journal has a record of a newer operator: a fresh look, for a process may have been frozen."""
        newer = await self._journal.read(self._run, after=seq)
        return any(parse_record(body).actor.epoch > epoch for _, body in newer)

    def _try_later(self, checkpoint: Checkpoint, why: str) -> None:
        wait = min(FIRST_RETRY_SECONDS * 2**self._failures, LAST_RETRY_SECONDS)
        self._failures += 1
        self._not_before = time.monotonic() + wait
        self.trouble = f"the checkpoint of step {checkpoint.reference.step} cannot be deleted now: {why}"
        log.warning("checkpoint not deleted", run=str(self._run), key=checkpoint.reference.key, error=why)
