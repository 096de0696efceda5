"""One record of a log, as the policies judged it."""

from collections.abc import Iterable, Sequence

import msgspec

from trimtab_policies.backtest.judging import Backtest
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.verdicts import Verdict

_MOST_ATTEMPTS = 100


class Inspected(msgspec.Struct, frozen=True):
    """A record and the verdicts on it, in the order of policies and rules."""

    step: int
    attempt: int
    line: int
    verdicts: tuple[Verdict, ...]


class Inspection(msgspec.Struct, frozen=True):
    """The record of a step, of the last attempt that has one unless another was asked for; None where there is none.

    `attempts` are the first of those that have the step; `before` and `after` the nearest steps that the log has.
    """

    judged: Inspected | None
    attempts: tuple[int, ...]
    before: int | None
    after: int | None


def inspect_step(
    policies: Sequence[AcceptedPolicy], points: Iterable[LogPoint], step: int, attempt: int | None = None
) -> Inspection:
    """Judge a log and keep what was said about one step."""
    backtest = Backtest(policies)
    found: Inspected | None = None
    attempts: list[int] = []
    before: int | None = None
    after: int | None = None
    for point in points:
        judged = backtest.take(point)
        if judged is None:
            continue
        here, entry = point.step, judged.entry
        if here == step:
            if attempt is None or entry.attempt == attempt:
                found = Inspected(step, entry.attempt, entry.line, judged.verdicts)
            if len(attempts) < _MOST_ATTEMPTS:
                attempts.append(entry.attempt)
        elif here < step:
            before = here if before is None else max(before, here)
        else:
            after = here if after is None else min(after, here)
    return Inspection(found, tuple(attempts), before, after)
