"""Drawing thousands of records in hundreds of columns loses no extreme and no mark."""

import math

import numpy as np
import pytest
from trimtab_cli.report.heat import MOST_CELLS, HeatCollector
from trimtab_cli.report.records import frozen_points
from trimtab_cli.report.series import MOST_COLUMNS, Columns, Decimator
from trimtab_contract.metrics import Vector

LAST = 20_000


@pytest.fixture
def decimated() -> Decimator:
    line = Decimator(Columns(1, LAST))
    for step in range(1, LAST + 1):
        value = {7_001: 900.0, 13_337: -900.0, 15_000: math.nan, 15_001: math.inf}.get(step, 2.0 + step % 10 / 10)
        line.take(step, value, 2.5, 3.5)
    return line


def test_a_long_line_keeps_its_extremes_at_their_places(decimated: Decimator) -> None:
    curve = decimated.curve()
    assert len(curve.buckets) <= MOST_COLUMNS
    highest = max(curve.buckets, key=lambda one: one.high or 0.0)
    lowest = min(curve.buckets, key=lambda one: one.low or 0.0)
    assert (highest.high, lowest.low) == (900.0, -900.0)
    assert highest.step <= 7_001 < highest.step + curve.width
    assert lowest.step <= 13_337 < lowest.step + curve.width


def test_values_that_are_not_finite_are_counted_where_they_are(decimated: Decimator) -> None:
    marked = [one for one in decimated.curve().buckets if one.non_finite]
    assert sum(one.non_finite for one in marked) == 2
    assert marked[0].step <= 15_000
    assert "2 not finite, the first at step 15000" in decimated.summary()


def test_a_line_breaks_where_no_record_is() -> None:
    line = Decimator(Columns(1, 10))
    for step in (1, 2, 6):
        line.take(step, 1.0)
    assert [one.low for one in line.curve().buckets] == [1.0, 1.0, None, None, None, 1.0]


def test_a_large_grid_is_pooled_to_its_worst_heads() -> None:
    values = np.full((300, 200), 5.0)
    values[299, 199] = 77.0
    collector = HeatCollector("qk_max_logit", 1, 3, Columns(1, 3))
    for step in (1, 2, 3):
        collector.take(step, Vector.pack((300, 200), values.ravel().tolist()))
    whole, over_steps = collector.maps(whole=True)
    assert len(whole.values) * len(whole.values[0]) <= MOST_CELLS
    assert whole.values[-1][-1] == 77.0
    assert "layer 299 head 199" in whole.summary
    assert over_steps.high == 77.0


def test_a_head_that_is_not_finite_is_the_worst_of_all() -> None:
    collector = HeatCollector("qk_clip_gamma", 1, 2, Columns(1, 2))
    collector.take(1, Vector.pack((1, 2), [1.0, math.nan]))
    collector.take(2, Vector.pack((1, 2), [0.2, 1.0]))
    whole, over_steps = collector.maps(whole=True)
    assert "nan at layer 0 head 1 at step 1" in whole.summary
    assert math.isnan(over_steps.values[0][0] or 0.0)
    assert over_steps.values[0][1] == pytest.approx(0.2)


def test_frozen_records_are_read_with_their_nan_and_strangers_are_left_out() -> None:
    line = b'{"attempt":1,"step":5,"window":4,"time":1.0,"scalars":{"loss":"NaN"},"vectors":{"v":[[1,1],"AACAPw=="]}}'
    (point,) = frozen_points(line + b'\n{"records":[]}\nnot json\n')
    assert math.isnan(point.scalars["loss"])
    assert point.vectors["v"].values() == (1.0,)
