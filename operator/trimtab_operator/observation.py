"""What is seen of a run from outside the journal, as frozen values: acks, pods, records judged, limits in force."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec
from trimtab_contract.directives import Ack, AckState, CheckpointReference, TerminationMessage
from trimtab_contract.evidence import ProbeEvidence
from trimtab_contract.journal import Evidence
from trimtab_contract.read_back import ReadBackAnswer

from trimtab_operator.incidents import NO_WISHES, Latch, RemediationSettings, Vitals, Wishes, WithheldStep
from trimtab_operator.reasons import Reason
from trimtab_operator.run_state import AcceptedGuard, AutomationHold, RequestAction, RunState, Source

KEPT_CLAIMS = 1024
"""So many of the newest claims are remembered; older ones of an honest trainer are in the journal by then."""


class PodsState(StrEnum):
    """The pods of the newest world, taken together."""

    ABSENT = "Absent"
    """The Job does not exist."""
    STARTING = "Starting"
    LIVE = "Live"
    ENDING = "Ending"
    """At least one pod failed or is being deleted, others still run."""
    GONE = "Gone"
    """The Job exists and no process of it runs any more."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """What a job waits for: a reason of `reasons` and the sentence that says what to do."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, order=True)
class PodPlace:
    """Where a pod of the newest world runs, or ran, and of which image: a digest, once the kubelet knows it."""

    index: int
    pod: str
    node: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The newest world as Kubernetes shows it. `messages` come from all dead containers, read to the end."""

    world: int = 0
    state: PodsState = PodsState.ABSENT
    failed: bool = False
    evicted: bool = False
    messages: tuple[TerminationMessage, ...] = ()
    trouble: str = ""
    trouble_reason: Reason | None = None
    """What kind of trouble it is, where it keeps a pod from starting."""
    names: tuple[str, ...] = ()
    places: tuple[PodPlace, ...] = ()
    """In order of completion index."""
    wanted: int = 0
    """How many pods the world has once it trains; the three numbers below are of them."""
    made: int = 0
    scheduled: int = 0
    running: int = 0
    starting: str = ""
    """What a pod that was scheduled is at, in the kubelet's word, as long as nothing is wrong with that."""


@dataclass(frozen=True, slots=True)
class Acks:
    """The fold of the acknowledgement stream.

    `latest` is the newest ack that tells the state of the newest world; `restored` may be a Diagnosed that names its
    checkpoint, where Redis lost the word before it; `saved` are the claims of any attempt;
    `verified` and `verify_failed` map manifest keys to the host that looked.
    """

    cursor: str = "0-0"
    latest: Ack | None = None
    restored: Ack | None = None
    failed: Ack | None = None
    diagnosed: Ack | None = None
    finished: Ack | None = None
    terminated: Ack | None = None
    refused: Ack | None = None
    saved: tuple[CheckpointReference, ...] = ()
    verified: tuple[tuple[CheckpointReference, str], ...] = ()
    verify_failed: tuple[tuple[CheckpointReference, str], ...] = ()

    def hear(self, entry_id: str, ack: Ack, state: RunState) -> "Acks":
        """The acks after one more stream entry, which counts for nothing when no world of this run can have meant it.

        The journal is ahead of every world: it names an attempt before one can speak of it. Words from beyond it, once
        believed, would make every true word that follows look like a late one.
        """
        return self.fold(entry_id, ack) if _can_be_meant(ack, state) else replace(self, cursor=entry_id)

    def fold(self, entry_id: str, ack: Ack) -> "Acks":
        """The acks after one more stream entry."""
        after = replace(self, cursor=entry_id, latest=self._heard(ack))
        for reference in (*ack.recent, *((ack.checkpoint,) if ack.state is AckState.SAVED and ack.checkpoint else ())):
            if reference not in after.saved:
                after = replace(after, saved=(*after.saved, reference)[-KEPT_CLAIMS:])
        if ack.checkpoint is not None and ack.state is AckState.VERIFIED:
            return replace(after, verified=_with(after.verified, ack.checkpoint, ack.by))
        if ack.checkpoint is not None and ack.state is AckState.VERIFY_FAILED:
            return replace(after, verify_failed=_with(after.verify_failed, ack.checkpoint, ack.detail))
        if ack.state in {AckState.SAVED, AckState.VERIFIED, AckState.VERIFY_FAILED}:
            return after
        if ack.state is AckState.REFUSED:
            return replace(after, refused=ack)
        if self.latest is not None and (ack.world, ack.attempt) < (self.latest.world, self.latest.attempt):
            return after
        after = replace(after, latest=ack)
        kept = {
            AckState.RESTORED: "restored",
            AckState.FAILED: "failed",
            AckState.DIAGNOSED: "diagnosed",
            AckState.FINISHED: "finished",
            AckState.TERMINATED: "terminated",
        }.get(ack.state)
        if ack.state is AckState.DIAGNOSED and ack.checkpoint is not None and not _same_attempt(self.restored, ack):
            after = replace(after, restored=ack)
        return replace(after, **{kept: ack}) if kept else after

    def word_of_world(self, state: RunState) -> AckState | None:
        """What the newest world last said of itself, None before its first word."""
        number = state.world.number if state.world is not None else 0
        return self.latest.state if self.latest is not None and self.latest.world == number else None

    def behind(self, state: RunState) -> str:
        """What the world that is up says of checkpoints that do not get stored; nothing when all is well."""
        if self.latest is None or state.world is None or not state.world_lives:
            return ""
        return self.latest.checkpoints_behind if self.latest.world == state.world.number else ""

    def _heard(self, ack: Ack) -> Ack | None:
        """The newest state with the progress of any ack of its attempt: every word shows that a world gets on."""
        latest = self.latest
        if latest is None or (ack.world, ack.attempt) != (latest.world, latest.attempt):
            return latest
        return msgspec.structs.replace(latest, progress=max(latest.progress, ack.progress))


def _can_be_meant(ack: Ack, state: RunState) -> bool:
    """Whether the ack's world and attempt were ever started, and what it says of a restore answers what was asked."""
    if state.world is None or ack.world > state.world.number or ack.attempt > state.attempt:
        return False
    directive = state.directive
    if ack.state not in {AckState.RESTORED, AckState.DIAGNOSED} or directive is None or ack.attempt < state.attempt:
        return True
    asked = state.attempts[-1].order <= (ack.epoch, ack.seq) <= directive.order
    return asked and (ack.checkpoint == directive.restore or (ack.state is AckState.DIAGNOSED and not ack.checkpoint))


def _same_attempt(one: Ack | None, other: Ack) -> bool:
    return one is not None and one.attempt == other.attempt


_Looked = tuple[tuple[CheckpointReference, str], ...]


def _with(looked: _Looked, reference: CheckpointReference, said: str) -> _Looked:
    """One more opinion of a checkpoint; the first one stays."""
    known = any(reference == one for one, _ in looked)
    return looked if known else (*looked, (reference, said))[-KEPT_CLAIMS:]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointClaim:
    """A claim of the trainer after the operator looked at the manifest and the objects it names.

    `newer` says that a newer version wrote the manifest: neither good nor bad, for this one cannot read it.
    """

    reference: CheckpointReference
    attempt: int
    usable: bool
    why: str
    evidence: tuple[Evidence, ...] = ()
    loss: float | None = None
    """The evaluation-mode loss that the manifest gives."""
    size: int | None = None
    """The bytes of all objects that the manifest names."""
    newer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringRule:
    """A rule whose action is no more than Record or Notify, or one that only observes."""

    policy: str
    rule: str
    action: str
    would_have: str
    attempt: int
    step: int
    observed: float | str
    threshold: float | str | None
    message: str
    policy_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMetric:
    """A metric that rules of a policy name and no record has: those rules are blind. `rule` is the last of them."""

    policy: str
    """Kind and name, as in `GuardPolicy/default`."""
    rule: str
    metric: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A person's request as its object says. `outlived`: it was made before this run's TrainingJob.

    `wishes` are what a Rollback wants, and the windows of a Skip; `plan_hash` is the plan that is approved or rejected.
    """

    uid: str
    name: str
    action: RequestAction
    by: str
    reason: str
    outlived: bool = False
    wishes: Wishes = NO_WISHES
    plan_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeOutcome:
    """A notice that people's webhook took, or that was given up. `message` says when, or why."""

    id: str
    delivered: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What became of the data of a checkpoint that the journal says is being deleted."""

    key: str
    deleted: bool
    """False: they stay, because files of somebody else lie among them, or another run goes on from them."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What a save that never ended left under a prefix; `reference` names the manifest that was never written.

    `since` is when it was last written to.
    """

    reference: CheckpointReference
    attempt: int
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBackOutcome:
    """What became of the Job that the intent `number` ordered: it is over, or was given up, and will not be looked at.

    `answers` come from all its pods, one of which ran on `node`; `error` says why some may be missing.
    """

    number: int
    job: str
    answers: tuple[ReadBackAnswer, ...] = ()
    node: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """What a TrainingJob and the policies in force ask to be kept, in steps.

    `near`: how far a first plan goes back from the newest judged step; `reach`: how far the last plan of an incident
    may go back from where a late rule fires. `plans`: so many may be tried, each further back than the one before, so
    that many certified checkpoints are kept from beyond the reach, as far as there are any.
    """

    keep_last: int
    keep_every: int | None
    certify_steps: int
    near: int
    reach: int
    plans: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the TrainingJob allows, in the engine's units."""

    max_rollbacks: int
    max_restarts: int
    window_seconds: float
    certify_steps: int
    generation: int
    suspend: bool
    retention: RetentionSettings | None = None
    """Which checkpoints must stay; None where that cannot be told now, and all do."""
    read_back_jobs: bool = False
    """Whether checkpoints that no other host can read back are read by a Job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything `remediation.advance` may look at besides the fold of the journal.

    `now` is wall time (RFC 3339, UTC), used only for the budget's window; `overdue` says that the current wait ran
    past its deadline on the operator's own monotonic clock. `judged_step` is the last step of the current attempt
    that was judged without a gap; `green_step` the last one up to which every enforced rule that acts has found its
    metric healthy, 0 while one of them has found nothing yet, or where none acts; `firing` the latch of the highest
    enforced rule firing on it.
    """

    job: str
    now: str
    limits: Limits
    blocked: tuple[str, ...] = ()
    acks: Acks = Acks()
    pods: Pods = Pods()
    hung: str = ""
    guard: AcceptedGuard | None = None
    judged_step: int = 0
    green_step: int = 0
    firing: Latch | None = None
    notes: tuple[FiringRule, ...] = ()
    missing_metrics: tuple[MissingMetric, ...] = ()
    claims: tuple[CheckpointClaim, ...] = ()
    source: Source | None = None
    """What a run that has not begun continues; None where it begins from its seed."""
    source_evidence: tuple[Evidence, ...] = ()
    probe: ProbeEvidence | None = None
    probe_evidence: tuple[Evidence, ...] = ()
    probe_problem: str = ""
    suspect: ProbeEvidence | None = None
    """What the held world measured on the suspect state."""
    suspect_evidence: tuple[Evidence, ...] = ()
    suspect_problem: str = ""
    diagnosis_late: bool = False
    """Whether the held world has been asked to measure for longer than anybody waits for the answer."""
    probation: Vitals | None = None
    """The last records of a probation that is over; None while it is not, or where no record is left."""
    withheld: WithheldStep | None = None
    """The last judged step of the current attempt, where its update was withheld."""
    frozen_evidence: tuple[Evidence, ...] = ()
    hold_on_nonfinite: bool = False
    final_check_over: bool = False
    """Whether the last checkpoint of a finished run has been waited for long enough."""
    requests: tuple[Request, ...] = ()
    """What people ask for, oldest first, answered ones included."""
    remediation: RemediationSettings | None = None
    """That of the first policy in force: what a person's own incident goes by; None where no policy judges."""
    last_step: int | None = None
    """The last step of the run, where its configuration says."""
    automation_held: AutomationHold | None = None
    """Why no rollback and no restart may begin now, if so."""
    notices: tuple[NoticeOutcome, ...] = ()
    """What became of notices that were handed over to be sent."""
    removals: tuple[Removal, ...] = ()
    """What became of the data of checkpoints that are being deleted."""
    continued: Mapping[str, str] = field(default_factory=dict[str, str])
    """Which run goes on from which checkpoint of this one, by the manifest's key."""
    leftovers: tuple[Leftover, ...] = ()
    """Of saves that are known to be over, oldest step first."""
    read_back: ReadBackOutcome | None = None
    """What became of the Job that reads checkpoints back, once that is known."""
    may_read_back: bool = True
    """Whether one more Job may read back: over all runs no more than so many do at once."""
