"""The only door between a training loop and the outside.

A loop iterates `batches()`, asks `gate(...)` before each update and calls `report(...)` after it. Everything else
(directives, holding, restoring, checkpoints, the end of the world) happens between two batches, on all ranks at the
same step boundary. The end of the world reaches the loop as WorldEnded.
"""

import time
from collections.abc import Iterator, Mapping
from enum import Enum

from torch import Tensor
from trimtab_contract.checkpoints import Trigger
from trimtab_contract.directives import AckState, Directive, Reason
from trimtab_contract.evidence import BatchLogEntry
from trimtab_contract.metrics import MetricRecord, Vector

from trimtab_trainer.batches import Batch
from trimtab_trainer.errors import WorldEnded
from trimtab_trainer.execution import DirectiveExecutor
from trimtab_trainer.replicas import compare_replicas
from trimtab_trainer.runtime import Runtime
from trimtab_trainer.tensors import floats


class Gate(Enum):
    """Whether the update of the step may happen; the same on every rank."""

    UPDATE = "update"
    WITHHOLD = "withhold"
    AGAIN = "again"
    """Compute the same batch once more, report nothing: only a fault that repeats counts."""


class Session:
    """One world's training, step by step."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._state = runtime.state
        self._world = runtime.world
        self._executor = DirectiveExecutor(runtime)
        self._batch: Batch | None = None
        self._attempts_at_step = 0
        self._pending: Directive | None = None
        self._terminating = False
        self._mismatch: float | None = None
        self._bad: str = ""
        self._started = 0.0

    def batches(self) -> Iterator[Batch]:
        """Yield the batch of each step; ends only by raising WorldEnded.

        Raises:
            WorldEnded: the run is finished, stopped, terminated, superseded or stuck.
            PeerLost: another rank is gone.
        """
        self._executor.announce(AckState.WAITING)
        self._executor.wait()
        while True:
            if self._state.step >= self._state.steps:
                self._finish()
                continue
            self._batch = self._draw(self._state.step + 1)
            self._attempts_at_step = 0
            self._started = self._started or time.monotonic()
            while self._state.step < self._batch.step:
                self._runtime.faults.before_forward(self._batch.attempt, self._batch.step)
                self._attempts_at_step += 1
                yield self._batch
                self._runtime.vitals.advance()
            self._boundary()

    def gate(self, bad: str | None, loss: Tensor | None = None) -> Gate:
        """Agree with all ranks, before the optimizer step, on what happens to it.

        `bad` names the first tensor that is not finite on this rank, and `loss` is that of this rank's share: the
        checkpoint before this step rests on it, and without it costs a forward pass more. Also compares the replicas
        where that is due.

        Raises:
            WorldEnded: a higher world exists.
            PeerLost: another rank is gone.
        """
        if self._batch is not None:
            self._runtime.step_computed(self._batch.window, loss)
        letter, superseded = self._runtime.letter()
        terminated, suspect = self._runtime.terminating.is_set(), self._runtime.replicas_suspect
        accepted, nonfinite, terminating, check, over = self._world.agree(
            (letter.count, bad is not None, terminated, suspect, superseded)
        )
        if over:
            raise WorldEnded.superseded()
        self._terminating = bool(terminating)
        # A step may pass here twice: what the first pass received must not get lost.
        self._pending = self._runtime.receive(accepted, letter) or self._pending
        if nonfinite:
            self._bad = "; ".join(
                f"rank {rank}: {name}" for rank, name in enumerate(self._world.gather_text(bad or "")) if name
            )
        if nonfinite and not self._state.holds_on_nonfinite and self._attempts_at_step == 1:
            return Gate.AGAIN
        step = self._state.step + 1
        self._mismatch = None
        due = check or step % self._runtime.config.replica_check_every == 0
        if due and self._runtime.config.parallelism == "replicated":
            self._runtime.replicas_suspect = False
            self._state.replicas = compare_replicas(self._runtime.trainee.named_parameters(), self._world)
            self._mismatch = float(self._state.replicas_differ)
        return Gate.WITHHOLD if nonfinite else Gate.UPDATE

    def report(self, scalars: Mapping[str, float], vectors: Mapping[str, Tensor]) -> None:
        """Publish the step just done, whose numbers are reduced over all ranks already. Never waits."""
        batch = self._batch
        assert batch is not None
        withheld = bool(scalars["skipped_update"])
        self._state.step = self._runtime.vitals.step = batch.step
        self._state.withheld_in_a_row = self._state.withheld_in_a_row + 1 if withheld else 0
        self._state.self_held = withheld and self._state.holds_on_nonfinite
        seconds = time.monotonic() - self._started
        self._started = time.monotonic()
        tokens = self._runtime.config.global_batch * self._runtime.config.model.sequence
        timing = {"step_seconds": seconds, "tokens_per_second": tokens / max(seconds, 1e-9)}
        mismatch = {} if self._mismatch is None else {"replica_mismatch": self._mismatch}
        self._runtime.publish(
            MetricRecord(
                attempt=batch.attempt,
                step=batch.step,
                window=batch.window,
                samples_seen=batch.step * self._runtime.config.global_batch,
                tokens_seen=batch.step * tokens,
                time=time.time(),
                scalars={**scalars, **timing, **mismatch},
                vectors={name: _packed(value) for name, value in vectors.items()},
            )
        )

    def progress(self) -> None:
        """Say that the step is getting on: it is computed another time, and must not be taken for a hang."""
        self._runtime.vitals.advance()

    def checkpoint(self, trigger: Trigger = "Periodic") -> None:
        """Save in the background, unless the state is known to be bad; every rank calls it at the same step."""
        if self._state.replicas_differ:
            self._runtime.leave_out_checkpoint("the replicas differ")
        elif self._state.withheld_in_a_row:
            self._runtime.leave_out_checkpoint("the update of this step was withheld as non-finite")
        else:
            self._runtime.save(trigger)

    def _draw(self, step: int) -> Batch:
        """Read this rank's share of the step's window and log it: the proof of what was trained on."""
        window = self._state.ledger.window_of_step(step)
        batch = self._runtime.batch(step, window)
        digest = self._runtime.data.digest(window)
        entry = BatchLogEntry(attempt=self._state.attempt, step=step, window=window, sha256=digest)
        self._runtime.batch_log.append(entry)
        return batch

    def _boundary(self) -> None:
        """Between two steps: the one place where anything but training happens."""
        self._runtime.collect_checkpoint_events()
        if self._terminating:
            self._executor.terminate()
        if self._state.withheld_in_a_row >= self._runtime.config.max_withheld_steps:
            raise WorldEnded(Reason.STUCK_NON_FINITE, f"{self._state.withheld_in_a_row} steps in a row: {self._bad}")
        training = not self._state.self_held
        if not training:
            self._executor.hold_by_itself(self._bad)
        if self._pending is not None:
            directive, self._pending = self._pending, None
            training = self._executor.obey(directive)
        if not training:
            self._executor.wait()
            self._started = 0.0
        if self._due():
            self.checkpoint()

    def _due(self) -> bool:
        """Whether the step just trained ends with a checkpoint; not so when another state was put in its place."""
        assert self._batch is not None
        step, every = self._state.step, self._runtime.environment.checkpoint_every
        return self._batch.attempt == self._state.attempt and step % every == 0 and step < self._state.steps

    def _finish(self) -> None:
        """The last step is done: save, say so, and wait for the judgement of every record."""
        if not self._state.finished:
            self._state.finished = True
            self._runtime.wait_for_saves()  # their copies of the state go before another is made
            self.checkpoint("Final")
            self._runtime.wait_for_saves()
        self._executor.announce(AckState.FINISHED)
        self._executor.wait()
        self._started = 0.0


def _packed(value: Tensor) -> Vector:
    return Vector.pack(tuple(value.shape), floats(value.float()))
