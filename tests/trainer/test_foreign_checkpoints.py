"""Manifests of another run, or that say what cannot be, are never put into the live state."""

from collections.abc import Callable

from checkpoint_ranks import Ranks, image, new_state
from opened_worlds import equal_states, expect_failure, root, store, world
from stored_slices import manifest_of, rewritten
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.keys import RunId
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import RestoreFailure

__all__ = ["root", "store", "world"]


def test_a_manifest_under_another_runs_prefix_is_refused(world: Callable[..., Ranks]) -> None:
    reference = world(run_id=RunId("team", "run", "ffff")).saved(equal_states(7), 30)
    expect_failure(world(), reference, RestoreFailure.OTHER_RUN)


def test_a_manifest_that_names_another_run_is_refused(world: Callable[..., Ranks], store: ObjectStore) -> None:
    ranks = world()
    forged = rewritten(store, ranks.saved(equal_states(7), 30), run="team/run/ffff")
    expect_failure(ranks, forged, RestoreFailure.OTHER_RUN)


def test_an_object_name_cannot_leave_the_folder(world: Callable[..., Ranks], store: ObjectStore) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    objects = manifest_of(store, reference).objects
    forged = rewritten(store, reference, objects={**objects, "../outside": objects[".metadata"]})
    expect_failure(ranks, forged, RestoreFailure.MANIFEST_INCONSISTENT)


def test_a_suspect_state_is_stored_and_never_restored(world: Callable[..., Ranks]) -> None:
    ranks = world()
    expect_failure(ranks, ranks.saved(equal_states(7), 30, trigger="Suspect"), RestoreFailure.STATE_NOT_VALID)


def test_a_state_marked_not_finite_is_refused(world: Callable[..., Ranks], store: ObjectStore) -> None:
    ranks = world()
    forged = rewritten(store, ranks.saved(equal_states(7), 30), replicas_agree=False)
    expect_failure(ranks, forged, RestoreFailure.STATE_NOT_VALID)


def test_ledgers_that_map_an_earlier_step_differently_are_refused(world: Callable[..., Ranks]) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    expect_failure(ranks, reference, RestoreFailure.SKIP_LEDGER_MISMATCH, skip=SkipLedger(((10, 12),)))


def test_a_ledger_that_skips_later_windows_is_fine(world: Callable[..., Ranks]) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    states = equal_states(8)
    manifests = ranks.restore(reference, states, SkipLedger(((30, 41),)))
    assert manifests[0].next_window == 30
    assert image(states[0]) == image(new_state(7))
