"""What an incident is made of: the rule that fired, what was found, the plans that were tried. Frozen, pure."""

from enum import StrEnum

import msgspec
from trimtab_contract.directives import CheckpointReference, LearningRateOverride
from trimtab_policies.rules import Action

MAX_PLANS = 8
"""How many plans one incident may have; the schema of a GuardIncident holds no more."""

RESUMED = "Resumed"
"""The outcome of an incident that a person closed by letting the run go on."""


class Finding(StrEnum):
    """What the evidence is consistent with; never a claimed cause."""

    TRANSIENT = "Transient"
    """Replicas disagree, so one of them was damaged: an exact replay from a checkpoint changes something."""

    UNDECIDED = "Undecided"
    """Nothing proves a transient fault: the flagged windows are skipped."""


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


class Latch(msgspec.Struct, frozen=True, kw_only=True):
    """A firing rule as it was when it fired: later edits of the policy change nothing about the incident.

    `flagged` are the absolute windows (inclusive) from the first bad step to the step whose record made the rule
    fire. `sigma` is the rule's own, or None; `threshold` is what the observation was compared with; `control_limit`
    is the loss above which the control windows say that a restored state is bad (the threshold of a rule on `loss`,
    else one made of the healthy records before the incident).
    """

    policy: PolicyIdentity
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
    flagged: tuple[int, int]
    remediation: RemediationSettings
    rule_text: dict[str, object]

    @property
    def on_loss(self) -> bool:
        """Whether the rule's own threshold can judge a loss measured later."""
        return self.metric == "loss"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was considered, and why it was or was not chosen."""

    step: int
    attempt: int
    state: str
    chosen: bool
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One try: the checkpoint to restore. `number` counts from 1 within the incident."""

    number: int
    target: CheckpointReference
    failed: str = ""


class SkipRange(msgspec.Struct, frozen=True, kw_only=True):
    """The windows (inclusive) a plan takes out of the run, and how many of them were measured as bad."""

    first: int
    last: int
    bad: int


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
    plans: tuple[Plan, ...] = ()
    relapses: int = 0
    extent: SkipRange | None = None
    extent_done: bool = False
    asked: bool = False
    """Whether a person asked for the rollback: it counts against no budget, and goes behind the last target."""

    @property
    def paused(self) -> bool:
        """Whether the run is held for a person to say how it goes on."""
        return self.latch.action == Action.PAUSE and not self.asked

    @property
    def target(self) -> CheckpointReference | None:
        """The checkpoint of the plan under way."""
        return self.plans[-1].target if self.plans else None

    @property
    def probation_until(self) -> int:
        """The last step of the probation: counted from the step at which the incident held."""
        held = self.held_step if self.held_step is not None else self.latch.fired_step
        return held + self.latch.remediation.probation_steps
