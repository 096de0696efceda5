"""Errors of the policies.

PolicyError
├── InvalidPolicy    a GuardPolicy that cannot be obeyed; carries every error with its path
├── InvalidPolicyTest  a test file that cannot be run; carries every error with its path
├── InvalidSeries    a text that is no series of a test file
├── MetricMismatch   a rule reads a metric as a scalar that is a vector, or the reverse
├── EmptyHistory     judgement was asked for before any record arrived
├── InvalidLineage   attempts that do not form a tree
├── UnknownLogFormat no reader knows the log, or none has the name that was given
├── UnreadableLog    a log of which nothing can be read
└── InvalidMapping   columns of a log are mapped to metrics that cannot be, or are not there
"""

from dataclasses import dataclass


class PolicyError(ValueError):
    """Anything the policies refuse."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: its path, such as `spec.rules[2].spike.sigma`, and what to do about it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class InvalidPolicy(PolicyError):
    """A GuardPolicy spec that cannot be obeyed."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        self.errors = errors
        super().__init__("; ".join(str(error) for error in errors))


class InvalidPolicyTest(PolicyError):
    """A test file that cannot be run."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        self.errors = errors
        super().__init__("; ".join(str(error) for error in errors))


class InvalidSeries(PolicyError):
    """A text that is no series of a test file; says where and what is allowed."""


class MetricMismatch(PolicyError):
    """A rule and a record disagree on whether a metric is a scalar or a vector."""


class EmptyHistory(PolicyError):
    """There is no record to judge."""


class InvalidLineage(PolicyError):
    """An attempt names a parent that does not precede it, or appears twice."""


class UnknownLogFormat(PolicyError):
    """No reader knows the log, or none has the name that was given."""


class UnreadableLog(PolicyError):
    """Nothing of a log can be read: it says nothing, not that all is well."""


class InvalidMapping(PolicyError):
    """A mapping from metrics to columns that cannot be followed."""
