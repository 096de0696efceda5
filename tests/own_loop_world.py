"""Worlds of real processes whose training loop is another framework's, and what they must have trained on."""

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import Run, until
from trimtab_contract.data_position import SkipLedger

EXAMPLES = Path(__file__).parents[1] / "examples"
SEQUENCE = 32
STARTUP_SECONDS = 400.0


@dataclass
class LoopRun(Run):
    """A run of a program that is a file, with nothing in its configuration but what such a program obeys."""

    script: Path = field(default_factory=Path)

    def __post_init__(self) -> None:
        super().__post_init__()
        for reference_only in ("optimizer", "schedule"):
            del self.config[reference_only]
        self.config["model"] = {"sequence": SEQUENCE}

    def environment(self, world: int, node: int) -> dict[str, str]:
        """As torchrun sets it for the only process of a pod; nothing may be fetched."""
        own = {"LOCAL_RANK": "0", "GROUP_RANK": str(node), "TORCHELASTIC_RUN_ID": "none", "HF_HUB_OFFLINE": "1"}
        return {**super().environment(world, node), **own}

    def _pod(self, number: int, node: int, ranks: int, port: int, torchrun: bool) -> "subprocess.Popen[bytes]":
        assert not torchrun
        place = {"RANK": node, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
        environment = self.environment(number, node) | {name: str(value) for name, value in place.items()}
        environment["MASTER_ADDR"] = socket.gethostbyname("localhost")
        with self.log_path(number, node).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(self.script)], env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def waiting(self, world: int = 1) -> None:
        """Wait for the first word of a world: such frameworks take long to import where processors are busy."""
        until("the first word", lambda: next((a for a in self.acks() if a.world == world), None), STARTUP_SECONDS)

    def windows(self, attempt: int, rank: int) -> list[int]:
        """What a rank trained on in an attempt, in order."""
        return [entry.window for logged, entry in self.batches() if logged == rank and entry.attempt == attempt]

    def losses(self, attempt: int) -> dict[int, float]:
        """The reported loss of each step of an attempt."""
        return {step: record.scalars["loss"] for step, record in self.records(attempt).items()}


def windows_between(first: int, last: int, skip: Sequence[Sequence[int]] = ()) -> list[int]:
    """The windows of consecutive steps under a skip ledger."""
    ledger = SkipLedger(tuple((begin, end) for begin, end in skip))
    return [ledger.window_of_step(step) for step in range(first, last + 1)]


@dataclass(frozen=True)
class LoopRuns:
    """Makes runs of one program, each in a folder of its own."""

    redis: RedisServer
    store: ObjectStoreServer
    folder: Path
    script: Path
    settings: Mapping[str, Any]

    def __call__(self, name: str, **config: Any) -> LoopRun:
        """A run whose configuration differs from the common one."""
        folder = self.folder / name
        folder.mkdir()
        bucket = self.store.new_bucket()
        return LoopRun(self.redis, self.store, folder, bucket, {**self.settings, **config}, script=self.script)

    def show_logs(self) -> None:
        """Print the end of every pod's log, for when a test fails."""
        for log in sorted(self.folder.glob("*/log-*")):
            print(f"--- {log.parent.name}/{log.name}\n{log.read_text(errors='replace')[-3000:]}")
