"""The models of the custom resources, and the schemas generated from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from operator_objects import training_job
from pydantic import BaseModel
from trimtab_operator.errors import InvalidResource
from trimtab_operator.resources import (
    TrainingJobSpec,
    TrainingJobStatus,
    custom_resource_definitions,
    incident_name,
    parse_duration,
    parse_training_job_spec,
    to_wire,
    to_yaml,
)
from trimtab_operator.resources.schema import structural_schema, unbounded
from trimtab_operator.run_state import RunPhase

CHECKED_IN = Path(__file__).parents[2] / "helm" / "trimtab" / "files" / "crds"
DEFINITIONS = {definition["metadata"]["name"]: definition for definition in custom_resource_definitions()}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_checked_in_definitions_are_the_generated_ones(name: str) -> None:
    """Mend with: python -m trimtab_operator.resources helm/trimtab/files/crds."""
    assert (CHECKED_IN / f"{name}.yaml").read_text() == to_yaml(DEFINITIONS[name])


def test_no_definition_is_checked_in_that_is_not_generated() -> None:
    assert {path.stem for path in CHECKED_IN.iterdir()} == set(DEFINITIONS)


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_every_text_list_and_map_has_a_bound(definition: dict[str, Any]) -> None:
    (version,) = definition["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    for part in {"spec", "status"} & set(properties):
        assert unbounded(properties[part]) == ()


def test_an_unbounded_field_would_be_found() -> None:
    class Loose(BaseModel):
        text: str
        items: tuple[int, ...]

    assert unbounded(structural_schema(Loose)) == ("text", "items")


def test_a_union_that_no_structural_schema_can_say_is_named() -> None:
    class Either(BaseModel):
        value: int | str

    with pytest.raises(ValueError, match=r"Either\.value: a union of 2 kinds"):
        structural_schema(Either)


def test_the_model_fills_in_what_the_api_server_would() -> None:
    spec = parse_training_job_spec(training_job()["spec"])
    schema = structural_schema(TrainingJobSpec)
    assert to_wire(spec)["budget"] == schema["properties"]["budget"]["default"]
    assert spec.checkpoint.every_steps == 200


def test_every_wrong_field_of_a_job_is_named_at_once_and_no_value_shown() -> None:
    spec = training_job(trainer={"numNodes": 0, "imagee": "hunter2"}, budget={"window": "0s"})["spec"]
    with pytest.raises(InvalidResource) as caught:
        parse_training_job_spec(spec)
    text = str(caught.value)
    for field in ("spec.trainer.numNodes", "spec.trainer.imagee", "spec.budget.window"):
        assert field in text
    assert "hunter2" not in text


@pytest.mark.parametrize("wrap", [lambda inner: {"d": inner}, lambda inner: [inner]])
def test_a_spec_that_would_exhaust_a_stack_is_refused_by_field(wrap: Callable[[Any], Any]) -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = wrap(deep)
    spec = training_job(trainer={"config": {"model": {"width": 8}}})["spec"]
    spec["trainer"]["config"]["extra"] = deep
    with pytest.raises(InvalidResource, match=r"spec\.trainer\.config\.extra: is nested deeper than 64 levels"):
        parse_training_job_spec(spec)


def test_a_part_of_a_gpu_is_refused() -> None:
    spec = training_job(trainer={"resourcesPerNode": {"limits": {"nvidia.com/gpu": "500m"}}})["spec"]
    with pytest.raises(InvalidResource, match=r"resourcesPerNode: .*nvidia\.com/gpu must be a whole number"):
        parse_training_job_spec(spec)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("24h", 86400), ("1h30m", 5400)])
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "-1h", "1d", "1.5h", "100000h", "1h" * 10, "10m "])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_a_status_speaks_camel_case_and_leaves_out_what_is_unknown() -> None:
    status = TrainingJobStatus(observed_generation=2, phase=RunPhase.WATCHING, loss="nan")
    assert to_wire(status) == {"observedGeneration": 2, "phase": "Watching", "loss": "nan"}


def test_an_incident_is_named_after_what_fired() -> None:
    assert incident_name("demo", 2, 320) == "demo-a2-s320"
