"""Two ranks as real processes: gloo, a shared coordination store, real S3. Started by `torch.multiprocessing`."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from checkpoint_ranks import EVALUATION, FAST, RUN, image, new_state
from rank_exits import leave
from torch.distributed import TCPStore
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.data_position import SkipLedger
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import Checkpointer, Saved
from trimtab_trainer.collectives import World
from trimtab_trainer.model import TransformerConfig

DEMO = TransformerConfig()


def save_and_restore(rank: int, ports: tuple[int, int], place: dict[str, str], kill_before: str) -> None:
    """Save twice, restore the first over other values, leave what happened in `<folder>/<rank>.json`.

    `kill_before`: rank 0 dies by SIGKILL instead of storing the object whose key ends so.
    """
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0]), "RANK": str(rank), "WORLD_SIZE": "2"}
    world = World(60)
    coordination = TCPStore("127.0.0.1", ports[1], is_master=rank == 0, wait_for_workers=False)
    checkpointer = Checkpointer(
        _Store(place, kill_before if rank == 0 else ""),
        root=place["root"],
        run=RUN,
        rank=rank,
        world_size=2,
        processes_per_node=1,
        host=f"host-{rank}",
        exchange=world.gather_text,
        coordination=coordination,
        staging=Path(place["folder"]),
        on_progress=lambda: None,
        limits=FAST,
    )
    state = new_state(7, DEMO)
    expected = _digest(state)
    stalls, flushed = [], []
    for step in (30, 60, 90):
        stalls.append(_save(checkpointer, state, step))
        flushed.append(checkpointer.flush(60))
    references = [event.reference for event in checkpointer.events() if isinstance(event, Saved)]
    other = new_state(8, DEMO)
    started = time.perf_counter()
    checkpointer.restore(references[0], other, SkipLedger())
    report = {
        "flushed": flushed,
        "identical": _digest(other) == expected,
        "steps": [reference.step for reference in references],
        "stalls": stalls,
        "restore": time.perf_counter() - started,
    }
    (Path(place["folder"]) / f"{rank}.json").write_text(json.dumps(report))
    checkpointer.close()
    world.agree([1])
    leave()


class _Store(ObjectStore):
    """The real store; its process dies just before it stores one key."""

    def __init__(self, place: dict[str, str], kill_before: str) -> None:
        super().__init__(
            place["bucket"],
            endpoint=place["endpoint"],
            access_key=place["access_key"],
            secret_key=place["secret_key"],
        )
        self._kill_before = kill_before

    def put(self, key: str, body: bytes | Path) -> None:
        if self._kill_before and key.endswith(self._kill_before):
            os.kill(os.getpid(), signal.SIGKILL)
        super().put(key, body)


def _save(checkpointer: Checkpointer, state: Any, step: int) -> float:
    started = time.perf_counter()
    checkpointer.save(
        state,
        step=step,
        attempt=1,
        trigger="Final",
        next_window=step,
        skip=SkipLedger(),
        lr=None,
        learning_rate=0.01,
        evaluation=EVALUATION,
        config_sha256="c" * 64,
        code_sha256="d" * 64,
    )
    return time.perf_counter() - started


def _digest(state: Any) -> str:
    parts = [value if isinstance(value, bytes) else repr(value).encode() for _, value in sorted(image(state).items())]
    return sha256_hex(b"".join(parts))
