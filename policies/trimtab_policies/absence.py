"""Absence as time goes by: `stale`, and `onNoData` after `noDataFor`.

The clock is the caller's, in seconds, and only differences of it count. A caller that watches a bus stops it while the
bus does not answer, for silence then says nothing about the trainer. It starts at the first record of an attempt: how
long a world may take to its first record is another deadline's business.
"""

from trimtab_contract.metrics import MetricRecord

from trimtab_policies.checks import DEFAULT_NO_DATA_FOR
from trimtab_policies.models import seconds
from trimtab_policies.rules import OnNoData, Rule
from trimtab_policies.verdicts import Finding, Place, Reason, State

_UNKNOWN = Finding(State.NO_DATA, Reason.METRIC_ABSENT, note="no record has come yet, or none with a time")


class AbsenceWatch:
    """For how long a rule's metric (or, without one, any record) has not come."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._metric = rule.metric
        duration = rule.stale.after if rule.stale is not None else rule.no_data_for or DEFAULT_NO_DATA_FOR
        self._patience = seconds(duration)
        self._duration = duration
        note = f"{rule.metric or 'a record'} came within the last {duration}"
        self._fresh = Finding(State.HEALTHY, Reason.WITHIN_LIMITS, note=note)
        self._attempt = 0
        self._since: float | None = None
        self._missing: Place | None = None

    def take(self, record: MetricRecord, now: float | None) -> None:
        """Note a record that came at `now`; None where the time is not known."""
        metric = self._metric
        present = metric is None or metric in record.scalars or metric in record.vectors
        if record.attempt != self._attempt or present:
            self._attempt = record.attempt
            self._since = now
            self._missing = None
        if not present and self._missing is None:
            self._missing = Place(record.step, record.window)

    def overdue(self, now: float | None, last: Place) -> Finding | None:
        """What the absence up to `now` comes to, `last` being the newest record; None while it is not too long."""
        if now is None or self._since is None or now - self._since < self._patience:
            return None
        rule = self._rule
        subject = rule.metric or "record"
        note = f"no {subject} for {now - self._since:.0f} s, which is longer than {self._duration}"
        reason = Reason.STALE if rule.stale is not None else Reason.ABSENT_TOO_LONG
        return Finding(State.FIRING, reason, streak=1, first_bad=self._missing or last, note=note)

    def finding(self, now: float | None, last: Place) -> Finding:
        """What a `stale` rule finds."""
        if self._since is None or now is None:
            return _UNKNOWN
        return self.overdue(now, last) or self._fresh

    @staticmethod
    def wanted(rule: Rule) -> bool:
        """Whether time alone can make this rule fire."""
        return rule.stale is not None or rule.on_no_data is not OnNoData.IGNORE
