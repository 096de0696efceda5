"""Charts of backtests stay within their frame, whatever the values."""

import math
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from judged_runs import SPIKE, accepted
from trimtab_cli.curve_chart import HEIGHT, WIDTH, chart
from trimtab_policies.backtest import Backtest
from trimtab_policies.log_readers.points import LogPoint

RULES = (
    {"name": "lone", "spike": SPIKE, "action": "Record"},
    {"name": "high", "range": {"max": 9.0}, "action": "Rollback"},
)
VALUES = st.one_of(st.floats(1, 12), st.floats(), st.sampled_from([1.7e308, -1.7e308, 5e-324, math.nan, math.inf, 2.0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=80))
def test_every_coordinate_lies_within_the_frame(values: list[float]) -> None:
    backtest = Backtest([accepted(*RULES)], curves=True)
    for step, value in enumerate(values, 1):
        backtest.take(LogPoint(step=step, scalars={"loss": value}, line=step))
    report = backtest.report()
    drawing = chart(report.curves, report.events, report.boundaries, report.records)
    pairs = re.findall(r"[ML](-?[\d.]+|nan|inf) (-?[\d.]+|nan|inf)", drawing)
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in pairs)
    attributes = [float(found) for found in re.findall(r' (?:c?[xy]|width|height)="([^"]+)"', drawing)]
    assert all(0 <= found <= WIDTH for found in attributes)


def test_a_chart_without_a_single_number_is_still_a_chart() -> None:
    backtest = Backtest([accepted(*RULES)], curves=True)
    for step in range(1, 4):
        backtest.take(LogPoint(step=step, scalars={"loss": math.nan}, line=step))
    report = backtest.report()
    drawing = chart(report.curves, report.events, report.boundaries, report.records)
    assert 'class="nonfinite"' in drawing
    assert "3 records not finite from step 1" in drawing
