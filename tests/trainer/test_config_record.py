"""What of the trainer's configuration a checkpoint records, and that no field is forgotten."""

import dataclasses
from typing import Any

import msgspec
import pytest
import yaml
from trimtab_contract.config_record import ConfigRecord, bound_changes
from trimtab_trainer.config import TrainerConfig, read_config
from trimtab_trainer.config_record import LEFT_OUT, config_record
from trimtab_trainer.mapping import camel

GROUP = {"pattern": "head.*", "optimizer": "muon"}
GIVEN: dict[str, Any] = {
    "steps": 50,
    "globalBatch": 8,
    "data": {"path": "/data", "order": "shuffled"},
    "model": {"width": 32, "layers": 2, "experts": {"count": 4}},
    "optimizer": {
        "qkClipThreshold": None,
        "groups": [GROUP],
        "qkClipSchedule": [{"update": 1, "factor": 2}, {"update": 9, "factor": 1}],
    },
}


def record(**changes: Any) -> ConfigRecord:
    return config_record(read_config(yaml.safe_dump({**GIVEN, **changes})))


def test_every_field_is_recorded_or_said_to_be_left_out() -> None:
    recorded = {name.split(".")[0].split("[")[0] for name in record().fields}
    decided = recorded | {name for name in LEFT_OUT if "." not in name}
    assert {camel(field.name) for field in dataclasses.fields(TrainerConfig)} == decided
    assert {name for name in record().fields if name.startswith("data.")} == {
        "data.order",
        "data.seed",
        *(name for name in record().fields if name.startswith("data.packing.")),
    }


def test_defaults_are_filled_in_and_what_was_chosen_is_said() -> None:
    found = record()
    assert (found.fields["model.heads"], found.fields["data.order"], found.fields["model.experts.topK"]) == (
        4,
        "shuffled",
        2,
    )
    assert {"steps", "model.width", "model.experts", "optimizer.groups[0].pattern"} <= set(found.chosen)
    assert "model.heads" not in found.chosen
    assert "model.experts.topK" not in found.chosen


def test_it_is_read_back_from_a_manifests_json_without_a_change() -> None:
    read = msgspec.json.decode(msgspec.json.encode(record()), type=ConfigRecord)
    assert read == record()


def test_the_job_that_made_it_is_no_misfit_as_it_was_written() -> None:
    assert record().changes_to(record().as_given(GIVEN)) == {}


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ({"model": {**GIVEN["model"], "heads": 8}}, True),
        ({"model": {**GIVEN["model"], "rotaryBase": 500.0}}, True),
        ({"model": {**GIVEN["model"], "attention": {"window": 16}}}, True),
        ({"model": {**GIVEN["model"], "experts": {"count": 4, "capacityFactor": 1.5}}}, True),
        ({"data": {"path": "/data"}}, True),
        ({"seed": 1}, True),
        ({"precision": "bfloat16"}, True),
        ({"model": {**GIVEN["model"], "dropout": 0.1}}, False),
        ({"steps": 60}, False),
        ({"schedule": {"warmupSteps": 3}}, False),
        ({"optimizer": {**GIVEN["optimizer"], "decay": 0.0}}, False),
        ({"optimizer": {**GIVEN["optimizer"], "groups": [{**GROUP, "learningRateScale": 0.5}]}}, False),
        ({"optimizer": {**GIVEN["optimizer"], "groups": [{**GROUP, "gradientClip": 0.3}]}}, False),
        ({"gradientClip": 2.0}, False),
    ],
)
def test_the_trainer_and_the_job_agree_about_each_change(change: dict[str, Any], bound: bool) -> None:
    saved = record()
    by_trainer = saved.changes_to(record(**change))
    assert len(by_trainer) == 1
    assert bool(bound_changes(by_trainer)) is bound
    assert set(saved.changes_to(saved.as_given({**GIVEN, **change}))) == set(by_trainer)


def test_what_an_older_version_did_not_know_of_a_group_is_no_change() -> None:
    unknown = ("optimizer.groups[0].learningRateScale", "optimizer.groups[0].gradientClip")
    older = ConfigRecord(
        fields={name: value for name, value in record().fields.items() if name not in unknown}, chosen=record().chosen
    )
    assert older.changes_to(record()) == {}
    set_now = record(optimizer={**GIVEN["optimizer"], "groups": [{**GROUP, "gradientClip": 0.3}]})
    assert older.changes_to(set_now) == {unknown[1]: f"{unknown[1]}: was left out, is 0.3"}


@pytest.mark.parametrize(
    "change",
    [{"parallelism": "sharded"}, {"gradientAccumulationSteps": 2}, {"telemetry": {"every": 3}}, {"bucketMebibytes": 1}],
)
def test_how_a_run_is_carried_out_is_no_change(change: dict[str, Any]) -> None:
    assert record().changes_to(record(**change)) == {}
