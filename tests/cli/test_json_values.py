"""What `-o json` prints."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
from trimtab_cli.json_values import camel_case, json_value, renamed


class Colour(StrEnum):
    DEEP_RED = "deep_red"


class Inner(msgspec.Struct, frozen=True):
    first_bad_step: int


@dataclass(frozen=True)
class Outer:
    known_since: str
    inner_one: Inner
    by_metric: dict[str, float] = field(default_factory=lambda: {"grad_norm": math.nan})
    by_step: tuple[dict[int, Colour], ...] = ({7: Colour.DEEP_RED},)


def test_fields_are_in_camel_case_and_what_people_named_stays() -> None:
    assert json_value(Outer("now", Inner(3))) == {
        "knownSince": "now",
        "innerOne": {"firstBadStep": 3},
        "byMetric": {"grad_norm": "nan"},
        "byStep": [{"7": "deep_red"}],
    }


def test_names_keep_their_numbers_and_their_case() -> None:
    assert [camel_case(name) for name in ("alarms_per_10000_records", "sha256", "headSeq")] == [
        "alarmsPer10000Records",
        "sha256",
        "headSeq",
    ]


def test_what_the_journal_holds_is_renamed_through_and_through() -> None:
    content = {"latch": {"first_bad_step": 3, "rule_text": {"forRecords": 3}}, "skip": [{"first_one": "a_b"}]}
    assert renamed(content) == {
        "latch": {"firstBadStep": 3, "ruleText": {"forRecords": 3}},
        "skip": [{"firstOne": "a_b"}],
    }
