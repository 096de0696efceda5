"""MuonClip in a loop of somebody's own whose replicas are PyTorch's: what one batch clips, every replica clips."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from replicated_ranks import STEPS, story
from server_process import free_ports

RANKS = 2


@pytest.mark.timeout(300)
def test_replicas_with_other_batches_stay_equal_while_heads_are_clipped(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    mp.spawn(story, (RANKS, port, str(tmp_path)), nprocs=RANKS)
    reports: list[dict[str, Any]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert len(reports[0]["clipped"]) == STEPS
    assert all(reports[0]["clipped"])
    assert reports[0] == reports[1]
