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


class Trigger(Resource):
    """The rule that fired, as it was when it fired."""

    policy: AcceptedPolicyStatus
    rule: Word
    rule_text: Opaque | None = None
    metric: Word
    observed: NumberText
    threshold: NumberText | None = None
    action: Word
    attempt: Count
    first_bad_step: Count
    fired_step: Count
    flagged: Windows
    message: Text = ""


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
    """One try; the range that is skipped is a result inside `skipBound`."""

    number: Annotated[int, Field(ge=1, le=MAX_PLANS)]
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


class SkippedWindows(Windows):
    """The range taken out of the run, and how many of its windows were measured as bad."""

    bad: Count


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
    """What the finding rests on, and which evidence is missing."""
    resumed_time: Timestamp | None = None
    """When the run last went on behind the damage; `phases` say when it fired."""
    skipped: SkippedWindows | None = None
    failed_plans: (
        Annotated[tuple[FailedPlan, ...], Field(max_length=MAX_PLANS, json_schema_extra=list_map("number"))] | None
    ) = None
    relapses: Count | None = None
    outcome: Word | None = None
    closed_time: Timestamp | None = None
    message: LongText | None = None
    journal: JournalRange | None = None
    conditions: Conditions | None = None
