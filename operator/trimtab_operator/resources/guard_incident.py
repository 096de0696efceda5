"""GuardIncident: one incident of one run, for people; derived from the journal, named after what fired."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from trimtab_operator.incidents import MAX_PLANS, Finding
from trimtab_operator.resources.training_job import AcceptedPolicyStatus
from trimtab_operator.resources.values import (
    Conditions,
    Count,
    Hash,
    LongText,
    Name,
    NumberText,
    Opaque,
    Resource,
    Text,
    Timestamp,
    Uid,
    Word,
    list_map,
    validation,
)


class IncidentPhase(StrEnum):
    """`status.phase` of a GuardIncident: the run's while the incident is open, and then its end."""

    HOLDING = "Holding"
    DIAGNOSING = "Diagnosing"
    SELECTING = "Selecting"
    AWAITING_APPROVAL = "AwaitingApproval"
    RESTORING = "Restoring"
    DIAGNOSING_RESTORED = "DiagnosingRestored"
    PROBATION = "Probation"
    NEEDS_HUMAN = "NeedsHuman"
    CLOSED = "Closed"


def incident_name(job: str, attempt: int, first_bad_step: int) -> str:
    """The name of an incident's object: a repeated create finds itself."""
    return f"{job}-a{attempt}-s{first_bad_step}"


class IncidentJob(Resource):
    """The TrainingJob the incident belongs to."""

    name: Name
    uid: Uid


class Windows(Resource):
    """Absolute data windows, both inclusive."""

    first: Count
    last: Count


class TriggerRequest(Resource):
    """The RunRequest of the person who held the run, or took it back, where no rule had fired."""

    name: Name
    uid: Uid
    action: Word
    by: Annotated[str, Field(max_length=512)]
    reason: Text


class Trigger(Resource):
    """The rule that fired, as it was when it fired, or the person who asked: then nothing is flagged."""

    request: TriggerRequest | None = None
    policy: AcceptedPolicyStatus | None = None
    rule: Word | None = None
    rule_text: Opaque | None = None
    metric: Word | None = None
    observed: NumberText | None = None
    threshold: NumberText | None = None
    action: Word
    attempt: Count
    first_bad_step: Count
    """Of a request the step up to which the run was judged when it was made."""
    fired_step: Count
    flagged: Windows | None = None
    message: Text = ""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("has(self.rule) != has(self.request)", "must have a rule or a request"),
                validation(
                    "has(self.request) || (has(self.policy) && has(self.metric) && has(self.observed) && "
                    "has(self.flagged))",
                    "must have policy, metric, observed and flagged with its rule",
                ),
            ]
        }
    )


class Target(Resource):
    """A checkpoint: its manifest's key and SHA-256, and the step it was taken after."""

    step: Count
    key: Annotated[str, Field(max_length=1024)]
    sha256: Hash


class LearningRate(Resource):
    """The learning rate is multiplied by `scale` up to and including `untilStep`."""

    scale: NumberText
    until_step: Count


class IncidentPlan(Resource):
    """One try; the range that is skipped is a result inside `skipBound`. `hash` is what an approval names."""

    number: Annotated[int, Field(ge=1, le=MAX_PLANS)]
    hash: Hash | None = None
    target: Target
    skip_bound: Windows | None = None
    learning_rate: LearningRate | None = None


class GuardIncidentSpec(Resource):
    """What fired, and what was planned against it."""

    job: IncidentJob
    trigger: Trigger
    plans: Annotated[tuple[IncidentPlan, ...], Field(max_length=MAX_PLANS, json_schema_extra=list_map("number"))] = ()

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("self.job == oldSelf.job", "is immutable", fieldPath=".job"),
                validation("self.trigger == oldSelf.trigger", "is immutable", fieldPath=".trigger"),
                validation(
                    "oldSelf.plans.all(plan, plan in self.plans)",
                    "may only be appended to",
                    fieldPath=".plans",
                ),
            ]
        }
    )


class PhaseEntry(Resource):
    """A phase and when it began."""

    phase: IncidentPhase
    time: Timestamp


class FailedPlan(Resource):
    """Why a plan did not hold."""

    number: Count
    reason: Text


class MeasuredState(StrEnum):
    """The state that windows were measured on."""

    HELD = "Held"
    RESTORED = "Restored"


class MeasuredLosses(Resource):
    """Forward-only losses on one state: how many control and flagged windows, and how they compare."""

    state: MeasuredState
    control: Count
    control_non_finite: Count
    control_bad: bool
    control_mean: NumberText | None = None
    control_std: NumberText | None = None
    threshold: NumberText | None = None
    flagged: Count
    bad: Count


class SkippedWindows(Windows):
    """The range taken out of the run, and how many of its windows were measured as bad."""

    bad: Count


class Approval(Resource):
    """The plan that waits for a person, or what became of it."""

    plan_hash: Hash
    deadline: Timestamp
    """Behind it the run stays held, and the phase is NeedsHuman."""
    approved_by: Annotated[str, Field(max_length=512)] | None = None


class JournalRange(Resource):
    """The journal records of the incident, by sequence number."""

    first: Count
    last: Count


class GuardIncidentStatus(Resource):
    """How the incident went; a cache of the journal."""

    phase: IncidentPhase | None = None
    phases: Annotated[tuple[PhaseEntry, ...], Field(max_length=64)] | None = None
    held_step: Count | None = None
    finding: Finding | None = None
    finding_reason: LongText | None = None
    """What the finding rests on."""
    missing_evidence: Annotated[tuple[Text, ...], Field(max_length=16)] | None = None
    measured: Annotated[tuple[MeasuredLosses, ...], Field(max_length=2, json_schema_extra=list_map("state"))] | None = (
        None
    )
    doubts: Annotated[tuple[Text, ...], Field(max_length=8)] | None = None
    """What is not as before the incident, though no rule fires."""
    resumed_time: Timestamp | None = None
    """When the run last went on behind the damage; `phases` say when it fired."""
    skipped: SkippedWindows | None = None
    failed_plans: (
        Annotated[tuple[FailedPlan, ...], Field(max_length=MAX_PLANS, json_schema_extra=list_map("number"))] | None
    ) = None
    target: Count | None = None
    """The step of the checkpoint that the newest plan restores; of a closed incident that was restored."""
    skip: Word | None = None
    """The windows that are skipped; `at most` as long as they are not known; of a closed incident that were."""
    approval: Approval | None = None
    relapses: Count | None = None
    outcome: Word | None = None
    closed_time: Timestamp | None = None
    message: LongText | None = None
    journal: JournalRange | None = None
    conditions: Conditions | None = None
