"""RunRequest: what a person asks of a run. It is answered once, and the answer is in the run's journal."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from trimtab_operator.errors import InvalidResource
from trimtab_operator.resources.values import LongText, Name, Resource, Timestamp, validation
from trimtab_operator.run_state import RequestAction, RequestState


class RunRequestSpec(Resource):
    """What is asked, of which TrainingJob of the same namespace, why, and by whom."""

    job: Name
    action: RequestAction
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    by: Annotated[str, Field(min_length=1, max_length=512)]
    """The user who asks, as the API server knows them; nobody else is accepted where the chart's policy is in force."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("self == oldSelf", "is immutable: create another RunRequest"),
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
