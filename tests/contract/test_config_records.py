"""A checkpoint's configuration: every field that differs is named with both values, and no other."""

import msgspec
import pytest
from trimtab_contract.config_record import ConfigRecord, bound_changes, flat_fields

SAVED = ConfigRecord(
    fields={
        "model.width": 64,
        "model.heads": 4,
        "model.bias": False,
        "model.dropout": 0.1,
        "model.attention.window": None,
        "model.experts": None,
        "optimizer.decay": 0.1,
        "optimizer.groups": (),
        "optimizer.qkClipLayerThresholds": (30.0, 40.0),
        "seed": 0,
    },
    chosen=("model.width", "model.dropout", "optimizer.qkClipLayerThresholds"),
)
GIVEN = {
    "model": {"width": 64, "dropout": 0.1},
    "optimizer": {"qkClipLayerThresholds": [30, 40]},
    "telemetry": {"every": 5},
    "data": {"path": "/elsewhere"},
}


def changed(**fields: object) -> ConfigRecord:
    """The same configuration with other values, under names with `_` for a dot."""
    renamed = {name.replace("_", "."): value for name, value in fields.items()}
    return msgspec.convert({"fields": {**SAVED.fields, **renamed}, "chosen": SAVED.chosen}, ConfigRecord)


def test_an_equal_configuration_has_no_changes() -> None:
    assert SAVED.changes_to(changed()) == {}


def test_each_field_that_differs_is_named_with_both_values() -> None:
    found = SAVED.changes_to(changed(model_heads=8, model_attention_window=16, model_bias=True, seed=3))
    assert list(found.values()) == [
        "model.heads: was 4, is 8",
        "model.bias: was false, is true",
        "model.attention.window: was none, is 16",
        "seed: was 0, is 3",
    ]


def test_how_it_is_trained_may_differ_and_what_is_computed_may_not() -> None:
    found = SAVED.changes_to(changed(model_heads=8, model_dropout=0.0, optimizer_decay=0.2))
    assert set(found) == {"model.heads", "model.dropout", "optimizer.decay"}
    assert bound_changes(found) == ("model.heads: was 4, is 8",)


def test_a_field_that_another_version_does_not_know_counts_only_where_it_was_chosen() -> None:
    newer = ConfigRecord(fields={**SAVED.fields, "model.gated": False}, chosen=SAVED.chosen)
    assert SAVED.changes_to(newer) == {}
    chosen = ConfigRecord(fields={**SAVED.fields, "model.gated": True}, chosen=(*SAVED.chosen, "model.gated"))
    assert list(SAVED.changes_to(chosen).values()) == ["model.gated: was left out, is true"]
    assert list(chosen.changes_to(SAVED).values()) == ["model.gated: was true, is left out"]


def test_a_section_that_was_not_there_is_named_even_if_all_of_it_is_at_its_default() -> None:
    there = ConfigRecord(
        fields={name: value for name, value in SAVED.fields.items() if name != "model.experts"}
        | {"model.experts.count": 8, "model.experts.topK": 2},
        chosen=(*SAVED.chosen, "model.experts", "model.experts.count"),
    )
    told = list(SAVED.changes_to(there).values())
    assert told == ["model.experts: was none, is set", "model.experts.count: was left out, is 8"]
    # Of the job that wrote no more than it must, the same is true.
    given = {**GIVEN, "model": {**GIVEN["model"], "experts": {"count": 8}}}
    assert list(SAVED.changes_to(SAVED.as_given(given)).values()) == told
    assert there.changes_to(there.as_given(given)) == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (GIVEN, []),
        ({**GIVEN, "model": {"width": 64, "dropout": 0.1, "heads": 4, "bias": False}}, []),
        ({**GIVEN, "model": {"width": 32, "dropout": 0.1}}, ["model.width: was 64, is 32"]),
        ({**GIVEN, "model": {"dropout": 0.1}}, ["model.width: was 64, is left out"]),
        ({**GIVEN, "seed": 5}, ["seed: was 0, is 5"]),
        (
            {**GIVEN, "optimizer": {"qkClipLayerThresholds": [30, 50]}},
            ["optimizer.qkClipLayerThresholds: was [30.0, 40.0], is [30, 50]"],
        ),
        (
            {**GIVEN, "optimizer": {**GIVEN["optimizer"], "groups": [{"pattern": "head.*"}]}},
            ["optimizer.groups: was [], is set", "optimizer.groups[0].pattern: was left out, is head.*"],
        ),
    ],
)
def test_a_job_that_leaves_defaults_out_is_compared_by_what_it_says(given: dict[str, object], told: list[str]) -> None:
    assert list(SAVED.changes_to(SAVED.as_given(given)).values()) == told


def test_values_are_named_by_the_way_to_them() -> None:
    assert flat_fields({"a": {"b": [{"c": 1}, {"c": [2, 3]}]}, "d": [], "e": None}) == {
        "a.b[0].c": 1,
        "a.b[1].c": (2, 3),
        "d": (),
        "e": None,
    }
