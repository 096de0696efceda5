"""Sharded parameters train like replicated ones, and checkpoints of either are restored into either."""

import json
import uuid
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.multiprocessing as mp
from checkpoint_ranks import FAST, RUN, Ranks
from object_store_fixture import ADMIN, ObjectStoreServer
from safetensors.torch import load_file
from server_process import free_ports
from sharded_ranks import config, same, state_of, story
from stored_slices import slices_of
from trimtab_cli.adapters.object_store import BucketAddress
from trimtab_cli.adapters.object_store import ObjectStore as CliStore
from trimtab_cli.checkpoint_export import export_checkpoint
from trimtab_cli.checkpoint_view import CheckpointRow
from trimtab_cli.output import Format, Output
from trimtab_contract.checkpoints import decode_manifest
from trimtab_contract.directives import CheckpointReference
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.loop import Trainee
from trimtab_trainer.optim import MuonClipConfig
from trimtab_trainer.optim.division import update_cost
from trimtab_trainer.optim.routing import route_parameters
from trimtab_trainer.optim.stages import owners

RANKS = 3


@pytest.mark.timeout(900)
def test_a_sharded_world_trains_like_replicas_and_restores_what_either_saved(
    object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    place = {
        "endpoint": object_store.endpoint,
        "bucket": object_store.new_bucket(),
        "access_key": ADMIN.access_key,
        "secret_key": ADMIN.secret_key,
        "root": uuid.uuid4().hex,
        "folder": str(tmp_path),
    }
    (port,) = free_ports(1)
    mp.spawn(story, (RANKS, port, place), nprocs=RANKS)
    reports: list[dict[str, Any]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]

    # Each rank has its share of the state, and all together the whole of it.
    assert sum(report["share"] for report in reports) == pytest.approx(1, abs=1e-3)
    assert max(report["share"] for report in reports) < 0.4
    for report in reports:
        assert report["apart"] < 1e-4
        ours, theirs = report["scalars"]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(other, rel=1e-4)
        vectors = report["vectors"]
        # Weights and optimizer are looked at in the second of three steps, whole or in parts.
        assert ["layer_spectral_norm" in one for one in vectors[0]] == [False, True, False]
        for mine, other in zip(*vectors, strict=True):
            assert mine.keys() == other.keys()
            for name, values in mine.items():
                assert values == pytest.approx(other[name], rel=1e-3), name
        assert report["clipped"][0] == pytest.approx(report["clipped"][1], rel=1e-3)
        assert min(report["clipped"][0]) < 1
        assert all(report["restored"].values()), report["restored"]
        assert len(report["restored"]) == 5

    # One rank alone restores what three saved.
    key, sha256, step = reports[0]["reference"]
    alone = Trainee(config("replicated", seed=8))
    store = ObjectStore(
        place["bucket"], endpoint=place["endpoint"], access_key=place["access_key"], secret_key=place["secret_key"]
    )
    ranks = Ranks(store, tmp_path / "alone", world_size=1, limits=FAST, root=place["root"])
    try:
        (outcome,) = ranks.restore(CheckpointReference(key=key, sha256=sha256, step=step), [state_of(alone)])
    finally:
        ranks.close()
    assert not isinstance(outcome, Exception), outcome
    whole = cast("dict[str, Any]", torch.load(tmp_path / "whole.pt"))
    assert same(state_of(alone).flat(), whole)

    # And any program reads the weights that were put together from the pieces of all.
    address = BucketAddress(place["bucket"], place["endpoint"], place["access_key"], place["secret_key"])
    known = {"key": key, "sha256": sha256, "step": step, "attempt": 1}
    row = CheckpointRow(**{one.name: known.get(one.name) for one in fields(CheckpointRow)})
    shape = {"vocabSize": 257, "width": 36, "layers": 2, "heads": 2, "sequence": 32, "bias": True}
    exported = export_checkpoint(
        Output(Format.JSON), CliStore(address), row, {"config": {"model": shape}}, str(RUN), tmp_path / "exported"
    )
    weights = load_file(tmp_path / "exported" / "model.safetensors")
    expected = {name.removeprefix("model."): value for name, value in whole.items() if name.startswith("model.")}
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert exported.tensors == len(expected)
    reference = CheckpointReference(key=key, sha256=sha256, step=step)
    names = decode_manifest(store.get(key)).objects
    pieces = Counter(part.name for name in names for part in slices_of(store, reference, name))
    assert pieces["model.embedding.weight"] == RANKS


def test_the_work_is_shared_out_by_cost_and_what_belongs_together_stays_together() -> None:
    costs = {"a": 9, "b": 5, "c": 4, "q": 2, "k": 2}
    assert owners(costs, [frozenset({"q", "k"})], 2) == {"a": 0, "b": 1, "c": 1, "q": 0, "k": 0}


def test_long_matrices_cost_less_than_square_ones_of_as_many_elements_and_what_adamw_updates_less_still() -> None:
    shapes = {"square.weight": (512, 512), "long.weight": (64, 4096), "embedding.weight": (512, 512)}
    routes = route_parameters({name: torch.zeros(shape) for name, shape in shapes.items()}.items())
    square, long, embedding = (update_cost(route, MuonClipConfig()) for route in routes)
    assert square > 3 * long > 3 * embedding
    assert update_cost(replace(routes[0], rows=(64,) * 8), MuonClipConfig()) < square / 3, "each part is a small matrix"


def test_a_fault_that_damages_one_replica_is_refused_where_there_are_none() -> None:
    fault = "{attempt: 1, step: 2, rank: 0, kind: flipBit, tensor: head.weight}"
    with pytest.raises(InvalidFields) as caught:
        read_config(f"{{steps: 50, globalBatch: 8, data: {{path: /d}}, parallelism: sharded, faults: [{fault}]}}")
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["faults[0].kind"]
