"""Rules whose metric never comes: a mistyped name must not look like a healthy run. No clock of its own."""

from collections.abc import Sequence

from trimtab_policies.policy import AcceptedPolicy, nearest_name


class MetricWatch:
    """Counts how long each metric a rule names has been waited for while records came without it."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def observe(
        self, now: float, policies: Sequence[AcceptedPolicy], seen: frozenset[str], deadline: float
    ) -> tuple[str, ...]:
        """Note what is missing at monotonic time `now`; one sentence for each metric that is overdue.

        `seen` are the names of all scalars and vectors in the run's records so far; nothing is missing before the
        first record.
        """
        wanted = {
            rule.metric: f"{policy.name}/{rule.name}"
            for policy in policies
            for rule in policy.spec.rules
            if rule.metric is not None
        }
        missing = [metric for metric in wanted if seen and metric not in seen]
        self._since = {metric: self._since.get(metric, now) for metric in missing}
        return tuple(
            _sentence(wanted[metric], metric, seen, deadline)
            for metric, since in self._since.items()
            if now - since >= deadline
        )


def _sentence(rule: str, metric: str, seen: frozenset[str], deadline: float) -> str:
    nearest = nearest_name(metric, sorted(seen))
    advice = f"did you mean {nearest}?" if nearest else "correct the name, or publish it"
    return f"rule {rule}: no record of the last {deadline:.0f} s has a metric named {metric}: {advice}"
