"""What a case expects against what came of it: failures in words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab_policies.explanation import explain
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.policytest.cases import Case, ExpectedDecision, ExpectedVerdict
from trimtab_policies.policytest.judging import Judgement, MadeDecision, Moment, judge_case
from trimtab_policies.verdicts import Verdict

_MOST_LISTED = 20
_RELATIVE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Failure:
    """One broken expectation. `path` is its place in the test file; `sentence` is the judgement's own, if there is one.

    Where a decision came that no expectation lists, `expected` is empty; where none came, `found` says so.
    """

    path: str
    expected: str
    found: str
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: it passed if there are no failures. `decisions` is how many decisions were made."""

    name: str
    path: str
    failures: tuple[Failure, ...]
    decisions: int

    @property
    def passed(self) -> bool:
        """Whether all came as expected, and nothing else."""
        return not self.failures


def run_case(case: Case, policies: Sequence[AcceptedPolicy]) -> CaseResult:
    """Judge a case and compare."""
    judgement = judge_case(case, policies)
    failures = [*_verdict_failures(case, judgement), *_decision_failures(case, judgement)]
    return CaseResult(case.name, case.path, tuple(failures), len(judgement.decisions))


def _verdict_failures(case: Case, judgement: Judgement) -> Iterator[Failure]:
    plans = {plan.attempt: plan for plan in case.attempts}
    for path, expected in case.verdicts:
        for step in plans[expected.attempt].steps(expected.at, expected.to or expected.at):
            failure = _verdict_failure(path, expected, step, judgement)
            if failure is not None:
                yield failure
                # The first step of a stretch says enough.
                break


def _verdict_failure(path: str, expected: ExpectedVerdict, step: int, judgement: Judgement) -> Failure | None:
    moment = Moment(expected.attempt, step, expected.waited)
    wanted = f"{_place(moment)}: {_named(expected.policy, expected.rule)} {_fields(_wanted_verdict(expected))}"
    verdicts = judgement.verdicts.get(moment)
    if verdicts is None:
        stopped = judgement.stopped.get(expected.attempt)
        why = f": judgement stops at the missing step {stopped}" if stopped is not None else ""
        return Failure(path, wanted, f"no verdict{why}")
    verdict = next(
        one for one in verdicts if one.rule.name == expected.rule and expected.policy in (None, one.policy.name)
    )
    found = _found_verdict(verdict)
    differing = [name for name, value in _wanted_verdict(expected).items() if not _equal(value, found[name])]
    sentence = explain(verdict)
    if expected.says is not None and expected.says not in sentence:
        return Failure(path, f"{wanted}, saying {expected.says!r}", f"{_fields(found)}", sentence)
    if not differing:
        return None
    shown = {name: value for name, value in found.items() if name in differing or name in ("state", "reason")}
    return Failure(path, wanted, _fields(shown), sentence)


def _wanted_verdict(expected: ExpectedVerdict) -> dict[str, object]:
    wanted: dict[str, object] = {
        "state": expected.state.value,
        "reason": expected.reason.value if expected.reason else None,
        "firstBadStep": expected.first_bad_step,
        "element": list(expected.element) if expected.element is not None else None,
        "streak": expected.streak,
        "observed": expected.observed,
        "threshold": expected.threshold,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _found_verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "state": verdict.state.value,
        "reason": verdict.reason.value,
        "firstBadStep": verdict.first_bad_step,
        "element": list(verdict.element) if verdict.element is not None else None,
        "streak": verdict.streak,
        "observed": verdict.observed,
        "threshold": verdict.threshold,
    }


def _decision_failures(case: Case, judgement: Judgement) -> Iterator[Failure]:
    """Expected and made decisions are paired: those that agree first, then those that differ in something."""
    unmet = list(case.decisions)
    unlisted = list(judgement.decisions)
    for path, expected in case.decisions:
        match = next((made for made in unlisted if not _differences(expected, made)), None)
        if match is not None:
            unmet.remove((path, expected))
            unlisted.remove(match)
    for path, expected in unmet:
        near = next((made for made in unlisted if _alike(expected, made)), None)
        if near is not None:
            unlisted.remove(near)
        yield _decision_failure(path, expected, near, judgement)
    for made in unlisted[:_MOST_LISTED]:
        yield Failure(f"{case.path}.decisions", "", f"a decision that is not listed: {_told(made)}", made.sentence)
    if len(unlisted) > _MOST_LISTED:
        found = f"and {len(unlisted) - _MOST_LISTED} more decisions that are not listed"
        yield Failure(f"{case.path}.decisions", "", found)


def _decision_failure(
    path: str, expected: ExpectedDecision, near: MadeDecision | None, judgement: Judgement
) -> Failure:
    moment = Moment(expected.attempt, expected.step)
    wanted = f"{_place(moment)}: {_named(expected.policy, expected.rule)} decides {_fields(_wanted_decision(expected))}"
    if near is not None:
        return Failure(path, wanted, _told(near), near.sentence)
    stopped = judgement.stopped.get(expected.attempt)
    why = f": judgement stops at the missing step {stopped}" if stopped is not None else ""
    return Failure(path, wanted, f"no such decision{why}")


def _differences(expected: ExpectedDecision, made: MadeDecision) -> list[str]:
    found = {"step": made.moment.step, "attempt": made.moment.attempt, "rule": made.rule, **_found_decision(made)}
    wanted = {"step": expected.step, "attempt": expected.attempt, "rule": expected.rule, **_wanted_decision(expected)}
    if expected.policy not in (None, made.policy):
        return ["policy"]
    return [name for name, value in wanted.items() if value != found[name]]


def _alike(expected: ExpectedDecision, made: MadeDecision) -> bool:
    """Whether one was probably meant to be the other."""
    if expected.attempt != made.moment.attempt:
        return False
    return expected.step == made.moment.step or (expected.rule == made.rule and expected.action is made.action)


def _wanted_decision(expected: ExpectedDecision) -> dict[str, object]:
    wanted: dict[str, object] = {
        "action": expected.action.value,
        "wouldHave": expected.would_have.value if expected.would_have else None,
        "firstBadStep": expected.first_bad_step,
        "notAfter": expected.not_after,
        "target": expected.target,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _found_decision(made: MadeDecision) -> dict[str, object]:
    return {
        "action": made.action.value,
        "wouldHave": made.would_have.value if made.would_have else None,
        "firstBadStep": made.first_bad_step,
        "notAfter": made.not_after,
        "target": made.target,
    }


def _told(made: MadeDecision) -> str:
    found = _found_decision(made)
    rolls_back = made.not_after is not None
    fields = {name: value for name, value in found.items() if value is not None or (name == "target" and rolls_back)}
    return f"{_place(made.moment)}: {made.rule} of {made.policy} decides {_fields(fields)}"


def _place(moment: Moment) -> str:
    attempt = f"attempt {moment.attempt} " if moment.attempt > 1 else ""
    return f"{attempt}step {moment.step}{' after waiting' if moment.waited else ''}"


def _named(policy: str | None, rule: str) -> str:
    return rule if policy is None else f"{rule} of {policy}"


def _fields(fields: dict[str, object]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in fields.items())


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


def _equal(wanted: object, found: object) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(wanted, found, rel_tol=_RELATIVE_TOLERANCE)
    return wanted == found
