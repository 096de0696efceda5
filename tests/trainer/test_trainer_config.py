"""What a wrong setting is answered with: every field at once, each with what to do."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import torch
from trimtab_contract.data_position import Order
from trimtab_trainer.config import Environment, TrainerConfig, read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.mapping import build, camel
from trimtab_trainer.model.dropout import keyed_dropout

GOOD = (
    "{steps: 50, globalBatch: 8, data: {path: /data.bin, order: shuffled, seed: 3}, optimizer: {qkClipThreshold: 30}}"
)


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidFields) as caught:
        read_config(text)
    return caught.value.problems


def test_settings_are_spelt_in_camel_case_and_the_rest_has_defaults() -> None:
    config = read_config(GOOD)
    assert config.data.order is Order.SHUFFLED
    assert config.optimizer.qk_clip_threshold == 30.0
    assert config.replica_check_every == 50
    assert config.max_withheld_steps == 20


def test_every_wrong_field_is_named_at_once() -> None:
    found = problems_of(
        "{steps: 1.5, data: {order: random}, model: {width: 30, heads: 4}, optimizer: {muonLr: 0}, extra: 1}"
    )
    for start in (
        "extra: unknown field",
        "steps: 1.5 must be a whole number",
        "data.path: missing",
        "data.order: 'random' must be one of sequential, shuffled",
        "model.width: 30 must be a multiple",
        "optimizer.muonLr: 0",
        "globalBatch: missing",
    ):
        assert any(problem.startswith(start) for problem in found), (start, found)


def test_what_does_not_go_together_is_named_beside_wrong_fields_of_the_same_parts() -> None:
    found = problems_of(
        "{steps: 50, globalBatch: 0, schedule: {shape: up, cycles: 0}, data: {path: /d, packing: {separator: 70000}},"
        " model: {width: 30, heads: 4, attention: {qkNorm: true, window: 0}},"
        " optimizer: {qkClipThreshold: 0, muonLr: .nan, adamwLr: .inf}}"
    )
    assert sorted(problem.split(":")[0] for problem in found) == [
        "data.packing.separator",
        "globalBatch",
        "model.attention.window",
        "model.width",
        "optimizer.adamwLr",
        "optimizer.muonLr",
        "optimizer.qkClipThreshold",
        "optimizer.qkClipThreshold",
        "schedule.cycles",
        "schedule.shape",
    ]


def test_an_odd_rotary_dimension_is_named_beside_every_other_wrong_one() -> None:
    latent = "{kind: latent, keyValueRank: 0, contentDimension: 8, rotaryDimension: 3}"
    found = problems_of(GOOD.removesuffix("}") + f", model: {{layers: 0, attention: {latent}}}}}")
    assert sorted(problem.split(":")[0] for problem in found) == [
        "model.attention.keyValueRank",
        "model.attention.rotaryDimension",
        "model.attention.valueDimension",
        "model.layers",
    ]


def numbers(kind: Any = TrainerConfig, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """Every number of the configuration that is no member of a list: the path to it, and whether it is whole."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        choices = () if get_origin(hint) is tuple else get_args(hint) or (hint,)
        for choice in choices:
            if dataclasses.is_dataclass(choice):
                yield from numbers(choice, (*path, camel(field.name)))
            elif choice in {int, float}:
                yield (*path, camel(field.name)), choice


@pytest.mark.parametrize(("path", "kind"), [pytest.param(*found, id=".".join(found[0])) for found in numbers()])
def test_a_number_that_means_nothing_is_refused_by_name(path: tuple[str, ...], kind: type) -> None:
    given: dict[str, Any] = {"steps": 50, "globalBatch": 8, "data": {"path": "/d"}}
    place = given
    for part in path[:-1]:
        place = place.setdefault(part, {})
    if "experts" in path:
        place["count"] = 4
    # Of seeds a negative one is as good as any.
    place[path[-1]] = 10**23 if path[-1] == "seed" else -1 if kind is int else math.nan
    with pytest.raises(InvalidFields) as caught:
        build(TrainerConfig, given)
    assert {problem.split(":")[0] for problem in caught.value.problems} == {".".join(path)}


def test_a_seed_is_what_generators_take_and_keys_of_dropout_hold() -> None:
    given: dict[str, Any] = {"steps": 50, "globalBatch": 8, "data": {"path": "/d"}}
    samples = torch.arange(2)
    for seed in (-(2**63), -1, 2**63 - 1):
        config = build(TrainerConfig, given | {"seed": seed, "data": {"path": "/d", "seed": seed}})
        torch.Generator().manual_seed(config.seed)
        keyed_dropout(torch.ones(2, 3), probability=0.5, seed=config.seed, sample_ids=samples, site=0)
    for seed in (-(2**63) - 1, 2**63):
        with pytest.raises(InvalidFields) as caught:
            build(TrainerConfig, given | {"seed": seed, "data": {"path": "/d", "seed": seed}})
        said = f"seed: {seed} must be at least -9223372036854775808 and below 9223372036854775808"
        assert caught.value.problems == (f"data.{said}", said)


def test_a_field_of_the_wrong_type_hides_no_wrong_value_beside_it() -> None:
    found = problems_of("{steps: 0, gradientClip: -1, seed: x, globalBatch: 8, data: {path: /data.bin}}")
    assert [problem.split(":")[0] for problem in found] == ["seed", "steps", "gradientClip"]


def test_a_fault_that_could_not_fire_is_refused() -> None:
    faults = (
        "faults: [{attempt: 1, step: 2, rank: 0, kind: flipBit, bit: 40}, {attempt: 0, step: 1, rank: 0, kind: melt}]"
    )
    found = problems_of(GOOD.removesuffix("}") + f", {faults}}}")
    assert [problem.split(":")[0] for problem in found] == ["faults[0].bit", "faults[0].tensor", "faults[1].kind"]


def test_a_whole_number_that_no_float_holds_is_refused_by_name_beside_others() -> None:
    found = problems_of(f"{{steps: 0, gradientClip: {10**400}, globalBatch: 8, data: {{path: /data.bin}}}}")
    assert found == (f"gradientClip: {10**400} must be a number of float64", "steps: 0 must be at least 1")


@pytest.mark.parametrize("text", ["[1]", "", "steps: [", "7", "steps: 2026-13-45", f"steps: {'9' * 5000}"])
def test_what_is_no_mapping_is_refused_in_one_sentence(text: str) -> None:
    assert len(problems_of(text)) == 1


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    found = problems_of("{steps: 10, globalBatch: 8, data: {path: /data.bin}, schedule: {warmupSteps: 10}}")
    assert found[0].startswith("schedule.warmupSteps: 10 must be below")


@pytest.mark.parametrize(("steps", "warm_up"), [(1, 0), (2, 1), (20, 19), (21, 20), (600, 20)])
def test_a_short_run_that_says_nothing_of_its_schedule_warms_up_in_fewer_steps(steps: int, warm_up: int) -> None:
    config = read_config(f"{{steps: {steps}, globalBatch: 8, data: {{path: /data.bin}}}}")
    assert config.rates.warmup_steps == warm_up


def test_every_missing_variable_is_named_and_the_password_stays_out_of_sight() -> None:
    with pytest.raises(InvalidFields) as caught:
        Environment.read({"TRIMTAB_RUN": "a/b", "TRIMTAB_ATTEMPT": "0", "TRIMTAB_CHECKPOINT_URI": "file:///x"}, "host")
    text = str(caught.value)
    for name in ("TRIMTAB_RUN", "TRIMTAB_ATTEMPT", "TRIMTAB_CHECKPOINT_URI", "TRIMTAB_REDIS_URL", "RANK"):
        assert name in text
    variables = {
        "TRIMTAB_RUN": "team/tiny/u1",
        "TRIMTAB_ATTEMPT": "2",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "TRIMTAB_REDIS_URL": "redis://bus:6379/0",
        "TRIMTAB_REDIS_USERNAME": "tt-u1",
        "TRIMTAB_REDIS_PASSWORD": "secret-word",
        "TRIMTAB_CHECKPOINT_URI": "s3://bucket/some/prefix/",
        "TRIMTAB_S3_ENDPOINT": "http://store:8333",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "TRIMTAB_CHECKPOINT_EVERY": "10",
        "TRIMTAB_PROGRESS_DEADLINE": "600",
    }
    environment = Environment.read(variables, "host")
    assert (environment.checkpoint_bucket, environment.checkpoint_root) == ("bucket", "some/prefix")
    assert "secret-word" not in repr(environment)


def data_problems(data: str) -> list[str]:
    return [problem.split(":")[0] for problem in problems_of(f"{{steps: 50, globalBatch: 8, data: {data}}}")]


def test_every_wrong_field_of_every_source_is_named_at_once() -> None:
    sources = "[{path: a, kind: csv}, {path: '', weight: 0}, {weight: 1}, {path: b, textField: ''}]"
    found = data_problems(f"{{sources: {sources}, order: random}}")
    assert sorted(found) == [
        "data.order",
        "data.sources[0].kind",
        "data.sources[1].path",
        "data.sources[1].weight",
        "data.sources[2].path",
        "data.sources[3].textField",
    ]


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        ("{path: a, sources: [{path: b}]}", ["data.path"]),
        ("{}", ["data.path"]),
        ("{sources: [{path: a}], kind: text}", ["data.kind"]),
        ("{sources: [{path: a}, {path: a}]}", ["data.sources[1].name"]),
        ("{sources: [{path: a, weight: 0.123456}, {path: b, weight: 0.876544}]}", ["data.sources"]),
        ("{path: a, packing: {boundaries: masked}}", ["data.packing.boundaries"]),
        ("{path: a, packing: {attention: masked, separator: 10}}", ["data.packing.attention"]),
        ("{path: a, packing: {attention: closed}}", ["data.packing.attention"]),
        ("{path: a, packing: {separator: 70000}}", ["data.packing.separator"]),
        ("{path: a, kind: uint16, packing: {attention: masked, separator: 50256}}", ["data.packing.separator"]),
        ("{path: a, kind: text, packing: {separator: 10}}", ["data.packing.separator"]),
        ("{path: a, kind: text, packing: {separator: 256}}", ["data.packing.separator"]),
        ("{path: a, kind: uint16, packing: {boundaries: masked, separator: 50256}}", ["data.packing.separator"]),
    ],
)
def test_data_that_cannot_be_what_was_meant_are_refused_by_name(data: str, fields: list[str]) -> None:
    assert data_problems(data) == fields


@pytest.mark.parametrize(
    "data",
    [
        "{sources: [{path: a, weight: 3}, {path: 's3://bucket/part-*.bin', kind: uint16, weight: 1.5, name: web}]}",
        "{path: a, kind: jsonl, textField: body, packing: {boundaries: masked, attention: masked}}",
        "{path: a, kind: text, packing: {attention: masked}}",
        "{path: a, kind: uint16, packing: {boundaries: masked, separator: 0}}",
        "{path: a, kind: bytes, packing: {separator: 10}}",
    ],
)
def test_data_of_every_kind_are_taken(data: str) -> None:
    assert read_config(f"{{steps: 50, globalBatch: 8, data: {data}}}").data.fields_of_sources()


def test_the_rate_of_uploads_is_bounded_where_it_is_given_and_must_be_one() -> None:
    assert read_config(GOOD).checkpoint.upload_bytes_per_second == 256 * 2**20
    bounded = read_config(GOOD.removesuffix("}") + ", checkpoint: {uploadMebibytesPerSecond: 50}}")
    assert bounded.checkpoint.upload_bytes_per_second == 50 * 2**20
    found = problems_of(GOOD.removesuffix("}") + ", checkpoint: {uploadMebibytesPerSecond: 0, pendingSaves: 0}}")
    assert [problem.split(":")[0] for problem in found] == [
        "checkpoint.uploadMebibytesPerSecond",
        "checkpoint.pendingSaves",
    ]
