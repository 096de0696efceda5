"""What the log readers pass on: rows as a log holds them, and points as judgement reads them."""

from collections.abc import Mapping
from typing import Self

import msgspec
from trimtab_contract.metrics import MetricRecord, Vector

NO_ARRAY = "a list that is no rectangle of numbers"
"""In the place of such a list among the values of a row."""

MOST_STEP = 2**53
"""Beyond it a step that went through a double is no longer exact."""


class LogPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What one log says about one step.

    `step` is the log's own number (0 is legal); points come in the order of the log, so steps go back where a run was
    resumed or restarted. A metric that the log does not give at this step is absent. `time` is seconds since the
    epoch; `attempt` and `window` are None unless the log says them. `line` is the line, or the number of the record
    in formats without lines, from 1.
    """

    step: int
    scalars: Mapping[str, float]
    vectors: Mapping[str, Vector] = {}
    time: float | None = None
    attempt: int | None = None
    window: int | None = None
    line: int

    @classmethod
    def of(cls, record: MetricRecord) -> Self:
        """What a metric record says, where no log with lines lies between."""
        return cls(
            step=record.step,
            scalars=record.scalars,
            vectors=record.vectors,
            time=record.time,
            attempt=record.attempt,
            window=record.window,
            line=record.step,
        )


class Unreadable(msgspec.Struct, frozen=True):
    """What could not be read, in one sentence without a full stop; `line` as in LogPoint, 0 for the log as a whole."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class Other(msgspec.Struct, frozen=True):
    """A line or record that carries no metrics and is not expected to: prose, a blank line, an image."""

    line: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row under the log's own names.

    `step` is None where it is one of the `values`. A value is a number, the text of one, or None for absent; `time`
    may be given in seconds or be found among the values.
    """

    line: int
    values: Mapping[str, object]
    step: object = None
    time: float | None = None
    attempt: int | None = None
    window: int | None = None
    vectors: Mapping[str, Vector] = {}


Found = Row | Unreadable | Other
