"""Worlds whose checkpoints lie in a real S3 server that is given up on soon, and restores that every rank refuses.

Import `root`, `store` and `world` into a test module to use them.
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_ranks import Ranks, image, new_state
from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_contract.directives import CheckpointReference
from trimtab_trainer.adapters.s3 import ObjectStore, StoreTimeouts
from trimtab_trainer.checkpointing import RestoreFailure, TrainingState
from trimtab_trainer.errors import RestoreFailed

TIMEOUTS = StoreTimeouts(connect_seconds=1, read_seconds=1, attempts=1)


@pytest.fixture(scope="module")
def store(object_store: ObjectStoreServer) -> ObjectStore:
    return store_in(object_store, object_store.new_bucket())


@pytest.fixture
def root() -> str:
    """No two tests share one."""
    return f"tests/{uuid.uuid4().hex}"


def store_in(server: ObjectStoreServer, bucket: str, credentials: Any = ADMIN) -> ObjectStore:
    return ObjectStore(
        bucket,
        endpoint=server.endpoint,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        timeouts=TIMEOUTS,
    )


@pytest.fixture
def world(store: ObjectStore, root: str, tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    opened: list[Ranks] = []

    def open_world(**options: Any) -> Ranks:
        ranks = Ranks(options.pop("store", store), tmp_path / f"world-{len(opened)}", root=root, **options)
        opened.append(ranks)
        return ranks

    yield open_world
    for ranks in opened:
        ranks.close()


def equal_states(seed: int, world_size: int = 2) -> list[TrainingState]:
    return [new_state(seed) for _ in range(world_size)]


def expect_failure(ranks: Ranks, reference: CheckpointReference, reason: RestoreFailure, **options: Any) -> str:
    """Restore over other states; every rank must fail alike and keep what it had. Returns the object named."""
    states = equal_states(99, ranks.world_size)
    before = [image(state) for state in states]
    outcomes = ranks.restore(reference, states, **options)
    assert all(isinstance(outcome, RestoreFailed) for outcome in outcomes), outcomes
    assert {(outcome.reason, outcome.object_name) for outcome in outcomes} == {(reason, outcomes[0].object_name)}
    assert [image(state) for state in states] == before
    return outcomes[0].object_name
