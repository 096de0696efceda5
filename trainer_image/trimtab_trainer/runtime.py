"""Everything a world holds open beside model and optimizer, and how its parts reach the outside."""

import logging
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor
from trimtab_contract.checkpoints import EvaluationProbe, Trigger
from trimtab_contract.directives import Ack, AckState, CheckpointReference, Directive, decode
from trimtab_contract.metrics import MetricRecord

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.archive import Archivist, RecordArchive
from trimtab_trainer.batches import Batch, batch_of
from trimtab_trainer.checkpointing import (
    Backlog,
    Checkpointer,
    CheckpointEvent,
    Saved,
    SaveRefusal,
    SaveRefused,
    ShareMeasurement,
    TrainingState,
    Verified,
    VerifyFailed,
)
from trimtab_trainer.collectives import World
from trimtab_trainer.config import Environment, TrainerConfig
from trimtab_trainer.config_record import config_record
from trimtab_trainer.courier import Courier
from trimtab_trainer.data import BatchLog, Windows
from trimtab_trainer.directives import Inbox, Letter
from trimtab_trainer.errors import PeerLost, StoreError, WorldEnded
from trimtab_trainer.evidence import ProbeResult
from trimtab_trainer.faults import FaultInjector
from trimtab_trainer.telemetry import Reporter, Vitals
from trimtab_trainer.trainee import Repeatable, Trainee
from trimtab_trainer.world_state import WorldState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """SHA-256 of the configuration's text and of the trainer's source."""

    config: str
    code: str


@dataclass(frozen=True, slots=True)
class Spokesman:
    """The parts that only rank 0 has: it alone speaks to Redis and archives records."""

    courier: Courier
    reporter: Reporter
    inbox: Inbox
    archive: RecordArchive


@dataclass(slots=True)
class Runtime:
    """The parts of one rank, and the acts that need more than one of them."""

    environment: Environment
    config: TrainerConfig
    world: World
    state: WorldState
    vitals: Vitals
    trainee: Trainee
    training_state: TrainingState
    data: Windows
    batch_log: BatchLog
    store: ObjectStore
    checkpointer: Checkpointer
    faults: FaultInjector
    archivist: Archivist
    hosts: tuple[str, ...]
    processors: tuple[str, ...]
    """What computes on each rank (`processors.processor`)."""
    spokesman: Spokesman | None
    terminating: threading.Event
    fingerprints: Fingerprints
    last_saved: CheckpointReference | None = None
    """The newest checkpoint known to be complete; only for messages, ranks learn of it at different times."""

    replicas_suspect: bool = False
    """Whether a save found that the replicas differ; makes all ranks compare at the next step."""

    backlog: Backlog = field(default_factory=Backlog)
    """Whether checkpoints get stored as they are due."""

    _unmeasured: tuple[int, Future[ShareMeasurement]] | None = None
    """The window whose loss the newest save waits for, and where it waits."""

    _seen: int = 0
    _saved_for_good: tuple[int, int] | None = None

    def letter(self) -> tuple[Letter, bool]:
        """The directive in force as rank 0 sees it now, and whether a later world exists; nothing elsewhere."""
        if self.spokesman is None:
            return Letter(), False
        return self.spokesman.inbox.letter, self.spokesman.inbox.superseded

    def receive(self, accepted: int, letter: Letter) -> Directive | None:
        """The new directive, from rank 0 to all, when the agreed count says that there is one."""
        if accepted <= self._seen:
            return None
        self._seen = accepted
        return decode(Directive, self.world.broadcast(letter.wire))

    def pulse(self) -> tuple[Directive | None, bool]:
        """One exchange of a held world: the new directive if any, and whether some rank was told to end.

        Rank 0 sets the pace and wakes early when a directive arrives. Raises WorldEnded when a later world exists.
        """
        if self.spokesman is not None:
            self.spokesman.courier.changed.wait(self.config.hold_tick_seconds)
            self.spokesman.courier.changed.clear()
        letter, superseded = self.letter()
        accepted, terminating, over = self.world.pulse((letter.count, self.terminating.is_set(), superseded))
        if over:
            raise WorldEnded.superseded()
        return self.receive(accepted, letter), bool(terminating)

    def publish(self, record: MetricRecord) -> None:
        """Queue a record for Redis and for the archive, on rank 0."""
        if self.spokesman is not None:
            self.spokesman.reporter.record(record)
            self.spokesman.archive.add(record)
            self.spokesman.courier.wake()

    def ack(self, state: AckState, order: tuple[int, int]) -> Ack:
        """The frame of an ack; step, progress, time and recent checkpoints are filled in when it is sent."""
        return Ack(
            state=state,
            epoch=order[0],
            seq=order[1],
            world=self.environment.world,
            attempt=self.state.attempt,
            ranks=self.world.size,
            hosts=self.hosts,
            step=self.state.step,
            progress=self.vitals.progress,
            time=time.time(),
        )

    def announce(self, ack: Ack) -> None:
        """Say a change of state, on rank 0."""
        if self.spokesman is not None:
            self.spokesman.reporter.state(ack)
            self.spokesman.courier.wake()

    def happened(self, ack: Ack) -> None:
        """Say something that is no change of state, on rank 0."""
        if self.spokesman is not None:
            self.spokesman.reporter.event(ack)
            self.spokesman.courier.wake()

    def archive_now(self) -> None:
        """Start writing records and batch logs to the store."""
        self.archivist.wake()

    def loss_of_share(self, window: int) -> Tensor:
        """The evaluation-mode loss of this rank's share of a window."""
        loss = self.trainee.losses(self.data.read(window)).mean()
        self.vitals.advance()
        return loss

    def called_away(self) -> bool:
        """Whether a held world has something else to do than what it is at; every rank asks at the same place."""
        superseded = self.spokesman is not None and self.spokesman.inbox.superseded
        return any(self.world.pulse((self._has_news(), self.terminating.is_set(), superseded)))

    def _has_news(self) -> bool:
        """Whether rank 0 has a directive that says something new and is not obeyed yet."""
        letter, _ = self.letter()
        if letter.count <= self._seen:
            return False
        obeyed = self.state.directive
        return obeyed is None or not decode(Directive, letter.wire).reaffirms(obeyed)

    def store_evidence(self, result: ProbeResult, *, patient: bool) -> bool:
        """Write a probe's evidence, on rank 0, and say whether it is there; the other ranks take it as written.

        Tries again while the store is away, for the world is held anyway; an impatient one only until there is
        something else to do.
        """
        if self.spokesman is None:
            return True
        while not self.spokesman.inbox.superseded:
            try:
                self.store.put(result.reference.key, result.body)
            except StoreError as error:
                logger.warning("evidence waits for the store: %s", error)
                self.vitals.advance()
                if not patient and (self.terminating.is_set() or self._has_news()):
                    return False
                time.sleep(1.0)
            else:
                return True
        return False

    def save(self, trigger: Trigger) -> None:
        """Copy the state and store it in the background; every rank calls it at the same boundary.

        A suspect state is stored as it stands, measured on nothing: data that cannot be read now would hold up what it
        is evidence for.
        """
        self._measure_what_waits()
        state, directive = self.state, self.state.directive
        window = state.ledger.window_of_step(state.step + 1)
        measured: Future[ShareMeasurement] | None = None if trigger == "Suspect" else Future()
        taken = self.checkpointer.save(
            self.training_state,
            step=state.step,
            attempt=state.attempt,
            trigger=trigger,
            next_window=window,
            skip=state.ledger,
            lr=None if directive is None else directive.lr,
            learning_rate=self.trainee.learning_rate(state.step + 1, state.rate_override),
            evaluation=self._evaluation(window) if measured is not None else self._nothing_measured(window),
            config_sha256=self.fingerprints.config,
            code_sha256=self.fingerprints.code,
            config=config_record(self.config),
            measured=measured,
        )
        if taken and measured is not None:
            self._unmeasured = (window, measured)
            # The step that follows a periodic save computes what a restore will be held against.
            if trigger != "Periodic" or not isinstance(self.trainee, Repeatable):
                self._measure_what_waits()
        if trigger not in {"Periodic", "Suspect"}:
            self._saved_for_good = (state.attempt, state.step)
        logger.info("saving the state after step %d of attempt %d (%s)", state.step, state.attempt, trigger)

    def save_now(self, trigger: Trigger) -> CheckpointReference | None:
        """Save on every rank and wait until all know that it is complete; None where it did not become so."""
        until = time.monotonic() + self.config.save_wait_seconds
        if self._saved_for_good != (self.state.attempt, self.state.step):
            # What waits for the store has a copy of the state each, and leaves before this one is made.
            self._wait_for_saves(until)
            self.save(trigger)
        self._wait_for_saves(until)
        # Rank 0 must not leave before: with it goes the store from which the others learn how the save ended. A rank
        # that is gone already needs to learn nothing.
        with suppress(PeerLost):
            self.world.agree([0])
        saved = self.last_saved
        return saved if saved is not None and saved.step == self.state.step else None

    def wait_for_saves(self) -> None:
        """Wait for the saves that are on their way, within the bound of the configuration."""
        self._wait_for_saves(time.monotonic() + self.config.save_wait_seconds)

    def _wait_for_saves(self, until: float) -> None:
        self._measure_what_waits()
        self.checkpointer.flush(max(until - time.monotonic(), 0.0))
        self.vitals.advance()
        self.collect_checkpoint_events()

    def collect_checkpoint_events(self) -> None:
        """Pass on what the background threads of the checkpoints report."""
        for event in self.checkpointer.events():
            self.backlog.note(event, self.state.attempt)
            if self.spokesman is not None:
                self.spokesman.reporter.checkpoints(self.backlog.sentence)
            self._pass_on(event)

    def leave_out_checkpoint(self, why: str) -> None:
        """Say that a checkpoint which is due is not taken."""
        self.backlog.leave_out(self.state.step, self.state.attempt, why)
        if self.spokesman is not None:
            self.spokesman.reporter.checkpoints(self.backlog.sentence)

    def _pass_on(self, event: CheckpointEvent) -> None:
        if isinstance(event, Saved):
            if event.trigger != "Suspect":
                self.last_saved = event.reference
            if self.spokesman is not None:
                self.spokesman.reporter.saved(event.reference)
            self._happened(AckState.SAVED, event.reference, detail=event.trigger)
        elif isinstance(event, Verified):
            self._happened(AckState.VERIFIED, event.reference, by=event.by)
        elif isinstance(event, VerifyFailed):
            self._happened(
                AckState.VERIFY_FAILED, event.reference, by=event.by, detail=f"{event.object_name}: {event.detail}"
            )
        else:
            logger.warning("checkpoint: %s", event)
            if isinstance(event, SaveRefused) and event.reason is SaveRefusal.REPLICA_MISMATCH:
                self.replicas_suspect = True

    def _happened(self, state: AckState, checkpoint: CheckpointReference, *, by: str = "", detail: str = "") -> None:
        ack = self.ack(state, self.state.order)
        self.happened(msgspec.structs.replace(ack, checkpoint=checkpoint, by=by, detail=detail))

    def step_computed(self, window: int, loss: Tensor | None) -> None:
        """Take this rank's loss of a window, before anything is updated: a save may wait for it."""
        if self._unmeasured is None:
            return
        if loss is None or self._unmeasured[0] != window or not isinstance(self.trainee, Repeatable):
            self._measure_what_waits()
        else:
            self._measured(loss)

    def _measure_what_waits(self) -> None:
        """Measure on the state that was saved, which is in place still, where no step will; every rank calls it."""
        if self._unmeasured is not None:
            window, _ = self._unmeasured
            self._measured(self.probed_loss(self._evaluation(window)))

    def _measured(self, loss: Tensor) -> None:
        assert self._unmeasured is not None
        (window, waiting), self._unmeasured = self._unmeasured, None
        waiting.set_result(ShareMeasurement(loss=float(loss), samples=self.data.sample_digests(window)))

    def _nothing_measured(self, window: int) -> EvaluationProbe:
        return EvaluationProbe(window=window, losses=(), data=self.data.description)

    def _evaluation(self, window: int) -> EvaluationProbe:
        """What a restore measures again, but for the losses."""
        return EvaluationProbe(
            window=window,
            losses=(),
            mode="Training" if isinstance(self.trainee, Repeatable) else "Evaluation",
            dropout=self.config.model.dropout,
            data=self.data.description,
            micro_batch=self.micro_batch,
            seed=self.config.seed,
            processors=self.processors,
        )

    @property
    def micro_batch(self) -> int:
        """How many samples are computed at once."""
        return self.config.global_batch // self.world.size // self.config.gradient_accumulation_steps

    def batch(self, step: int, window: int) -> Batch:
        """This rank's share of a window as a step trains on it; raises DataUnreadable."""
        state = self.state
        return batch_of(self.data, window, attempt=state.attempt, step=step, rate_override=state.rate_override)

    def probed_losses(self, probe: EvaluationProbe) -> tuple[float, ...]:
        """The loss of every rank's share of a recorded window, measured as it was then, in rank order."""
        own = self.probed_loss(probe).to("cpu", torch.float64).view(1)
        return tuple(float(loss) for loss in self.world.gather(own))

    def probed_loss(self, probe: EvaluationProbe) -> Tensor:
        """The loss of this rank's share, as a training step computes it or without dropout."""
        if probe.mode == "Evaluation" or not isinstance(self.trainee, Repeatable):
            return self.loss_of_share(probe.window)
        loss = self.trainee.training_loss(self.batch(self.state.step + 1, probe.window), probe.dropout)
        self.vitals.advance()
        return loss
