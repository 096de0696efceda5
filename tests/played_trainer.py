"""The trainer's side of a scripted run: one world that obeys by the trainer's own rules, one boundary a tick."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import (
    AckState,
    Action,
    CheckpointReference,
    Diagnose,
    Directive,
    LearningRateOverride,
    OnNonFinite,
    Reason,
    ReplicaReport,
    TerminationMessage,
    decode,
)
from trimtab_contract.keys import RunId
from trimtab_operator.incidents import Vitals, Wishes
from trimtab_operator.observation import CheckpointClaim
from trimtab_trainer.directives import Inbox, Instruction, Refusal, Standing, instruct

RUN = RunId("lab", "demo", "uid-1")


@dataclass(frozen=True)
class Scenario:
    """What will happen to a run."""

    steps: int = 45
    damaged: frozenset[int] = frozenset()
    """Windows whose loss is bad, in training and in probes."""
    latent: tuple[int, int] | None = None
    """(step, show): the state of attempt 1 is spoiled from `step` on, unseen until step `show`."""
    diverges: int | None = None
    """The step from which every state is spoiled that trains at the full learning rate."""
    rate: tuple[float, int] | None = None
    """The policy's learning-rate override: scale, and for how many steps."""
    healthy: Vitals | None = None
    """What the records before an incident look like."""
    vitals: tuple[Vitals, ...] = ()
    """What the ends of its probations look like, one after the other; the last one stays."""
    control_bad: frozenset[int] = frozenset()
    """Steps of checkpoints on which the control windows are bad."""
    saved_losses: tuple[tuple[int, float], ...] = ()
    """(step, loss): the evaluation loss that the manifest of a checkpoint gives."""
    unrestorable: frozenset[int] = frozenset()
    """Steps of checkpoints that fail to restore."""
    unproved: frozenset[int] = frozenset()
    """Steps of checkpoints that are what was saved, and behave otherwise than they did then."""
    store_away: frozenset[int] = frozenset()
    """Attempts whose restore ends because the checkpoint store does not answer."""
    mismatch: int | None = None
    """The step of attempt 1 at which the replicas begin to differ."""
    nonfinite: frozenset[tuple[int, int]] = frozenset()
    """(attempt, step) whose update is withheld."""
    glitches: frozenset[tuple[int, int]] = frozenset()
    """(attempt, step) that are non-finite once: the same batch is finite when it is measured again."""
    diagnosis: str = "Measured"
    """What becomes of the measurement on the held state: Measured, Late, Refused or Unusable."""
    action: str = "Rollback"
    answers: tuple[tuple[str, str] | tuple[str, str, Wishes], ...] = ()
    """What a person asks for, one after the other: each as soon as the given action is next in the journal."""
    approval: int | None = None
    """How many ticks a plan waits for its approval; None: it needs none."""
    refuses_skips: bool = False
    """Whether the trainer stands further than it says: every new skip begins in what it has trained."""
    holds_on_nonfinite: bool = True
    fires_on_nonfinite: bool = True
    bad_config: bool = False
    initial: bool = True
    """Whether the state before the first step is saved."""
    margin: int = 5
    before: int = 1
    """How many windows before the first flagged one are skipped with it."""
    margin_factor: float = 2.0
    probation: int = 6
    checkpoint_every: int = 5
    read_back: AckState | None = None
    """What another host finds in the last checkpoint while the finished world waits; None: it cannot read it."""
    max_rollbacks: int = 4
    max_restarts: int = 2
    certify: int = 10
    downtime: int = 0
    """Ticks without an operator after each kill."""

    @property
    def override(self) -> LearningRateOverride | None:
        """The policy's learning-rate override."""
        return LearningRateOverride(scale=self.rate[0], until_step=self.rate[1]) if self.rate else None

    def claim(self, reference: CheckpointReference, attempt: int) -> CheckpointClaim:
        """What the operator finds when it looks at a checkpoint."""
        loss = dict(self.saved_losses).get(reference.step)
        return CheckpointClaim(reference=reference, attempt=attempt, usable=True, why="complete", loss=loss)


@dataclass(frozen=True)
class Line:
    """One metric record, as far as the played rules look at it."""

    window: int
    bad: bool
    nonfinite: bool
    mismatch: bool


@dataclass(frozen=True)
class Saved:
    """A checkpoint in the bucket."""

    reference: CheckpointReference
    attempt: int
    ledger: SkipLedger
    spoiled: bool


class Outside(Protocol):
    """What a world reaches: the bus, the checkpoint bucket, and whoever checks what it does."""

    scenario: Scenario
    generation: int
    bus: bytes | None
    saved: dict[str, Saved]
    refusals: list[str]

    def acked(
        self, world: "PlayedWorld", state: AckState, *, order: tuple[int, int] | None = None, **fields: Any
    ) -> None:
        """An acknowledgement reaches the bus."""
        ...

    def published(self, attempt: int, step: int, line: Line) -> None:
        """A record reaches the bus."""
        ...

    def check_restore(self, directive: Directive, target: CheckpointReference) -> None:
        """A world is about to restore."""
        ...

    def measured(self, world: "PlayedWorld", diagnose: Diagnose) -> None:
        """A held world measures its own state."""
        ...


@dataclass
class PlayedWorld:
    """The processes of one Job; obeys as the trainer's own rules say, one boundary a tick."""

    run: "Outside"
    number: int
    attempt: int
    inbox: Inbox
    step: int = 0
    ledger: SkipLedger = field(default_factory=SkipLedger)
    directive: Directive | None = None
    restored: CheckpointReference | None = None
    tried: set[int] = field(default_factory=set[int])
    seen: int = 0
    progress: int = 0
    ready: bool = False
    training: bool = False
    self_held: bool = False
    spoiled: bool = False
    differs: bool = False
    unread: CheckpointReference | None = None
    failure: tuple[CheckpointReference, Reason, str] | None = None
    said: tuple[AckState, dict[str, Any]] = (AckState.WAITING, {})
    alive: bool = True
    hung: bool = False
    stalled: int = 0
    told: bool = False
    ending: int = 0
    evicted: bool = False
    message: TerminationMessage | None = None

    def tick(self) -> None:
        """One boundary."""
        if not self.alive:
            self.ending = max(0, self.ending - 1)
            return
        if self.told:
            self.die(Reason.CRASHED)
            return
        if self.hung:
            self.stalled += 1
            return
        self.progress += 1
        if self.run.scenario.bad_config and self.run.generation == 1:
            self.die(Reason.BAD_CONFIG, "model.width must be at least 1")
            return
        self.inbox.offer(self.run.bus)
        if self.inbox.superseded:
            self.die(Reason.SUPERSEDED)
        elif self.inbox.letter.count > self.seen:
            self.seen = self.inbox.letter.count
            self.obey(decode(Directive, self.inbox.letter.wire))
        elif self.training:
            self.train()
        elif self.unread is not None and self.run.scenario.read_back is not None:
            self.run.acked(self, self.run.scenario.read_back, checkpoint=self.unread, by="b", detail="another SHA-256")
            self.unread = None

    def die(self, reason: Reason, detail: str = "", *, saved: CheckpointReference | None = None) -> None:
        """The processes end and leave their message; the pods are gone two ticks later."""
        self.alive = self.training = False
        self.ending = 2
        self.message = TerminationMessage(
            reason=reason, world=self.number, attempt=self.attempt, step=self.step, detail=detail, saved=saved
        )

    def obey(self, directive: Directive) -> None:
        if self.directive is not None and directive.reaffirms(self.directive):
            self.directive = directive
            self.say(*self.said)
            return
        instruction = self.instruction(directive)
        if isinstance(instruction, Refusal):
            self.run.refusals.append(f"{directive.action} of attempt {directive.attempt}: {instruction.detail}")
            self.run.acked(
                self,
                AckState.REFUSED,
                reason=str(instruction.reason or ""),
                detail=instruction.detail,
                order=directive.order,
            )
            return
        self.directive = directive
        if instruction.action in {Action.STOP, Action.FINISH}:
            self.die(Reason.STOPPED if instruction.action is Action.STOP else Reason.FINISHED)
            return
        if instruction.restore is not None:
            self.restore(directive, instruction.restore)
        elif instruction.initialise:
            self.initialise(directive)
        elif self.ready:
            self.ledger = SkipLedger(directive.skip)
        self.training = instruction.action is Action.RUN
        if not self.training:
            self.hold(directive)
            return
        self.self_held = False
        if self.step < self.run.scenario.steps:
            self.say(AckState.RUNNING)

    def instruction(self, directive: Directive) -> Instruction | Refusal:
        """What the directive means, unless this trainer refuses it."""
        scenario = self.run.scenario
        if scenario.refuses_skips and self.ready and SkipLedger(directive.skip) != self.ledger:
            return Refusal(Reason.RANGE_ALREADY_TRAINED, "the windows to skip were trained")
        here = directive.attempt == self.attempt and self.ready
        if here and directive.diagnose is not None and scenario.diagnosis == "Refused":
            return Refusal(None, "this trainer measures nothing")
        standing = Standing(
            attempt=self.attempt,
            ready=self.ready,
            tried=frozenset(self.tried),
            step=self.step,
            steps=scenario.steps,
            ledger=self.ledger,
            self_held=self.self_held,
        )
        return instruct(standing, directive)

    def initialise(self, directive: Directive) -> None:
        self.attempt, self.ready = directive.attempt, True
        self.ledger = SkipLedger(directive.skip)
        if self.run.scenario.initial:
            self.save()

    def restore(self, directive: Directive, target: CheckpointReference) -> None:
        self.attempt, self.ready, self.failure = directive.attempt, False, None
        self.tried.add(directive.attempt)
        self.run.check_restore(directive, target)
        saved = self.run.saved[target.key]
        ledger = SkipLedger(directive.skip)
        if target.step in self.run.scenario.unrestorable:
            self.failure = (target, Reason.RESTORE_FAILED, "object rank-0 has another SHA-256")
            return
        if target.step in self.run.scenario.unproved:
            self.failure = (target, Reason.PROBE_FAILED, "window 9 has losses [2.5], recorded were [2.25]")
            return
        if directive.attempt in self.run.scenario.store_away:
            self.failure = (target, Reason.STORE_UNAVAILABLE, "no answer")
            return
        assert ledger.agrees_up_to(saved.ledger, target.step), "a restore under a ledger that trained otherwise"
        self.ready, self.restored, self.step, self.ledger = True, target, target.step, ledger
        self.spoiled, self.differs, self.self_held = saved.spoiled, False, False

    def hold(self, directive: Directive) -> None:
        if self.failure is not None and not self.ready:
            target, reason, why = self.failure
            self.say(AckState.FAILED, checkpoint=target, reason=reason, detail=why)
            return
        if self.ready and self.restored is not None and self.restored.step == self.step:
            self.say(AckState.RESTORED, checkpoint=self.restored)
        else:
            reason = Reason.NON_FINITE if self.self_held else ""
            self.say(AckState.HOLDING, reason=reason, replicas=ReplicaReport(agree=not self.differs), nonfinite=())
        if directive.diagnose is None or not self.ready:
            return
        if self.restored is not None and self.restored.step == self.step:
            self.say(AckState.DIAGNOSED, checkpoint=self.restored)
            return
        self.run.measured(self, directive.diagnose)
        if self.run.scenario.diagnosis != "Late":
            self.say(AckState.DIAGNOSED)

    def train(self) -> None:
        scenario = self.run.scenario
        if self.step >= scenario.steps:
            self.training = False
            self.unread = self.save()
            self.say(AckState.FINISHED)
            return
        step = self.step + 1
        window = self.ledger.window_of_step(step)
        if self.attempt == 1 and scenario.latent is not None and step >= scenario.latent[0]:
            self.spoiled = True
        if self.attempt == 1 and step == scenario.mismatch:
            self.differs = True
        rate = self.directive.lr if self.directive else None
        full_rate = rate is None or step > rate.until_step
        if scenario.diverges is not None and step >= scenario.diverges and full_rate:
            self.spoiled = True
        shows = self.spoiled and (scenario.latent is None or step >= scenario.latent[1])
        nonfinite = (self.attempt, step) in scenario.nonfinite | scenario.glitches
        line = Line(window, window in scenario.damaged or shows, nonfinite, self.differs)
        self.run.published(self.attempt, step, line)
        self.step = step
        if nonfinite and self.directive is not None and self.directive.on_nonfinite is OnNonFinite.HOLD:
            self.training, self.self_held = False, True
            self.say(AckState.HOLDING, reason=Reason.NON_FINITE, replicas=ReplicaReport(agree=True), nonfinite=())
        elif step % scenario.checkpoint_every == 0 and step < scenario.steps and not self.differs and not nonfinite:
            self.save()

    def save(self) -> CheckpointReference:
        key = f"{RUN}/checkpoints/{self.step:012d}-a{self.attempt:06d}-x/manifest.json"
        reference = CheckpointReference(key=key, sha256=f"{self.step}-{self.attempt}", step=self.step)
        if key not in self.run.saved:
            self.run.saved[key] = Saved(reference, self.attempt, self.ledger, self.spoiled)
            self.run.acked(self, AckState.SAVED, checkpoint=reference)
        return reference

    def terminate(self) -> None:
        """SIGTERM on a pod: save together unless the state is suspect."""
        suspect = self.self_held or (not self.training and self.directive is not None and self.directive.incident)
        saved = self.save() if self.ready and not suspect else None
        self.die(Reason.TERMINATED, saved=saved)

    def say(self, state: AckState, said: dict[str, Any] | None = None, **fields: Any) -> None:
        content = fields if said is None else said
        self.said = (state, content)
        self.run.acked(self, state, **content)
