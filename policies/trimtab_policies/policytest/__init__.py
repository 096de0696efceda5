"""Unit tests of guard policies: the content of a `*.test.yaml` -> cases -> results, by the engine that judges jobs.

The flow is the order of the modules: `notation` (a metric's values as text), `cases` (the models), `suite` (reading a
file, every error at once), `playback` (records, with `noise`), `judging`, `results`.
"""

from trimtab_policies.policytest.cases import Case
from trimtab_policies.policytest.results import CaseResult, Failure, run_case
from trimtab_policies.policytest.suite import parse_suite, policy_names

__all__ = ["Case", "CaseResult", "Failure", "parse_suite", "policy_names", "run_case"]
