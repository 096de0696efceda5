"""A checkpoint of two ranks in a store that breaks off, and restores of it that both of them refuse.

Import `store`, `ranks` and `reference` into a test module to use them.
"""

from collections.abc import Iterator

import pytest
from breaking_store import BreakingStore
from checkpoint_ranks import Ranks, image, new_state
from object_store_fixture import ObjectStoreServer
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.slice_index import index_name
from trimtab_trainer.errors import RestoreFailed

SHARD, OTHER = "__1_0.distcp", "__0_0.distcp"
INDEX, OTHER_INDEX = index_name(SHARD), index_name(OTHER)


@pytest.fixture(scope="module")
def store(object_store: ObjectStoreServer) -> BreakingStore:
    return BreakingStore(object_store, object_store.new_bucket())


@pytest.fixture(scope="module")
def ranks(store: BreakingStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    opened = Ranks(store, tmp_path_factory.mktemp("two"))
    yield opened
    opened.close()


@pytest.fixture
def reference(ranks: Ranks) -> CheckpointReference:
    return ranks.saved([new_state(7), new_state(7)], 30)


def refusal(ranks: Ranks, reference: CheckpointReference) -> RestoreFailed:
    """Restore over another state, which every rank must refuse and keep what it has."""
    states = [new_state(8), new_state(8)]
    outcomes = ranks.restore(reference, states)
    assert all(isinstance(outcome, RestoreFailed) for outcome in outcomes), outcomes
    assert [image(state) for state in states] == [image(new_state(8))] * 2
    return outcomes[0]
