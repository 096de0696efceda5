"""What policies would have done on the log of a run that is over."""

from trimtab_policies.backtest.judging import Backtest, Judged, judge_log
from trimtab_policies.backtest.report import LogReport

__all__ = ["Backtest", "Judged", "LogReport", "judge_log"]
