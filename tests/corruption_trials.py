"""Checkpoints of one run, damaged at random one after the other, and what becomes of each when it is restored."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from checkpoint_corruption import CORRUPTIONS, INDEX_CORRUPTIONS, AlteredStore, Kept, kept, written
from checkpoint_ranks import RUN, Ranks, new_state
from object_store_fixture import ADMIN, ObjectStoreServer
from torch.distributed.checkpoint.api import CheckpointException
from trimtab_contract.data_position import SkipLedger
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.restoring import Restoration, fits_by_structure
from trimtab_trainer.checkpointing.shards import read_shards
from trimtab_trainer.checkpointing.staging import StagingRoom
from trimtab_trainer.checkpointing.state import FlatState
from trimtab_trainer.errors import RestoreFailed

ROOT = "some/root"
STEPS = (10, 20, 30)
NAIVE_EVERY = 4
"""One round of kinds in so many is tried with a reader that has no hashes, too."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One damaged checkpoint: why it was refused (empty: it was restored), and whether DCP's own reader took it."""

    kind: str
    refused: str
    naive: bool | None


def saved_checkpoints(server: ObjectStoreServer, folder: Path) -> list[Kept]:
    """Three checkpoints of one run, saved by two ranks on a real server."""
    bucket = server.new_bucket()
    store = ObjectStore(bucket, endpoint=server.endpoint, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)
    with closing(Ranks(store, folder, root=ROOT)) as ranks:
        return [kept(store, ranks.saved([new_state(step), new_state(step)], step)) for step in STEPS]


def trials(checkpoints: Sequence[Kept], count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Damage and try so many; every kind of damage takes its turn."""
    random, live = Random(seed), new_state(99).flat()
    naive, fetched = folder / "naive", folder / "fetched"
    naive.mkdir(parents=True)
    fetched.mkdir()
    for case in range(count):
        kind = list(CORRUPTIONS)[case % len(CORRUPTIONS)]
        whole, other = random.sample(list(checkpoints), 2)
        objects = CORRUPTIONS[kind](random, whole, other)
        assert objects != whole.objects, f"seed {seed}, case {case}: {kind} changed nothing"
        compared = kind not in INDEX_CORRUPTIONS and case // len(CORRUPTIONS) % NAIVE_EVERY == 0
        taken = loads_without_a_word(objects, live, naive) if compared else None
        yield Trial(kind, refusal(whole, objects, live, fetched), taken)


def refusal(checkpoint: Kept, objects: dict[str, bytes], live: FlatState, folder: Path) -> str:
    """Why some rank does not restore the checkpoint from these objects; empty when every rank does."""
    store = _altered_store()
    store.content = {f"{checkpoint.prefix}{name}": body for name, body in objects.items()}
    for rank in range(2):
        restoration = Restoration(store, ROOT, (RUN,), rank, 0.0, threading.Event(), lambda: None)
        try:
            restoration.fetch(checkpoint.reference, _beside(live), SkipLedger(), folder, fits_by_structure)
        except RestoreFailed as error:
            return error.reason
    return ""


def loads_without_a_word(objects: dict[str, bytes], live: FlatState, folder: Path) -> bool:
    """Whether DCP's own reader takes the objects for a checkpoint."""
    try:
        read_shards(written(objects, folder), _beside(live))
    except (CheckpointException, OSError):
        return False
    return True


@cache
def _altered_store() -> AlteredStore:
    """Made once: a client of the library takes longer than a trial."""
    return AlteredStore()


def _beside(live: FlatState) -> FlatState:
    return StagingRoom().copy(live)
