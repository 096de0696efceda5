"""How far back a rule's verdict may look.

What a rule says about a record may depend on all that came before it (a value breaches a baseline of values that did
not breach a baseline of ...). To be the same wherever the kept history happens to begin, judgement of the n-th record
is defined as a replay that begins at a record computed from n alone: `((n - 1) div reach - 1) * reach + 1`. It sees
more than `reach` and at most `2 * reach` records, so keeping `retention` = 2 * reach of them is enough. `reach` covers
twice the baseline and its longest freeze, so that at the origin's jump every `reach` records the baseline has long
filled with accepted values; a metric so rare that its baseline does not fill within a reach stays WarmingUp. A breach
that outlasts its reach is reported as beginning at the origin: a reminder, not a flood.
"""

import math
from collections.abc import Iterable

from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.rules import NOISE_RECORDS, Rule

LEAST_REACH = 500
"""Records over which even the simplest rule follows a streak."""


def reach(rule: Rule) -> int:
    """How many records a judgement of this rule looks back over, at least."""
    needed = rule.within_records or rule.for_records
    if rule.spike is not None:
        baseline = rule.spike.baseline
        needed += 2 * baseline.records + baseline.max_freeze
    if rule.divergence is not None:
        level = rule.divergence
        needed += level.lookback_records + level.settle_records + level.records + level.max_freeze
        needed += NOISE_RECORDS if level.sigma is not None else 0
    if rule.range is not None and _counts_streaks(rule):
        needed += math.ceil(max(rule.range.max or 0.0, rule.range.min or 0.0)) + 1
    return max(needed, LEAST_REACH)


def retention(policies: Iterable[AcceptedPolicy]) -> int:
    """How many records must be known so that every rule's verdicts are independent of where they begin.

    A composite looks back on verdicts, each of which looks back in its turn.
    """
    return 2 * max((LEAST_REACH, *(_depth(rule, policy) for policy in policies for rule in policy.spec.rules)))


def origin(ordinal: int, span: int) -> int:
    """The record (counted from 1) at which the replay that judges record `ordinal` begins."""
    return max(1, ((ordinal - 1) // span - 1) * span + 1)


def _depth(rule: Rule, policy: AcceptedPolicy) -> int:
    components = (reach(one) for one in policy.spec.rules if one.name in rule.components)
    return reach(rule) + max(components, default=0)


def _counts_streaks(rule: Rule) -> bool:
    reduce = rule.reduce
    return reduce is not None and (reduce.longest_streak_above is not None or reduce.longest_streak_below is not None)
