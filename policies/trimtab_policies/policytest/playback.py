"""An attempt's plan -> its metric records, made one at a time and the same each time."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from trimtab_contract.metrics import MetricRecord, Vector

from trimtab_policies.policytest.cases import AttemptPlan, VectorSeries
from trimtab_policies.policytest.noise import normals, stream_key
from trimtab_policies.policytest.notation import Series


class Playback:
    """The records of one attempt, by index from 0."""

    def __init__(self, plan: AttemptPlan, seed: int) -> None:
        self.plan = plan
        self._scalars = {
            metric: _ScalarTrack(series, plan.records, stream_key(seed, plan.attempt, metric))
            for metric, series in plan.series
            if isinstance(series, Series)
        }
        self._vectors = {
            metric: _VectorTrack(series, plan.records, seed, plan.attempt, metric)
            for metric, series in plan.series
            if isinstance(series, VectorSeries)
        }

    def record(self, index: int) -> MetricRecord:
        """The record with this index. Step n trains on data window n - 1."""
        step = self.plan.step(index)
        return MetricRecord(
            attempt=self.plan.attempt,
            step=step,
            window=step - 1,
            samples_seen=step,
            tokens_seen=step,
            time=0.0,
            scalars={metric: value for metric, one in self._scalars.items() if (value := one.value(index)) is not None},
            vectors={metric: value for metric, one in self._vectors.items() if (value := one.value(index)) is not None},
        )

    def records(self, first: int, last: int | None) -> Iterator[MetricRecord]:
        """Those of the steps from `first` to `last`, but for the missing ones."""
        plan = self.plan
        missing = frozenset(plan.missing)
        for index in range(plan.records):
            step = plan.step(index)
            if step >= first and (last is None or step <= last) and step not in missing:
                yield self.record(index)


class _ScalarTrack:
    def __init__(self, series: Series, count: int, key: int) -> None:
        levels = series.levels(count)
        self._present = levels.present
        self._values = levels.level
        if levels.noise.any():
            noisy = levels.noise > 0
            self._values[noisy] += (normals(key, 0, count) * levels.noise)[noisy]

    def value(self, index: int) -> float | None:
        return float(self._values[index]) if self._present[index] else None


class _VectorTrack:
    def __init__(self, series: VectorSeries, count: int, seed: int, attempt: int, metric: str) -> None:
        self._shape = series.shape
        self._size = int(np.prod(series.shape))
        self._base = series.base.levels(count)
        self._key = stream_key(seed, attempt, metric)
        self._elements = [
            (offset, _ScalarTrack(one, count, stream_key(seed, attempt, f"{metric}/{offset}")))
            for offset, one in series.elements
        ]

    def value(self, index: int) -> Vector | None:
        if not self._base.present[index]:
            return None
        values: NDArray[np.float64] = np.full(self._size, self._base.level[index])
        noise = self._base.noise[index]
        if noise > 0:
            values += noise * normals(self._key, index * self._size, self._size)
        for offset, track in self._elements:
            own = track.value(index)
            if own is not None:
                values[offset] = own
        with np.errstate(over="ignore"):
            return Vector(self._shape, values.astype("<f4").tobytes())
