"""Rules whose metric never comes: a mistyped name must not look like a healthy run. No clock of its own."""

from collections.abc import Sequence

from trimtab_policies.policy import AcceptedPolicy, nearest_name

from trimtab_operator.observation import MissingMetric


class MetricWatch:
    """Counts how long each metric a rule names has been waited for while records came without it."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def observe(
        self, now: float, policies: Sequence[AcceptedPolicy], seen: frozenset[str], deadline: float
    ) -> tuple[MissingMetric, ...]:
        """Note what is missing at monotonic time `now`; one entry for each policy and metric that is overdue.

        `seen` are the names of all scalars and vectors in the run's records so far; nothing is missing before the
        first record.
        """
        wanted = {
            (f"{policy.kind}/{policy.name}", rule.metric): f"{policy.name}/{rule.name}"
            for policy in policies
            for rule in policy.spec.rules
            if rule.metric is not None and seen and rule.metric not in seen
        }
        self._since = {metric: self._since.get(metric, now) for _, metric in wanted}
        return tuple(
            MissingMetric(policy=policy, rule=rule, metric=metric, message=_sentence(rule, metric, seen, deadline))
            for (policy, metric), rule in wanted.items()
            if now - self._since[metric] >= deadline
        )


def _sentence(rule: str, metric: str, seen: frozenset[str], deadline: float) -> str:
    nearest = nearest_name(metric, sorted(seen))
    advice = f"did you mean {nearest}?" if nearest else "correct the name, or publish it"
    return f"rule {rule}: no record of the last {deadline:.0f} s has a metric named {metric}: {advice}"
