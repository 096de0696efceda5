"""What no single field of a GuardPolicy shows: pairs of fields, and names used twice.

Works on the spec as it was written, also where other fields of it are wrong, so that all errors are reported at once.
A field of the wrong type is skipped here: the models report it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS

from trimtab_policies.errors import FieldError

DETECTOR_FIELDS = ("range", "spike")
REDUCTION_FIELDS = ("max", "fractionBelow", "longestStreakBelow")
HEALTHY_WINDOWS_AFTER_DAMAGE = 8
"""So many healthy windows in a row end the damage, and the probe must have room for them."""

DEFAULT_RECORDS = 100
DEFAULT_MIN_RECORDS = 50
DEFAULT_MAX_FREEZE = 100
DEFAULT_FOR_RECORDS = 1
DEFAULT_PROBE = 64

_LONGEST_STREAK = 10_000


def cross_field_errors(spec: Mapping[Any, Any]) -> list[FieldError]:
    """Every error that spans fields, in the order of the spec."""
    rules = [_mapping(rule) for rule in _list(spec.get("rules"))]
    errors: list[FieldError] = []
    for index, rule in enumerate(rules):
        errors += _rule_errors(rule, f"spec.rules[{index}]")
    errors += _repeated_names(rules)
    errors += _probe_errors(rules, _mapping(_mapping(spec.get("remediation")).get("skipBatches")))
    return errors


def _rule_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    given = [field for field in DETECTOR_FIELDS if rule.get(field) is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        yield FieldError(path, f"must have exactly one detector ({' or '.join(DETECTOR_FIELDS)}); it has {found}")
    if rule.get("range") is not None:
        yield from _range_errors(rule, _mapping(rule["range"]), f"{path}.range")
    if rule.get("spike") is not None:
        yield from _spike_errors(rule, _mapping(rule["spike"]), path)
    yield from _reduce_errors(rule, f"{path}.reduce")


def _range_errors(rule: Mapping[str, Any], bounds: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if bounds.get("min") is None and bounds.get("max") is None:
        yield FieldError(path, "must have min or max or both")
    low, high = _number(bounds.get("min")), _number(bounds.get("max"))
    if low is not None and high is not None and low > high:
        yield FieldError(f"{path}.max", f"must be at least min, which is {low:g}; it is {high:g}")
    if _mapping(rule.get("reduce")).get("longestStreakBelow") is None:
        return
    for name, bound in (("min", low), ("max", high)):
        if bound is not None and not 0 <= bound <= _LONGEST_STREAK:
            yield FieldError(f"{path}.{name}", f"must lie between 0 and {_LONGEST_STREAK} records for a streak")


def _spike_errors(rule: Mapping[str, Any], spike: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    baseline = _mapping(spike.get("baseline"))
    records = _number(baseline.get("records", DEFAULT_RECORDS))
    fewest = _number(baseline.get("minRecords", DEFAULT_MIN_RECORDS))
    if records is not None and fewest is not None and fewest > records:
        message = f"must be at most records, which is {records:g}; it is {fewest:g}"
        yield FieldError(f"{path}.spike.baseline.minRecords", message)
    freeze = _number(baseline.get("maxFreeze", DEFAULT_MAX_FREEZE))
    needed = _number(rule.get("forRecords", DEFAULT_FOR_RECORDS))
    if freeze is not None and needed is not None and needed > freeze:
        message = f"must be at most spike.baseline.maxFreeze, which is {freeze:g}, else the rule could never fire"
        yield FieldError(f"{path}.forRecords", message)


def _reduce_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    metric, given = rule.get("metric"), rule.get("reduce")
    if given is None:
        if metric in KNOWN_VECTORS:
            choice = ", ".join(REDUCTION_FIELDS)
            yield FieldError(path, f"is required, since {metric} is a vector; choose one of {choice}")
        return
    if metric in KNOWN_SCALARS:
        yield FieldError(path, f"must be left out, since {metric} is a scalar")
    reduce = _mapping(given)
    chosen = [field for field in REDUCTION_FIELDS if reduce.get(field) is not None]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none"
        yield FieldError(path, f"must have exactly one of {', '.join(REDUCTION_FIELDS)}; it has {found}")
    if reduce.get("minCount") is not None and "fractionBelow" not in chosen:
        yield FieldError(f"{path}.minCount", "belongs to fractionBelow; remove it")


def _repeated_names(rules: list[Mapping[str, Any]]) -> Iterator[FieldError]:
    first: dict[str, int] = {}
    for index, rule in enumerate(rules):
        name = rule.get("name")
        if not isinstance(name, str):
            continue
        if name in first:
            yield FieldError(
                f"spec.rules[{index}].name", f"{name} is already the name of rules[{first[name]}]; rename one"
            )
        first.setdefault(name, index)


def _probe_errors(rules: list[Mapping[str, Any]], skip: Mapping[str, Any]) -> Iterator[FieldError]:
    probe = _number(skip.get("probe", DEFAULT_PROBE))
    latencies = [
        (needed, rule.get("name"))
        for rule in rules
        if rule.get("action") == "Rollback"
        and (needed := _number(rule.get("forRecords", DEFAULT_FOR_RECORDS))) is not None
    ]
    if probe is None or not latencies:
        return
    longest, name = max(latencies, key=lambda latency: latency[0])
    if probe < longest + HEALTHY_WINDOWS_AFTER_DAMAGE:
        least = longest + HEALTHY_WINDOWS_AFTER_DAMAGE
        message = (
            f"must be at least forRecords + {HEALTHY_WINDOWS_AFTER_DAMAGE} = {least:g} of rule {name}; it is {probe:g}"
        )
        yield FieldError("spec.remediation.skipBatches.probe", message)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
