"""The content of a test file -> cases that can be run, or every error in it at once.

Each object is validated by itself, so that a wrong field in one hides no error in another.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from trimtab_contract.metrics import METRIC_NAME

from trimtab_policies.errors import FieldError, InvalidPolicyTest, InvalidSeries
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.policytest.cases import (
    MOST_ELEMENTS,
    AttemptPlan,
    Case,
    CaseHead,
    ExpectedDecision,
    ExpectedVerdict,
    LaterAttempt,
    Pause,
    TestFile,
    VectorFields,
    VectorSeries,
)
from trimtab_policies.policytest.notation import Series, parse_series
from trimtab_policies.policytest.places import lineage_errors, place_errors
from trimtab_policies.validation import field_errors, nearest, shown

_INDEX = re.compile(r"\[?\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]?")
_MOST_VALUES = 200_000_000

M = TypeVar("M", bound=BaseModel)


def policy_names(content: object) -> tuple[str, ...]:
    """The policy files that a test file names; empty where it names none, or not as a list of names."""
    named = cast("Mapping[Any, Any]", content).get("policies") if isinstance(content, Mapping) else None
    if not isinstance(named, list):
        return ()
    return tuple(one for one in cast("list[Any]", named) if isinstance(one, str))


def parse_suite(content: object, policies: Sequence[AcceptedPolicy]) -> tuple[Case, ...]:
    """Read a test file's content against the policies it tests; raises InvalidPolicyTest with every error."""
    if not isinstance(content, Mapping):
        raise InvalidPolicyTest((FieldError("", f"must be an object with `cases`; it is {shown(content)}"),))
    reader = _Reader(policies)
    fields = cast("Mapping[Any, Any]", content)
    reader.model(TestFile, fields, "")
    cases = [reader.case(one, f"cases[{index}]") for index, one in enumerate(_list(fields.get("cases")))]
    reader.repeated_names([case for case in cases if case is not None])
    if reader.errors:
        raise InvalidPolicyTest(tuple(reader.errors))
    return tuple(case for case in cases if case is not None)


class _Reader:
    """Reads objects and collects what is wrong with them."""

    def __init__(self, policies: Sequence[AcceptedPolicy]) -> None:
        self.errors: list[FieldError] = []
        self._policies = policies
        rules = [rule for policy in policies for rule in policy.spec.rules]
        self._metrics = sorted({rule.metric for rule in rules if rule.metric is not None})

    def case(self, raw: object, path: str) -> Case | None:
        """One case; None where it cannot be read as a whole."""
        head = self.model(CaseHead, raw, path)
        fields = _mapping(raw)
        attempts = self._attempts(fields, path, head)
        verdicts = self._expected(ExpectedVerdict, fields, f"{path}.verdicts")
        decisions = self._expected(ExpectedDecision, fields, f"{path}.decisions")
        if head is None or attempts is None:
            return None
        case = Case(
            path,
            head.name,
            head.mode,
            head.seconds_per_step,
            head.seed,
            head.checkpoint_every,
            attempts,
            tuple(verdicts),
            tuple(decisions),
        )
        self.errors += place_errors(case)
        return case

    def model(self, model: type[M], raw: object, path: str) -> M | None:
        """The object, or None after noting what is wrong with it."""
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            self.errors += field_errors(error, model, path)
            return None

    def repeated_names(self, cases: Sequence[Case]) -> None:
        """Cases are told apart by their names."""
        first: dict[str, str] = {}
        for case in cases:
            if case.name in first:
                self._error(f"{case.path}.name", f"{case.name!r} is already the name of {first[case.name]}; rename one")
            first.setdefault(case.name, case.path)

    def _error(self, path: str, message: str) -> None:
        self.errors.append(FieldError(path, message))

    def _attempts(self, fields: Mapping[str, Any], path: str, head: CaseHead | None) -> tuple[AttemptPlan, ...] | None:
        """Attempt 1, which is the case's own, and the later ones; None where one of them cannot be read."""
        series = self._series(fields.get("series"), f"{path}.series")
        pauses = self._pauses(fields, path)
        cadence = head.every_steps if head else 1
        plans: list[AttemptPlan | None] = []
        if head is None or series is None:
            plans.append(None)
        else:
            plans.append(self._plan(head, 1, None, head.start_step, series, pauses, cadence, path))
        for index, one in enumerate(_list(fields.get("attempts"))):
            here = f"{path}.attempts[{index}]"
            later = self.model(LaterAttempt, one, here)
            series = self._series(_mapping(one).get("series"), f"{here}.series")
            pauses = self._pauses(_mapping(one), here)
            plan = None
            if later is not None and series is not None:
                place = (later.attempt, later.parent, later.branch_step)
                plan = self._plan(later, *place, series, pauses, cadence, here)
                if plan is not None:
                    self.errors += lineage_errors(plan, plans, here)
            plans.append(plan)
        found = [plan for plan in plans if plan is not None]
        return tuple(found) if len(found) == len(plans) else None

    def _plan(
        self,
        stretch: CaseHead | LaterAttempt,
        attempt: int,
        parent: int | None,
        branch_step: int,
        series: Mapping[str, Series | VectorSeries],
        pauses: tuple[Pause, ...],
        cadence: int,
        path: str,
    ) -> AttemptPlan | None:
        records = max((_length(one) for one in series.values()), default=0)
        if not records:
            message = "has no end: one series must say how many records there are, such as `2.0x200` instead of `2.0`"
            self._error(f"{path}.series", message)
            return None
        for metric, one in series.items():
            length = _length(one)
            if not _holds(one) and length < records:
                message = f"has {length} values where the longest series has {records}; add `x*` to its last value, or "
                self._error(f"{path}.series.{metric}", f"{message}`_x*` if the metric stays away from there on")
            if isinstance(one, VectorSeries) and math.prod(one.shape) * records > _MOST_VALUES:
                message = f"has {math.prod(one.shape)} elements in {records} records; at most {_MOST_VALUES} values"
                self._error(f"{path}.series.{metric}", f"{message} are allowed")
        return AttemptPlan(
            attempt=attempt,
            parent=parent,
            branch_step=branch_step,
            records=records,
            series=tuple(series.items()),
            missing=stretch.missing_steps,
            pauses=tuple((pause.after_step, pause.seconds) for pause in pauses),
            checkpoints=stretch.checkpoints,
            every_steps=cadence,
        )

    def _pauses(self, fields: Mapping[str, Any], path: str) -> tuple[Pause, ...]:
        found = [
            self.model(Pause, one, f"{path}.pauses[{index}]") for index, one in enumerate(_list(fields.get("pauses")))
        ]
        return tuple(one for one in found if one is not None)

    def _series(self, raw: object, path: str) -> dict[str, Series | VectorSeries] | None:
        """Every metric's values; None where one of them cannot be read."""
        if not isinstance(raw, Mapping):
            return None
        series: dict[str, Series | VectorSeries | None] = {}
        for metric, values in cast("Mapping[Any, Any]", raw).items():
            here = f"{path}.{metric}"
            if not isinstance(metric, str) or not METRIC_NAME.fullmatch(metric):
                self._error(here, f"must be a metric's name, matching {METRIC_NAME.pattern}; it is {shown(metric)}")
                continue
            if metric not in self._metrics:
                known = ", ".join(self._metrics) or "none"
                hint = nearest(metric, self._metrics)
                self._error(here, f"no rule under test reads {metric}; they read {known}{hint}")
            is_vector = isinstance(values, Mapping)
            series[metric] = self._vector(cast("object", values), here) if is_vector else self._values(values, here)
        if len(series) < len(cast("Mapping[Any, Any]", raw)):
            return None
        found = {metric: one for metric, one in series.items() if one is not None}
        return found if len(found) == len(series) else None

    def _values(self, raw: object, path: str) -> Series | None:
        try:
            return parse_series(raw)
        except InvalidSeries as error:
            self._error(path, str(error))
            return None

    def _vector(self, raw: object, path: str) -> VectorSeries | None:
        fields = self.model(VectorFields, raw, path)
        given = _mapping(raw)
        base = self._values(given["base"], f"{path}.base") if "base" in given else None
        shape = fields.shape if fields else None
        if shape is not None and math.prod(shape) > MOST_ELEMENTS:
            self._error(f"{path}.shape", f"must have at most {MOST_ELEMENTS} elements; it has {math.prod(shape)}")
            shape = None
        elements: list[tuple[int, Series]] = []
        for index, values in _mapping(given.get("elements")).items():
            here = f"{path}.elements[{str(index).strip('[]')}]"
            one = self._values(values, here)
            offset = self._offset(str(index), shape, here) if shape is not None else None
            if one is not None and base is not None and not base.holds and one.length > base.length:
                self._error(
                    here, f"has {one.length} values where base has {base.length}; add `x*` to base's last value"
                )
            if one is not None and offset is not None:
                elements.append((offset, one))
        if base is None or shape is None or len(elements) < len(_mapping(given.get("elements"))):
            return None
        return VectorSeries(shape, base, tuple(elements))

    def _offset(self, text: str, shape: tuple[int, ...], path: str) -> int | None:
        """The row-major offset of an element such as `[1,2]`."""
        found = _INDEX.fullmatch(text)
        index = tuple(int(part) for part in found[1].split(",")) if found else ()
        if len(index) != len(shape) or any(place >= size for place, size in zip(index, shape, strict=True)):
            message = f"must be an index such as [{', '.join('0' for _ in shape)}] in shape {list(shape)}; it is {text}"
            self._error(path, message)
            return None
        offset = 0
        for place, size in zip(index, shape, strict=True):
            offset = offset * size + place
        return offset

    def _expected(self, model: type[M], fields: Mapping[str, Any], path: str) -> list[tuple[str, M]]:
        found: list[tuple[str, M]] = []
        for index, raw in enumerate(_list(fields.get(path.rpartition(".")[2]))):
            here = f"{path}[{index}]"
            one = self.model(model, raw, here)
            self._rule(_mapping(raw), here)
            if one is not None:
                found.append((here, one))
        return found

    def _rule(self, fields: Mapping[str, Any], path: str) -> None:
        """An expectation's rule and policy must be there, and must be one."""
        policy, rule = fields.get("policy"), fields.get("rule")
        names = [one.name for one in self._policies]
        if isinstance(policy, str) and policy not in names:
            self._error(f"{path}.policy", f"{policy} is not under test; {_choice(names)}{nearest(policy, names)}")
            return
        asked = [one for one in self._policies if not isinstance(policy, str) or one.name == policy]
        rules = [one.name for policy in asked for one in policy.spec.rules]
        if isinstance(rule, str) and rule not in rules:
            self._error(
                f"{path}.rule", f"{rule} is no rule of {' or '.join(one.name for one in asked)}{nearest(rule, rules)}"
            )
        elif isinstance(rule, str) and rules.count(rule) > 1:
            message = f"is required, since more than one policy has a rule {rule}; {_choice(names)}"
            self._error(f"{path}.policy", message)


def _choice(names: Sequence[str]) -> str:
    return f"choose among {', '.join(names)}"


def _length(series: Series | VectorSeries) -> int:
    if isinstance(series, Series):
        return series.length
    return max(series.base.length, *(one.length for _, one in series.elements), 0)


def _holds(series: Series | VectorSeries) -> bool:
    return series.base.holds if isinstance(series, VectorSeries) else series.holds


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []
