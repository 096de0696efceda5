"""A plain model that `fully_shard` dealt out is updated as one process updates the whole of it, in gloo worlds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from library_ranks import ROUND_BYTES, WIDTH, Model, flat, replicated_shards, settings, story
from server_process import free_ports
from torch import Tensor
from trimtab_trainer.optim import MuonClip
from trimtab_trainer.optim.stages import in_turn, joined, owners, rows_of, stages

TOLD, WEIGHTS = 1e-6, 1e-5
"""How far factors of QK-Clip and the size of updates lie apart at most, and weights relative to their tensor's largest:
from equal gradients; matrices share their products with others than in one process."""


def worlds(act: Any, ranks: int, folder: Path) -> list[dict[str, Any]]:
    (port,) = free_ports(1)
    mp.spawn(act, (ranks, port, str(folder)), nprocs=ranks)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.timeout(900)
def test_shards_train_as_one_process_does_and_go_on_with_what_a_world_of_another_size_saved(tmp_path: Path) -> None:
    for ranks in (3, 2):
        reports = worlds(story, ranks, tmp_path)
        for report in reports:
            assert max(apart for apart, _, _ in report["steps"]) < TOLD
            assert max(apart for _, apart, _ in report["steps"]) < WEIGHTS
            smallest = [min(layer) for layer in zip(*(gamma for _, _, gamma in report["steps"]), strict=True)]
            assert max(smallest) < 1, "some head of each kind of attention shrank"
            assert report["keys"] == reports[0]["keys"]
            assert sorted(report["keys"]) == report["expected keys"]
            overlap = report["overlap"]
            first, *between, last = overlap["under way"]
            assert (first, last) == (1, 1), "the next parameters arrive, and the last ones leave"
            assert between == [2] * len(between), "both while the others are computed"
            assert len(between) >= 2
            # What makes the packed queries and keys, with its gradient, is longer than a round.
            assert overlap["room"] <= 2 * max(ROUND_BYTES, 2 * 4 * WIDTH * (3 * WIDTH + 4)) < 0.9 * overlap["all"]
            assert overlap["between"] == 0, "nothing is whole between two updates"
            assert report["bits"], "rounds change no bit of an update"
            assert report["masters"] < WEIGHTS
        assert [report.get("ended by", "")[:33] for report in reports[:-1]] == ["trading parts with the ranks fail"] * (
            ranks - 1
        )
    for report in reports:
        assert report["resharded"]
        assert report["from replicas"]
        apart, weights, _ = report["went on"]
        assert (apart < TOLD, weights < WEIGHTS) == (True, True)

    # One process alone, with the whole of everything.
    model = Model()
    optimizer = MuonClip(model.named_parameters(), model.attention(), settings(model))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "saved-by-3", no_dist=True)
    expected = torch.load(tmp_path / "whole-3.pt")
    optimizer.load_state_dict(state["optimizer"])
    found = dict(flat({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]) if isinstance(value, Tensor) else value == expected[name], name


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 900)), max_size=20),
    st.lists(st.sets(st.integers(0, 60), min_size=1, max_size=4), max_size=20),
)
def test_what_arrives_leaves_when_all_that_it_is_updated_with_is_done(
    shapes: list[tuple[int, int]], drawn: list[set[int]]
) -> None:
    sets = [tuple(f"{place}.{number}" for number in range(count)) for place, (count, _) in enumerate(shapes)]
    sizes = {name: size for names, (_, size) in zip(sets, shapes, strict=True) for name in names}
    names = list(sizes)
    slabs = [{names[place % len(names)] for place in places} for places in drawn] if names else []
    found = stages(sets, slabs, sizes, 1000)
    arrived: list[str] = []
    left: list[str] = []
    done: list[int] = []
    for stage in found:
        arrived += stage.arriving
        assert all(slabs[place] <= set(arrived) - set(left) for place in stage.slabs)
        done += stage.slabs
        left += stage.leaving
        together = sum(sizes[name] for name in stage.arriving)
        assert together <= 1000 or len({name.split(".")[0] for name in stage.arriving if sizes[name]}) == 1
        for one in sets:
            assert {name in stage.leaving for name in one} != {True, False}, "a set leaves together"
        for place, one in enumerate(slabs):
            assert place in done or not one & set(left), "nothing leaves before it is updated"
    assert arrived == names
    assert sorted(left) == sorted(names)
    assert sorted(done) == list(range(len(slabs)))


def test_sets_that_share_a_parameter_are_one_and_cheap_ones_come_in_the_middle() -> None:
    sets = joined("abcdefg", [frozenset("ce"), frozenset("ea"), frozenset("gf")])
    assert sets == [("a", "c", "e"), ("b",), ("d",), ("f", "g")]
    assert owners(dict.fromkeys("abcdefg", 1), [frozenset("ce"), frozenset("ea")], 2)["a"] == 0
    assert in_turn([("a",), ("b", "e"), ("c",), ("d",)], {"a", "b"}) == [("b", "e"), ("a",), ("c",), ("d",)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [0, 1, 2, 6, 7])
def test_rows_are_dealt_out_as_chunks_are(rows: int, ranks: int) -> None:
    chunks = [len(chunk) for chunk in torch.arange(rows).chunk(ranks)] if rows else []
    assert [stop - start for start, stop in rows_of(rows, ranks)] == [*chunks, *[0] * (ranks - len(chunks))]


@pytest.mark.timeout(900)
def test_replicas_of_each_shard_train_alike_and_what_cannot_work_or_never_comes_is_told_in_a_sentence(
    tmp_path: Path,
) -> None:
    reports = worlds(replicated_shards, 4, tmp_path)
    for report in reports:
        assert max(apart for apart, _, _ in report["steps"]) < TOLD
        assert max(apart for _, apart, _ in report["steps"]) < WEIGHTS
        refused = report["refused"]
        assert all(len(problems) == 1 for problems in refused.values()), refused
        said = {name: problems[0] for name, problems in refused.items()}
        assert said["plain"].startswith("plain: every rank has the whole of it; fully_shard must deal out")
        assert said["columns"].startswith("columns: Shard(dim=1) must be Shard(dim=0), rows")
        assert said["tensor parallel"].startswith("tensor parallel: cut along 2 dimensions of its mesh")
        assert said["replicated"].startswith("replicated: cut along 0 dimensions of its mesh")
        assert said["other ranks"].startswith("other ranks: its rows are shared by 2 ranks")
        assert said["state"].startswith("muon_momentum.weight: Shard(dim=1) must be Shard(dim=0)")
        assert "trimtab_trainer.optim.ShardedMuonClip" in said["by MuonClip"]
    # One of them lives and keeps silent.
    assert ["ended by" in report for report in reports] == [True, True, True, False]
    assert all(report["ended by"].startswith("trading parts with the ranks failed: ") for report in reports[:-1])
