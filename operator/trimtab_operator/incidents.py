"""What an incident is made of: the rule that fired, what was found, the plans that were tried. Frozen, pure."""

import hashlib
from enum import StrEnum

import msgspec
from trimtab_contract.directives import CheckpointReference, LearningRateOverride
from trimtab_policies.rules import Action

MAX_PLANS = 8
"""How many plans one incident may have; the schema of a GuardIncident holds no more."""

KEPT_PHASES = 64
"""How many of an incident's changes of phase are kept; the schema of a GuardIncident holds no more."""

RECOVERED = "Recovered"
"""The outcome of an incident behind which the run is as good as before."""
DEGRADED = "Degraded"
"""The outcome of an incident behind which no rule fires any more, and the run is still worse than before."""
RESUMED = "Resumed"
"""The outcome of an incident that a person closed by letting the run go on."""


class Finding(StrEnum):
    """What the evidence is consistent with; never a claimed cause."""

    TRANSIENT = "Transient"
    """Replicas disagree, or the withheld batch is finite on the same state: an exact replay changes something."""

    BAD_BATCH = "BadBatch"
    """The flagged windows are bad on the restored state too, where others are not."""

    BAD_STATE = "BadState"
    """Only the held state is bad, and on other windows as well."""

    INTERACTION = "Interaction"
    """The flagged windows are bad on the held state alone, and the held state on them alone."""

    UNDECIDED = "Undecided"
    """The evidence tells none of these apart, or some of it is missing."""


class PolicyIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which text of which policy: what an incident acted on and what a reviewer fetches by its hash."""

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    hash: str
    mode: str = ""
    """The policy's own mode, so that the trail can say whether it may act."""


class RemediationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The winning policy's remediation at the moment the rule fired."""

    margin: int
    before: int
    after: int
    probe: int
    probation_steps: int
    margin_factor: float
    learning_rate: LearningRateOverride | None = None
    """`until_step` counts from the restored step here; the directive carries the absolute step."""
    approval_seconds: int | None = None
    """How long a plan waits for the approval it needs; None where it needs none."""
    min_throughput: float = 0.6
    """The least share of the median throughput before the incident: machines vary, half the speed does not pass."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The person whose request opened an incident, where no rule did."""

    uid: str
    request: str
    """The name of the RunRequest."""
    action: str
    by: str
    reason: str


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """How a stretch of records looks: loss per token, share of clipped gradients, median throughput.

    The counts say over how many records each is taken; None where no record has it.
    """

    records: int
    loss_mean: float | None
    loss_std: float | None
    clip_records: int
    clip_rate: float | None
    speed_records: int
    tokens_per_second: float | None


class Latch(msgspec.Struct, frozen=True, kw_only=True):
    """What an incident acts on, as it was then: later edits of a policy change nothing about it.

    It is a rule that fired, with its policy, or a person who asked (`asked`): then there is no policy, no rule, and
    nothing is flagged. `flagged` are the absolute windows (inclusive) from the first bad step to the step whose record
    made the rule fire. `sigma` is the rule's own, or None; `threshold` is what the observation was compared with;
    `control_limit` is the loss above which the control windows say that a restored state is bad (the threshold of a
    rule on `loss`, else one made of the healthy records before the incident).
    """

    policy: PolicyIdentity | None
    rule: str
    metric: str
    action: str
    observed: float | str
    threshold: float | str | None
    sigma: float | None
    control_limit: float | None
    message: str
    attempt: int
    first_bad_step: int
    fired_step: int
    flagged: tuple[int, int] | None
    remediation: RemediationSettings
    rule_text: dict[str, object]
    asked: Asked | None = None
    healthy: Vitals | None = None
    """The healthy records before the first bad step, which a probation is compared with."""

    @property
    def on_loss(self) -> bool:
        """Whether the rule's own threshold can judge a loss measured later."""
        return self.metric == "loss"

    @property
    def on_divergence(self) -> bool:
        """Whether what the rule found has begun long before: a slow climb is seen late."""
        return "divergence" in self.rule_text

    @property
    def policy_hash(self) -> str | None:
        """The policy text acted on; None where a person asked."""
        return self.policy.hash if self.policy else None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was considered, and why it was or was not chosen."""

    step: int
    attempt: int
    state: str
    chosen: bool
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One try: the checkpoint to restore, and what changes behind it. `number` counts from 1 within the incident.

    `bound` are the windows (inclusive) outside of which nothing is skipped, None where nothing is. `learning_rate`
    holds to the absolute step it names. `hash` is what an approval names (`plan_hash`).
    """

    number: int
    target: CheckpointReference
    bound: tuple[int, int] | None = None
    learning_rate: LearningRateOverride | None = None
    hash: str = ""
    failed: str = ""
    relapsed: str = ""
    """Why a run that was brought back by it broke again, if it did."""
    approved_by: str = ""
    rejected: str = ""
    """Who rejected it and why, if somebody did."""


def hashed(incident: str, plan: Plan) -> Plan:
    """The plan with its hash: SHA-256 of canonical JSON of the incident's name and all that would be done."""
    content = {
        "incident": incident,
        "number": plan.number,
        "target": plan.target,
        "skipBound": plan.bound,
        "learningRate": plan.learning_rate,
    }
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
    return msgspec.structs.replace(plan, hash=digest)


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants of a rollback, beyond the usual. Nothing given: what a rule that rolls back would do.

    `step` or `key` (of a manifest) name the checkpoint; `skip` are absolute windows (inclusive), in place of the
    measured ones; `learning_rate` counts its steps from the restored one; `unchanged` says that nothing shall change.
    """

    step: int | None = None
    key: str = ""
    skip: tuple[int, int] | None = None
    learning_rate: LearningRateOverride | None = None
    unchanged: bool = False

    @property
    def change_nothing(self) -> bool:
        """Whether they say neither what shall change nor that nothing shall."""
        return self.skip is None and self.learning_rate is None and not self.unchanged


NO_WISHES = Wishes()


class SkipRange(msgspec.Struct, frozen=True, kw_only=True):
    """The windows (inclusive) a plan takes out of the run, and how many of them were measured as bad."""

    first: int
    last: int
    bad: int


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True):
    """A phase the run was in during an incident, and when it began (RFC 3339)."""

    phase: str
    time: str


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Forward-only losses on one state: of the control windows together, and of each flagged window.

    Losses are in nats per token; None where there is no finite one. `threshold` is the loss above which a flagged
    window counts as bad: None where too few control windows were measured, and only a non-finite loss is bad.
    """

    control: int
    control_nonfinite: int
    control_mean: float | None
    control_std: float | None
    control_bad: bool
    threshold: float | None
    flagged: tuple[tuple[int, float | None], ...]
    bad: tuple[int, ...]


class WithheldStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose update was withheld as non-finite; `loss_finite` says whether its loss itself was a number."""

    step: int
    window: int
    loss_finite: bool


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An open incident; it stays open through its probation, and a relapse belongs to it."""

    name: str
    latch: Latch
    opened_seq: int = 0
    outcome: str = ""
    closed_at: str = ""
    held_step: int | None = None
    replicas_agree: bool | None = None
    restoring_attempt: int = 0
    world_lost: bool = False
    finding: Finding | None = None
    finding_why: str = ""
    missing: tuple[str, ...] = ()
    """Which evidence the finding lacks."""
    state_finite: bool | None = None
    """Whether the held weights and optimizer state are finite; None where nobody looked."""
    withheld: WithheldStep | None = None
    """The withheld step the run holds at, when nothing was trained since."""
    suspect: Measurement | None = None
    restored: Measurement | None = None
    diagnosed_attempt: int = 0
    """The restored attempt whose measurement the finding takes into account."""
    plans: tuple[Plan, ...] = ()
    relapses: int = 0
    furthest: int = 0
    """Where the run broke when it last got on: the step at which a rule fired. 0 before the first relapse.

    It gets on once it is sound for more than a margin behind that step: what breaks it breaks it at about the same one.
    """
    stalls: int = 0
    """How many plans in a row, up to the newest, did not bring the run on."""
    extended_to: int = 0
    """Where the probation ends since it was extended, 0 while it was not."""
    extensions: int = 0
    baseline: Vitals | None = None
    """The healthy records before the incident; a relapse changes nothing about them."""
    doubts: tuple[str, ...] = ()
    """What is not as before the incident though no rule fires: why the probation was extended."""
    extent: SkipRange | None = None
    extent_done: bool = False
    restored_plan: int = 0
    """The number of the newest plan whose checkpoint was put in place, 0 before the first."""
    skipped: SkipRange | None = None
    """The newest windows that the run went on without."""
    asked: bool = False
    """Whether a person asked for the rollback: it counts against no budget, and goes behind the last target."""
    wishes: Wishes = Wishes()
    """What they want of it."""
    deadline: str = ""
    """Until when (RFC 3339) the last plan waits for its approval, if it does."""
    phases: tuple[PhaseTime, ...] = ()
    """From the firing on, the newest ones."""

    @property
    def paused(self) -> bool:
        """Whether the run is held for a person to say how it goes on."""
        return self.latch.action == Action.PAUSE and not self.asked

    @property
    def plan(self) -> Plan | None:
        """The plan under way, or the last one."""
        return self.plans[-1] if self.plans else None

    @property
    def carried_out(self) -> Plan | None:
        """The newest plan whose checkpoint was put in place, and not taken out again as one that cannot be."""
        return next((plan for plan in reversed(self.plans[: self.restored_plan]) if not plan.failed), None)

    @property
    def target(self) -> CheckpointReference | None:
        """The checkpoint of the plan under way."""
        return self.plans[-1].target if self.plans else None

    def put_in_place(self) -> "Incident":
        """The incident once the checkpoint of its plan is restored."""
        return msgspec.structs.replace(self, restored_plan=len(self.plans))

    def gone_on(self) -> "Incident":
        """The incident once the run goes on by its plan."""
        return msgspec.structs.replace(self.put_in_place(), skipped=self.extent or self.skipped)

    @property
    def flagged(self) -> tuple[int, int] | None:
        """The windows whose extent of damage is measured behind the restored state; None: what to skip is settled.

        A transient fault is no fault of the data, and where a person says what to skip, or to skip nothing, that is it.
        """
        settled = self.wishes.skip is not None or self.wishes.unchanged
        return None if settled or self.finding is Finding.TRANSIENT else self.latch.flagged

    @property
    def probation_until(self) -> int:
        """The last step of the probation: counted from the step at which the incident held."""
        held = self.held_step if self.held_step is not None else self.latch.fired_step
        return max(self.extended_to, held + self.latch.remediation.probation_steps)
