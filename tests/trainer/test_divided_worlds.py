"""Processes that divide Newton-Schulz work train as if each did all of it, and learn of a peer that is gone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from divided_ranks import story
from server_process import free_ports

RANKS = 2


@pytest.mark.timeout(900)
def test_divided_work_through_gloo_changes_no_bit_and_a_lost_peer_has_a_name(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    mp.spawn(story, (RANKS, port, str(tmp_path)), nprocs=RANKS)
    reports: list[dict[str, Any]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    for report in reports:
        for dtype in ("float32", "bfloat16"):
            assert report[dtype]["bits"], f"{dtype}: weights and momentum are those of undivided work"
            ours, theirs = report[dtype]["scalars"]
            assert ours == theirs
            assert ours == reports[0][dtype]["scalars"][0]
            assert ours[-1]["update_rms"] > 0
    assert reports[0]["ended by"].startswith("sharing updates between the ranks failed: ")
    assert "ended by" not in reports[-1]
