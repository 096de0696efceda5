"""What no single field of a GuardPolicy shows: pairs of fields, and names used twice.

Works on the spec as it was written, also where other fields of it are wrong, so that all errors are reported at once.
A field of the wrong type is skipped here: the models report it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS

from trimtab_policies.errors import FieldError
from trimtab_policies.validation import nearest, shown

DETECTOR_FIELDS = ("range", "spike", "nonFinite", "divergence", "stale", "allOf", "anyOf")
COMPOSITE_FIELDS = ("allOf", "anyOf")
REDUCTION_FIELDS = (
    "max",
    "min",
    "mean",
    "quantile",
    "fractionAbove",
    "fractionBelow",
    "countAbove",
    "countBelow",
    "longestStreakAbove",
    "longestStreakBelow",
)
STREAK_FIELDS = ("longestStreakAbove", "longestStreakBelow")
FRACTION_FIELDS = ("fractionAbove", "fractionBelow")
HEALTHY_WINDOWS_AFTER_DAMAGE = 8
"""So many healthy windows in a row end the damage, and the probe must have room for them."""

DEFAULT_RECORDS = 100
DEFAULT_MIN_RECORDS = 50
DEFAULT_MAX_FREEZE = 100
DEFAULT_FOR_RECORDS = 1
DEFAULT_MARGIN = 100
DEFAULT_BEFORE = 1
DEFAULT_PROBE = 64
DEFAULT_NO_DATA_FOR = "5m"
DEFAULT_APPROVAL_DEADLINE = "24h"
MOST_COMPONENTS = 16
MOST_STEPS = 1_000_000_000

DEFAULT_RECENT = 5
DEFAULT_SETTLE = 10
DEFAULT_LOOKBACK = 1_500
DEFAULT_DIVERGENCE_FREEZE = 300

_DIVERGENCE_DEFAULTS = {
    "records": DEFAULT_RECENT,
    "settleRecords": DEFAULT_SETTLE,
    "lookbackRecords": DEFAULT_LOOKBACK,
    "maxFreeze": DEFAULT_DIVERGENCE_FREEZE,
}
_LONGEST_STREAK = 10_000


def cross_field_errors(spec: Mapping[Any, Any]) -> list[FieldError]:
    """Every error that spans fields, in the order of the spec."""
    rules = [_mapping(rule) for rule in _list(spec.get("rules"))]
    errors: list[FieldError] = []
    for index, rule in enumerate(rules):
        if rule:
            errors += _rule_errors(rule, f"spec.rules[{index}]")
        errors += _component_errors(rules, index)
    errors += _repeated_names(rules)
    remediation = _mapping(spec.get("remediation"))
    errors += _probe_errors(rules, _mapping(remediation.get("skipBatches")))
    errors += _border_errors(rules, remediation)
    errors += _approval_errors(remediation)
    return errors


def _rule_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    given = [field for field in DETECTOR_FIELDS if rule.get(field) is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        yield FieldError(path, f"must have exactly one detector ({' or '.join(DETECTOR_FIELDS)}); it has {found}")
    if isinstance(rule.get("range"), Mapping):
        yield from _range_errors(rule, _mapping(rule["range"]), f"{path}.range")
    if isinstance(rule.get("spike"), Mapping):
        yield from _spike_errors(rule, _mapping(rule["spike"]), path)
    if isinstance(rule.get("divergence"), Mapping):
        yield from _divergence_errors(rule, _mapping(rule["divergence"]), path)
    if given:
        yield from _metric_errors(rule, given, path)
        yield from _absence_errors(rule, given, path)
        yield from _within_errors(rule, given, path)
    yield from _reduce_errors(rule, f"{path}.reduce")


def _metric_errors(rule: Mapping[str, Any], given: Sequence[str], path: str) -> Iterator[FieldError]:
    composite = set(given) <= set(COMPOSITE_FIELDS)
    if rule.get("metric") is None and not composite and "stale" not in given:
        yield FieldError(f"{path}.metric", "is required; add it")
    for field in ("metric", "reduce"):
        if composite and rule.get(field) is not None:
            message = f"must be left out: {given[0]} is made of other rules, which have metrics of their own"
            yield FieldError(f"{path}.{field}", message)
    if given == ["stale"] and rule.get("reduce") is not None:
        yield FieldError(f"{path}.reduce", "must be left out: stale looks at no value")


def _within_errors(rule: Mapping[str, Any], given: Sequence[str], path: str) -> Iterator[FieldError]:
    within, needed = _number(rule.get("withinRecords")), _number(rule.get("forRecords", DEFAULT_FOR_RECORDS))
    if within is None:
        return
    if given == ["stale"]:
        yield FieldError(f"{path}.withinRecords", "must be left out with stale, which counts time and no records")
    elif needed is not None and needed > within:
        message = f"must be at least forRecords, which is {needed:g}; it is {within:g}"
        yield FieldError(f"{path}.withinRecords", message)


def _absence_errors(rule: Mapping[str, Any], given: Sequence[str], path: str) -> Iterator[FieldError]:
    """What belongs to absence (`onNoData`, `noDataFor`, `stale`) and what cannot go with it."""
    asked = rule.get("onNoData", "Ignore")
    if rule.get("noDataFor") is not None and asked == "Ignore":
        message = "belongs to onNoData Pause or Breach; onNoData is Ignore: set one of them, or remove noDataFor"
        yield FieldError(f"{path}.noDataFor", message)
    without_value = [field for field in given if field in ("stale", *COMPOSITE_FIELDS)]
    if not without_value:
        return
    if asked in ("Pause", "Breach"):
        message = f"must be Ignore with {without_value[0]}, which has no value of its own that could be absent; it is"
        yield FieldError(f"{path}.onNoData", f"{message} {shown(asked)}")
    if given != ["stale"]:
        return
    if rule.get("action") == "Rollback":
        message = (
            "must be Record, Notify, Pause or Stop with stale, for a step that was never recorded cannot be undone"
        )
        yield FieldError(f"{path}.action", f"{message}; it is 'Rollback'")
    if rule.get("forRecords", DEFAULT_FOR_RECORDS) != DEFAULT_FOR_RECORDS:
        message = "must be left out with stale, which counts time and no records"
        yield FieldError(f"{path}.forRecords", f"{message}; it is {shown(rule['forRecords'])}")


def _component_errors(rules: Sequence[Mapping[str, Any]], index: int) -> Iterator[FieldError]:
    by_name = {rule.get("name"): rule for rule in reversed(rules) if isinstance(rule.get("name"), str)}
    for field in COMPOSITE_FIELDS:
        names = _list(rules[index].get(field))
        path = f"spec.rules[{index}].{field}"
        if isinstance(rules[index].get(field), list | tuple) and len(names) < 2:
            yield FieldError(path, f"must name at least two rules; it names {len(names)}")
        for place, name in enumerate(names):
            found = by_name.get(name) if isinstance(name, str) else None
            if isinstance(name, str) and found is None:
                known = [str(one) for one, rule in by_name.items() if not _is_composite(rule)]
                message = f"must be a rule of this policy: {' or '.join(known) or 'there is none to choose'}"
                yield FieldError(f"{path}[{place}]", f"{message}; it is {shown(name)}{nearest(name, known)}")
            elif found is not None and _is_composite(found):
                yield FieldError(f"{path}[{place}]", f"{name} is a composite itself; name its parts instead")
            elif found is not None and found.get("stale") is not None:
                message = (
                    f"{name} is a stale rule, which fires between records, where no composite is judged; remove it"
                )
                yield FieldError(f"{path}[{place}]", message)
            elif name in names[:place]:
                yield FieldError(f"{path}[{place}]", f"{name} is named twice; remove one")


def _is_composite(rule: Mapping[str, Any]) -> bool:
    return any(rule.get(field) is not None for field in COMPOSITE_FIELDS)


def _range_errors(rule: Mapping[str, Any], bounds: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if bounds.get("min") is None and bounds.get("max") is None:
        yield FieldError(path, "must have min or max or both; it has none")
    low, high = _number(bounds.get("min")), _number(bounds.get("max"))
    if low is not None and high is not None and low > high:
        yield FieldError(f"{path}.max", f"must be at least min, which is {low:g}; it is {high:g}")
    reduce = _mapping(rule.get("reduce"))
    if all(reduce.get(field) is None for field in STREAK_FIELDS):
        return
    for name, bound in (("min", low), ("max", high)):
        if bound is not None and not 0 <= bound <= _LONGEST_STREAK:
            message = f"must lie between 0 and {_LONGEST_STREAK} records for a streak; it is {bound:g}"
            yield FieldError(f"{path}.{name}", message)


def _spike_errors(rule: Mapping[str, Any], spike: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    chosen = [field for field in ("sigma", "ratio") if spike.get(field) is not None]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none"
        yield FieldError(f"{path}.spike", f"must have exactly one of sigma and ratio; it has {found}")
    baseline = _mapping(spike.get("baseline"))
    records = _number(baseline.get("records", DEFAULT_RECORDS))
    fewest = _number(baseline.get("minRecords", DEFAULT_MIN_RECORDS))
    if records is not None and fewest is not None and fewest > records:
        message = f"must be at most records, which is {records:g}; it is {fewest:g}"
        yield FieldError(f"{path}.spike.baseline.minRecords", message)
    freeze = _number(baseline.get("maxFreeze", DEFAULT_MAX_FREEZE))
    needed = _number(rule.get("forRecords", DEFAULT_FOR_RECORDS))
    if freeze is not None and needed is not None and needed > freeze:
        yield FieldError(f"{path}.forRecords", _never("spike.baseline.maxFreeze", freeze, needed))


def _divergence_errors(rule: Mapping[str, Any], divergence: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    settings = {name: _number(divergence.get(name, default)) for name, default in _DIVERGENCE_DEFAULTS.items()}
    settle, lookback = settings["settleRecords"], settings["lookbackRecords"]
    if settle is not None and lookback is not None and settle > lookback:
        message = f"must be at most lookbackRecords, which is {lookback:g}; it is {settle:g}"
        yield FieldError(f"{path}.divergence.settleRecords", message)
    freeze, needed = settings["maxFreeze"], _number(rule.get("forRecords", DEFAULT_FOR_RECORDS))
    if freeze is not None and needed is not None and needed > freeze:
        yield FieldError(f"{path}.forRecords", _never("divergence.maxFreeze", freeze, needed))


def _never(limit: str, most: float, found: float) -> str:
    return f"must be at most {limit}, which is {most:g}, else the rule could never fire; it is {found:g}"


def _reduce_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    metric, given = rule.get("metric"), rule.get("reduce")
    if given is None:
        if metric in KNOWN_VECTORS and rule.get("stale") is None:
            choice = ", ".join(REDUCTION_FIELDS)
            yield FieldError(path, f"is required, since {metric} is a vector; choose one of {choice}")
        return
    if metric in KNOWN_SCALARS:
        yield FieldError(path, f"must be left out, since {metric} is a scalar")
    if not isinstance(given, Mapping):
        return
    reduce = _mapping(cast("object", given))
    chosen = [field for field in REDUCTION_FIELDS if reduce.get(field) is not None]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none"
        yield FieldError(path, f"must have exactly one of {', '.join(REDUCTION_FIELDS)}; it has {found}")
    if reduce.get("minCount") is not None and not set(chosen) & set(FRACTION_FIELDS):
        found = " and ".join(chosen) if chosen else "none"
        message = f"belongs to {' and '.join(FRACTION_FIELDS)}; the reduction is {found}: remove minCount"
        yield FieldError(f"{path}.minCount", message)


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
        (needed, field, rule.get("name"))
        for rule in rules
        if rule.get("action") == "Rollback"
        for field in ("forRecords" if rule.get("withinRecords") is None else "withinRecords",)
        if (needed := _number(rule.get(field, DEFAULT_FOR_RECORDS))) is not None
    ]
    if probe is None or not latencies:
        return
    longest, field, name = max(latencies, key=lambda latency: latency[0])
    if probe < longest + HEALTHY_WINDOWS_AFTER_DAMAGE:
        least = longest + HEALTHY_WINDOWS_AFTER_DAMAGE
        message = (
            f"must be at least {field} + {HEALTHY_WINDOWS_AFTER_DAMAGE} = {least:g} of rule {name}; it is {probe:g}"
        )
        yield FieldError("spec.remediation.skipBatches.probe", message)


def _border_errors(rules: list[Mapping[str, Any]], remediation: Mapping[str, Any]) -> Iterator[FieldError]:
    """What is skipped lies behind the checkpoint, which lies `margin` steps before the first bad record."""
    if all(rule.get("action") != "Rollback" for rule in rules):
        return
    before = _number(_mapping(remediation.get("skipBatches")).get("before", DEFAULT_BEFORE))
    margin = _number(remediation.get("margin", DEFAULT_MARGIN))
    # A margin below 1 is wrong by itself, whatever lies before the bad windows.
    if before is not None and margin is not None and 1 <= margin <= before:
        message = (
            f"must be less than margin, which is {margin:g}, for windows from before the checkpoint cannot be skipped "
            f"any more; it is {before:g}"
        )
        yield FieldError("spec.remediation.skipBatches.before", message)


def _approval_errors(remediation: Mapping[str, Any]) -> Iterator[FieldError]:
    deadline = remediation.get("approvalDeadline")
    if deadline is None:
        return
    if remediation.get("approval", "Automatic") == "Automatic":
        yield FieldError("spec.remediation.approvalDeadline", "belongs to approval Required; set that or remove it")
    elif isinstance(deadline, str) and deadline and not deadline.strip("0hms"):
        yield FieldError("spec.remediation.approvalDeadline", "must be longer than zero")


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > sys.float_info.max:
        return None
    return value
