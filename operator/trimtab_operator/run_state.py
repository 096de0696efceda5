"""RunState: what the fold of a run's journal (`journal_fold`) says, and the words a record can use."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference, Directive, LearningRateOverride
from trimtab_contract.journal import GENESIS

from trimtab_operator.incidents import Incident, PolicyIdentity


class RunPhase(StrEnum):
    """`status.phase` of a TrainingJob."""

    PENDING = "Pending"
    WATCHING = "Watching"
    HOLDING = "Holding"
    DIAGNOSING = "Diagnosing"
    SELECTING = "Selecting"
    AWAITING_APPROVAL = "AwaitingApproval"
    RESTORING = "Restoring"
    DIAGNOSING_RESTORED = "DiagnosingRestored"
    PROBATION = "Probation"
    NEEDS_HUMAN = "NeedsHuman"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"


class JournalAction(StrEnum):
    """Every action a journal record can name."""

    TAKEOVER = "Takeover"
    POLICY_ACCEPTED = "PolicyAccepted"
    START_WORLD = "StartWorld"
    END_WORLD = "EndWorld"
    WORLD_RUNNING = "WorldRunning"
    WORLD_LOST = "WorldLost"
    WORLD_RESTORED = "WorldRestored"
    DIRECTIVE = "Directive"
    DIRECTIVE_REFUSED = "DirectiveRefused"
    COMMITTED = "Committed"
    VERIFIED = "Verified"
    CERTIFIED = "Certified"
    QUARANTINED = "Quarantined"
    DELETING = "Deleting"
    """Intent: a checkpoint that nothing needs is never chosen again. Result: its data are gone."""
    READ_BACK = "ReadBack"
    """Intent: a Job reads checkpoints back that no other host can. Result: it is over."""
    METRIC_MISSING = "MetricMissing"
    RULE_FIRED = "RuleFired"
    INCIDENT_OPENED = "IncidentOpened"
    RELAPSED = "Relapsed"
    UPGRADED = "Upgraded"
    HELD = "Held"
    DIAGNOSED = "Diagnosed"
    TARGET_SELECTED = "TargetSelected"
    RESTORED = "Restored"
    RESTORE_FAILED = "RestoreFailed"
    EXTENT_FOUND = "ExtentFound"
    SKIPPED = "Skipped"
    """A world has taken windows that a person asked for out of its data."""
    PROBATION_EXTENDED = "ProbationExtended"
    """No rule fires, and yet the run does not train as before the incident."""
    INCIDENT_CLOSED = "IncidentClosed"
    NEEDS_HUMAN = "NeedsHuman"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REOPENED = "Reopened"
    RUN_REQUESTED = "RunRequested"
    AUTOMATION_HELD = "AutomationHeld"
    AUTOMATION_RELEASED = "AutomationReleased"
    NOTICE_SENT = "NoticeSent"
    RUN_ENDED = "RunEnded"
    SNAPSHOT = "Snapshot"
    """The fold so far lies beside the journal: reading may begin here."""


class CheckpointState(StrEnum):
    """How far a checkpoint can be trusted; each change is a journal record with its evidence."""

    COMMITTED = "Committed"
    VERIFIED = "Verified"
    CERTIFIED = "Certified"
    QUARANTINED = "Quarantined"
    DELETING = "Deleting"
    """For good: whatever happens, it is never chosen again."""


RESTORABLE = frozenset({CheckpointState.COMMITTED, CheckpointState.VERIFIED, CheckpointState.CERTIFIED})
"""States in which a checkpoint may be restored."""

KEPT_UNREAD = 64
"""So many checkpoints are remembered that a Job was to read back and could not."""

KEPT_DELETIONS = 1536
"""So many of the newest deletions are remembered: more than trainers' claims are (`observation.KEPT_CLAIMS`)."""


SOURCE_ATTEMPT = 0
"""What stands for the run that this one continues; its own attempts count from 1."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of training; it continues `parent` up to and including `branch_step`.

    `order` is the (epoch, seq) of the directive that began it.
    """

    number: int
    world: int
    parent: int | None
    branch_step: int
    order: tuple[int, int] = (0, 0)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint the journal knows.

    `loss` is the evaluation-mode loss of the window that followed, over all ranks, as it was measured at the save; None
    where it was not finite or the journal does not say. `size` are the bytes of its objects, None where that is not
    known.
    """

    reference: CheckpointReference
    attempt: int
    state: CheckpointState
    why: str = ""
    loss: float | None = None
    size: int | None = None

    @property
    def of_source(self) -> bool:
        """Whether it belongs to the run that this one continues, which alone may delete it."""
        return self.attempt == SOURCE_ATTEMPT


class ReadBackOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A Job that is to read checkpoints back, in this order, and is not over as far as the journal knows.

    `number` is that of its intent's record, `since` when that was written, in seconds since the epoch. After `seconds`
    the Job ends by itself; its pod prefers other nodes than `avoid`.
    """

    id: str
    number: int
    checkpoints: tuple[CheckpointReference, ...]
    seconds: int
    avoid: tuple[str, ...]
    since: float


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of another run that this one continues, as that run's journal or its manifest knows it.

    `skip` and `lr` are that run's skip ledger and learning-rate override behind it.
    """

    run: str
    checkpoint: CheckpointReference
    state: CheckpointState
    why: str
    skip: tuple[tuple[int, int], ...] = ()
    lr: LearningRateOverride | None = None


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The newest Job of the run. `told_to_end` says why its pods were told to end, `lost_reason` how it ended."""

    number: int
    live: bool = True
    told_to_end: str = ""
    lost_reason: str = ""
    spec_generation: int = 0


class PendingEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An intent without a result: the effect may or may not have happened and is repeated."""

    id: str
    action: JournalAction
    incident: str | None
    after: dict[str, Any]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A directive that the trainer did not obey, and why: a reason of the contract or nothing, and its own words.

    `asked`: all that it adds to the skip ledger are windows that people asked for; the plan under way is not concerned.
    """

    directive: Directive
    reason: str
    detail: str
    asked: bool = False


class AcceptedGuard(msgspec.Struct, frozen=True, kw_only=True):
    """The policies that judge from a record on, in order; the texts lie in the audit bucket under their hashes."""

    policies: tuple[PolicyIdentity, ...]
    mode: str
    from_attempt: int
    from_step: int


class RequestAction(StrEnum):
    """What a person may ask of a run."""

    HOLD = "Hold"
    RESUME = "Resume"
    ROLLBACK = "Rollback"
    SKIP = "Skip"
    STOP = "Stop"
    APPROVE = "Approve"
    REJECT = "Reject"


UNKNOWN_PHASE = "Unknown"
"""What people are shown of a run whose journal is broken, for its phase is a fold of the journal."""


class RequestState(StrEnum):
    """`status.state` of a RunRequest."""

    ACCEPTED = "Accepted"
    REFUSED = "Refused"
    DONE = "Done"
    """What was asked for has been done, or has led to another question."""

    ABANDONED = "Abandoned"
    """It was accepted, and the run ended or asks a person before it was done."""


class AnsweredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A person's request that the journal answers. `message` is the answer, `time` when it was given."""

    uid: str
    name: str
    action: RequestAction
    by: str
    state: RequestState
    message: str
    time: str
    done_at: str = ""
    skip: tuple[int, int] | None = None
    """The windows (inclusive) that a Skip takes out."""

    @property
    def open_skip(self) -> tuple[int, int] | None:
        """The windows that belong into every ledger from now on, and of which no world has said that it took them."""
        return self.skip if self.action is RequestAction.SKIP and self.state is RequestState.ACCEPTED else None


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """A person let a held run go on: what fired up to `step` of `attempt` is settled, and streaks begin anew."""

    attempt: int
    step: int


class AutomationHold(msgspec.Struct, frozen=True, kw_only=True):
    """No rollback and no restart begins while the breaker over all runs is open.

    `id` names the trip, the same in every run's journal; empty while an operator that took over has not yet read all
    journals, which is waited for and written nowhere. `since` counts seconds since the epoch.
    """

    id: str
    message: str
    since: float = 0.0
    runs: tuple[str, ...] = ()


class NoticeKind(StrEnum):
    """What people are told of at their webhook."""

    RULE_FIRED = "RuleFired"
    """A rule whose action is Notify."""
    PAUSED = "Paused"
    APPROVAL_NEEDED = "ApprovalNeeded"
    NEEDS_HUMAN = "NeedsHuman"
    FAILED = "Failed"
    AUTOMATION_HELD = "AutomationHeld"
    JOURNAL_BROKEN = "JournalBroken"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something people must hear of. `shared`: it concerns all runs, so whichever run owes it, it is sent once."""

    kind: NoticeKind
    id: str
    time: str
    message: str
    seq: int = 0
    incident: str | None = None
    rule: str | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RunState:
    """All that decisions may depend on, besides what is observed now."""

    seq: int = 0
    head: str = GENESIS
    epoch: int = 0
    phase: RunPhase = RunPhase.PENDING
    attempts: tuple[Attempt, ...] = ()
    world: World | None = None
    directive: Directive | None = None
    refusal: Refusal | None = None
    """The last directive that was refused."""
    source: Source | None = None
    """What the run continues, where it did not begin from its seed."""
    skip_before: tuple[tuple[int, int], ...] = ()
    """The skip ledger before its last change."""
    restored_attempt: int = 0
    pending: PendingEffect | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    deleted: tuple[str, ...] = ()
    """Manifest keys of the newest deleted checkpoints: a trainer may still claim them."""
    spared: tuple[str, ...] = ()
    """Manifest keys of checkpoints that could not be deleted: files of somebody else lie there, or another run goes on
    from them."""
    restore_failures: tuple[str, ...] = ()
    read_back: ReadBackOrder | None = None
    """The Job that reads checkpoints back."""
    read_back_over: float = 0.0
    """When the last such Job was over, in seconds since the epoch."""
    unread: tuple[str, ...] = ()
    """Manifest keys of checkpoints of which a Job could not say anything, once for each Job; the newest ones."""
    incident: Incident | None = None
    closed: tuple[Incident, ...] = ()
    incident_names: tuple[str, ...] = ()
    effects: Mapping[str, int] = field(default_factory=dict[str, int])
    rollback_times: tuple[datetime, ...] = ()
    rollbacks_asked: int = 0
    """How many more a person asked for, which count against no budget."""
    restarts: int = 0
    stuck_steps: tuple[int, ...] = ()
    guards: tuple[AcceptedGuard, ...] = ()
    fired: frozenset[tuple[str, int, int]] = frozenset()
    blind: frozenset[tuple[str, str]] = frozenset()
    """(policy, metric) of rules whose metric no record had."""
    failure: str = ""
    failed_generation: int = 0
    question: str = ""
    """Why a human is asked."""
    snapshot: int = 0
    """The number of the newest Snapshot record."""
    requests: tuple[AnsweredRequest, ...] = ()
    resumptions: tuple[Resumption, ...] = ()
    failures: tuple[float, ...] = ()
    """When the run last opened incidents or lost worlds by a fault, in seconds since the epoch; the newest ones."""
    automation: AutomationHold | None = None
    """Why the next rollback or restart waits, where one does."""
    let_go: str = ""
    """The hold that a person lifted for this run."""
    suspect_nodes: tuple[str, ...] = ()
    """Nodes that incidents of this run point at; its later worlds prefer others."""
    owed: tuple[Notice, ...] = ()
    """What people are to be told and, as far as the journal knows, were not; the newest ones."""

    @property
    def attempt(self) -> int:
        """The newest attempt, 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def ended(self) -> bool:
        """Whether nothing the Job does can change the run any more."""
        return self.phase in {RunPhase.COMPLETED, RunPhase.STOPPED}

    @property
    def world_lives(self) -> bool:
        """Whether the newest world still has processes that could obey."""
        return self.world is not None and self.world.live

    @property
    def ledger(self) -> SkipLedger:
        """The windows never to be trained on: those in force, and those that a person asked for and was promised."""
        asked = tuple(one.open_skip for one in self.requests if one.open_skip is not None)
        return SkipLedger.of((*(self.directive.skip if self.directive else ()), *asked))

    @property
    def doubtful(self) -> SkipLedger:
        """The windows that no damage is measured against: those of the ledger, and what an earlier incident flagged up
        to its hold, where the run went on without any change."""
        left = [one for one in self.closed if one.latch.flagged is not None and one.carried_out is None]
        ledger = self.ledger
        ranges = [
            (first, last if one.held_step is None else max(last, ledger.window_of_step(max(one.held_step, 1))))
            for one in left
            if one.latch.flagged is not None
            for first, last in (one.latch.flagged,)
        ]
        return SkipLedger.of((*ledger.ranges, *ranges))

    @property
    def unproved(self) -> tuple[str, ...]:
        """Manifests of checkpoints that are what was saved, and did not behave so where they were restored."""
        failed = (self.checkpoint(key) for key in dict.fromkeys(self.restore_failures))
        return tuple(one.reference.key for one in failed if one is not None and one.state in RESTORABLE)

    @property
    def refused(self) -> Refusal | None:
        """Why the directive in force, or one that said the same, is not obeyed."""
        refusal, directive = self.refusal, self.directive
        return refusal if refusal and directive and directive.reaffirms(refusal.directive) else None

    def owner(self, step: int) -> int:
        """The attempt whose record and checkpoint of `step` belong to the surviving history."""
        if not self.attempts:
            return SOURCE_ATTEMPT
        by_number = {attempt.number: attempt for attempt in self.attempts}
        current = self.attempts[-1]
        while current.parent is not None and step <= current.branch_step:
            current = by_number[current.parent]
        return SOURCE_ATTEMPT if 0 < step <= current.branch_step else current.number

    def surviving(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint belongs to the surviving history."""
        return self.owner(checkpoint.reference.step) == checkpoint.attempt

    def guard_at(self, attempt: int, step: int) -> AcceptedGuard | None:
        """The policies in force for a record."""
        before = [guard for guard in self.guards if (guard.from_attempt, guard.from_step) <= (attempt, step)]
        return before[-1] if before else (self.guards[0] if self.guards else None)

    def resumed(self, attempt: int) -> frozenset[int]:
        """The steps at which a person let an attempt go on."""
        return frozenset(one.step for one in self.resumptions if one.attempt == attempt)

    def settled(self, attempt: int, step: int) -> bool:
        """Whether a person has answered what a record says: the run went on behind it or behind a later one."""
        return any(step <= resumed for resumed in self.resumed(attempt))

    def checkpoint(self, key: str) -> Checkpoint | None:
        """The checkpoint of a manifest key."""
        return next((item for item in self.checkpoints if item.reference.key == key), None)

    def knows(self, key: str) -> bool:
        """Whether the journal has said something of the checkpoint of a manifest key, a deleted one included."""
        return self.checkpoint(key) is not None or key in self.deleted

    def continuing(self, source: Source) -> "RunState":
        """This state with the checkpoint that the run continues, as the oldest one that it may go back to."""
        known = Checkpoint(
            reference=source.checkpoint, attempt=SOURCE_ATTEMPT, state=source.state, why=f"{source.run}: {source.why}"
        )
        return replace(self, source=source, checkpoints=(known, *self.checkpoints))

    def next_id(self, incident: str | None) -> str:
        """The identity of the next effect: its index within the incident, or within the run outside one."""
        scope = incident or "run"
        return f"{scope}#{self.effects.get(scope, 0) + 1}"
