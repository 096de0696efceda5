"""Ranks of one world as threads of the test's process: real checkpointers, a real coordination store, a real S3.

Only the collective is another one: texts meet at a barrier instead of travelling through gloo.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed import TCPStore
from trimtab_contract.checkpoints import EvaluationProbe
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.keys import RunId
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import (
    Checkpointer,
    CheckpointEvent,
    CheckpointLimits,
    Saved,
    TrainingState,
    VerificationAbandoned,
    Verified,
    VerifyFailed,
)
from trimtab_trainer.model import Transformer, TransformerConfig
from trimtab_trainer.optim import MuonClip, MuonClipConfig

RUN = RunId("team", "run", "0b7c")
EVALUATION = EvaluationProbe(window=3, window_sha256="0" * 64, losses=(1.25, 2.5))
TINY = TransformerConfig(width=16, layers=1, heads=2, sequence=8)
FAST = CheckpointLimits(save_deadline_seconds=60, restore_patience_seconds=10, verify_patience_seconds=60)

Result = TypeVar("Result")


def new_state(seed: int, config: TransformerConfig = TINY) -> TrainingState:
    """A small model and an optimizer whose every tensor holds noise: nothing is equal by being zero."""
    torch.manual_seed(seed)
    model = Transformer(config)
    optimizer = MuonClip(model.named_parameters(), (), MuonClipConfig(qk_clip_threshold=None))
    state = TrainingState(model, optimizer)
    with torch.no_grad():
        for tensor in all_tensors(state).values():
            tensor.copy_(torch.rand_like(tensor))
    optimizer.load_state_dict({**optimizer.state_dict(), "count": seed})
    return state


def all_tensors(state: TrainingState) -> dict[str, torch.Tensor]:
    """Every live tensor of model and optimizer."""
    return {name: value for name, value in state.flat().items() if isinstance(value, torch.Tensor)}


def image(state: TrainingState) -> dict[str, Any]:
    """The state as comparable bytes and plain values."""
    return {
        name: value.numpy().tobytes() if isinstance(value, torch.Tensor) else value
        for name, value in state.flat().items()
    }


class Exchange:
    """What every rank says, heard by every rank."""

    def __init__(self, world_size: int) -> None:
        self._texts = [""] * world_size
        self._barrier = threading.Barrier(world_size, timeout=60)

    def of(self, rank: int) -> Callable[[str], list[str]]:
        """The exchange as one rank sees it."""

        def exchange(text: str) -> list[str]:
            self._texts[rank] = text
            self._barrier.wait()
            heard = list(self._texts)
            self._barrier.wait()
            return heard

        return exchange


@dataclass
class Ranks:
    """One world. `run` calls a function on every rank at once."""

    store: ObjectStore
    folder: Path
    world_size: int = 2
    processes_per_node: int = 1
    limits: CheckpointLimits = FAST
    run_id: RunId = RUN
    root: str = "some/root"
    source: RunId | None = None
    progress: list[int] = field(default_factory=list)
    on_progress: Callable[[], None] | None = None
    prove: Callable[[int], None] = lambda _rank: None

    def __post_init__(self) -> None:
        exchange = Exchange(self.world_size)
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._clients = [server] + [
            TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=30))
            for _ in range(self.world_size - 1)
        ]
        self.progress = [0] * self.world_size
        self.checkpointers = [
            Checkpointer(
                self.store,
                root=self.root,
                run=self.run_id,
                rank=rank,
                world_size=self.world_size,
                processes_per_node=self.processes_per_node,
                host=f"host-{rank // self.processes_per_node}",
                exchange=exchange.of(rank),
                coordination=self._clients[rank],
                staging=self.folder,
                on_progress=self._progress_of(rank),
                prove=partial(self.prove, rank),
                limits=self.limits,
                source=self.source,
            )
            for rank in range(self.world_size)
        ]
        self.seen: list[list[CheckpointEvent]] = [[] for _ in range(self.world_size)]

    def run(self, act: Callable[[int], Result]) -> list[Result | Exception]:
        """What `act(rank)` returned or raised, for each rank."""

        def caught(rank: int) -> Result | Exception:
            try:
                return act(rank)
            except Exception as error:  # noqa: BLE001 handed to the test
                return error

        with ThreadPoolExecutor(self.world_size) as pool:
            return list(pool.map(caught, range(self.world_size)))

    def save(self, states: list[TrainingState], step: int, trigger: Any = "Periodic", **changes: Any) -> None:
        """Save on every rank."""
        skip = changes.pop("skip", SkipLedger())
        config_sha256, config = changes.pop("config_sha256", "c" * 64), changes.pop("config", None)
        measured = changes.pop("measured", [None] * self.world_size)

        def act(rank: int) -> None:
            self.checkpointers[rank].save(
                states[rank],
                step=step,
                attempt=1,
                trigger=trigger,
                next_window=skip.window_of_step(step + 1),
                skip=skip,
                lr=None,
                learning_rate=0.01,
                evaluation=EVALUATION,
                config_sha256=config_sha256,
                code_sha256="d" * 64,
                config=config,
                measured=measured[rank],
            )

        assert self.run(act) == [None] * self.world_size

    def saved(self, states: list[TrainingState], step: int, **changes: Any) -> CheckpointReference:
        """Save, wait until it is durable, return its reference."""
        self.save(states, step, **changes)
        assert self.run(lambda rank: self.checkpointers[rank].flush(60)) == [True] * self.world_size
        found = [event.reference for event in self.drain(0) if isinstance(event, Saved)]
        assert found[-1].step == step
        return found[-1]

    def restore(
        self, reference: CheckpointReference, states: list[TrainingState], skip: SkipLedger | None = None
    ) -> list[Any]:
        """Restore on every rank: manifests or what was raised."""
        return self.run(lambda rank: self.checkpointers[rank].restore(reference, states[rank], skip or SkipLedger()))

    def drain(self, rank: int) -> list[CheckpointEvent]:
        """All events of a rank so far."""
        self.seen[rank] += self.checkpointers[rank].events()
        return self.seen[rank]

    def verdict(self) -> CheckpointEvent:
        """Rank 0's next word on a verification, waited for."""
        deadline = threading.Event()
        timer = threading.Timer(60, deadline.set)
        timer.start()
        try:
            while not deadline.wait(0.02):
                for event in self.drain(0):
                    if isinstance(event, (Verified, VerifyFailed, VerificationAbandoned)):
                        return event
        finally:
            timer.cancel()
        raise TimeoutError("no verification was reported")

    def close(self) -> None:
        """End all threads."""
        for checkpointer in self.checkpointers:
            checkpointer.close()

    def _progress_of(self, rank: int) -> Callable[[], None]:
        def advance() -> None:
            self.progress[rank] += 1
            if self.on_progress is not None:
                self.on_progress()

        return advance
