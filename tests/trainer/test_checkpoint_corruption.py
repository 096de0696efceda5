"""A thousand random corruptions of real checkpoints: none is restored. DCP alone accepts most kinds of them."""

import os
from collections import Counter
from pathlib import Path

from checkpoint_corruption import CORRUPTIONS, INDEX_CORRUPTIONS
from checkpoint_ranks import new_state
from corruption_trials import refusal, saved_checkpoints, trials
from object_store_fixture import ObjectStoreServer

CASES = 1000
SEED = int(os.environ.get("TRIMTAB_CORRUPTION_SEED", "20261130"))
MAY_BE_NOTICED = {"truncated object", "missing object", "shards exchanged between ranks"}
"""Kinds that a reader without hashes may stumble over, where lengths do not fit."""


def test_of_a_thousand_corrupted_checkpoints_none_is_restored(object_store: ObjectStoreServer, tmp_path: Path) -> None:
    checkpoints = saved_checkpoints(object_store, tmp_path / "world")
    drawn, refused, tried, accepted = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for case, trial in enumerate(trials(checkpoints, CASES, SEED, tmp_path / "trials")):
        drawn[trial.kind] += 1
        assert trial.refused, f"seed {SEED}, case {case}: {trial.kind} was restored"
        refused[trial.refused] += 1
        tried[trial.kind] += trial.naive is not None
        accepted[trial.kind] += bool(trial.naive)
    for checkpoint in checkpoints:
        whole = refusal(checkpoint, dict(checkpoint.objects), new_state(99).flat(), tmp_path / "trials" / "fetched")
        assert whole == ""
    print(f"\nseed {SEED}: {CASES} corruptions, 0 restored; refused because of {dict(refused)}")
    for kind, count in drawn.items():
        print(f"{kind:32} {count:4} refused; DCP alone accepted {accepted[kind]} of {tried[kind]}")
    silent = {kind for kind in CORRUPTIONS if accepted[kind]}
    assert silent >= CORRUPTIONS.keys() - MAY_BE_NOTICED - INDEX_CORRUPTIONS.keys()
