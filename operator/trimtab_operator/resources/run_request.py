"""RunRequest: what a person asks of a run. It is answered once, and the answer is in the run's journal."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from trimtab_operator.errors import InvalidResource
from trimtab_operator.resources.values import Count, Hash, LongText, Name, Resource, Timestamp, validation
from trimtab_operator.run_state import RequestAction, RequestState

_LAST_WINDOW = 10**15
Window = Annotated[int, Field(ge=0, le=_LAST_WINDOW)]


class RequestedWindows(Resource):
    """Absolute data windows, both inclusive."""

    first: Window
    last: Window

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("self.first <= self.last", "must be at most last", fieldPath=".first"),
            ]
        }
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first > self.last:
            message = "first must be at most last"
            raise ValueError(message)
        return self


class RequestedLearningRate(Resource):
    """The learning rate times `scale` for `forSteps` steps behind the restored one."""

    scale: Annotated[float, Field(gt=0, lt=1)]
    for_steps: Annotated[int, Field(ge=1, le=1_000_000)]


class RunRequestArguments(Resource):
    """What a Rollback goes back to and changes; of a Skip the windows."""

    to_step: Count | None = None
    """The checkpoint of this step. Neither this nor toKey: the newest trustworthy one from before the damage."""
    to_key: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The checkpoint whose manifest has this key."""
    skip: RequestedWindows | None = None
    """Windows that are not trained on; in a Rollback in place of what would be measured."""
    learning_rate: RequestedLearningRate | None = None
    unchanged: bool | None = None
    """Nothing shall change: the same steps are trained again."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation(
                    "!(has(self.toStep) && has(self.toKey))",
                    "must be left out with toStep, which names the checkpoint",
                    fieldPath=".toKey",
                ),
                validation(
                    "!(has(self.unchanged) && self.unchanged && (has(self.skip) || has(self.learningRate)))",
                    "must be left out with skip and learningRate, which change something",
                    fieldPath=".unchanged",
                ),
            ]
        }
    )


class RunRequestSpec(Resource):
    """What is asked, of which TrainingJob of the same namespace, why, and by whom."""

    job: Name
    action: RequestAction
    args: RunRequestArguments | None = None
    plan_hash: Hash | None = None
    """The plan that is approved or rejected, as its GuardIncident shows it."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    by: Annotated[str, Field(min_length=1, max_length=512)]
    """The user who asks, as the API server knows them; nobody else is accepted where the chart's policy is in force."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("self == oldSelf", "is immutable: create another RunRequest"),
                validation(
                    "!has(self.args) || self.action in ['Rollback', 'Skip']",
                    "belongs to Rollback and Skip: remove it",
                    fieldPath=".args",
                ),
                validation(
                    "self.action != 'Skip' || (has(self.args) && has(self.args.skip))",
                    "must have skip: which windows shall be skipped",
                    fieldPath=".args",
                ),
                validation(
                    "self.action != 'Skip' || !has(self.args) || !(has(self.args.toStep) || has(self.args.toKey) || "
                    "has(self.args.learningRate) || has(self.args.unchanged))",
                    "must have skip alone: the rest belongs to Rollback",
                    fieldPath=".args",
                ),
                validation(
                    "self.action != 'Approve' || has(self.planHash)",
                    "must name the plan that is approved: the hash in the GuardIncident",
                    fieldPath=".planHash",
                ),
                validation(
                    "!has(self.planHash) || self.action in ['Approve', 'Reject']",
                    "belongs to Approve and Reject: remove it",
                    fieldPath=".planHash",
                ),
            ]
        }
    )


class RunRequestStatus(Resource):
    """The answer; a cache of the journal."""

    state: RequestState | None = None
    message: LongText | None = None
    """Why it is refused, or what follows from it."""
    answered_time: Timestamp | None = None
    done_time: Timestamp | None = None


def parse_run_request_spec(body: Mapping[str, Any]) -> RunRequestSpec:
    """Read the `spec` of an object; raises InvalidResource where another version's schema let it pass."""
    try:
        return RunRequestSpec.model_validate(body.get("spec"))
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        fields = ", ".join(sorted({".".join(str(part) for part in ("spec", *detail["loc"])) for detail in details}))
        message = f"RunRequest {body['metadata']['name']} cannot be read: look at {fields}"
        raise InvalidResource(message) from None
