"""Per-head vectors as grids: one record's layers by heads, and each layer's worst head over steps. Pure.

What is too large to draw is pooled: a cell shows the worst of its elements, so that no extreme is lost.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from trimtab_contract.metrics import Vector
from trimtab_policies.explanation import element_name

from trimtab_cli.report.series import Columns
from trimtab_cli.report.views import HeatMap

MAPPED = ("qk_max_logit", "qk_max_logit_bound", "qk_clip_gamma")
MOST_CELLS = 8_192
MOST_ROWS = 256
MOST_STEP_COLUMNS = 160
_LOWEST_IS_WORST = frozenset({"qk_clip_gamma"})

Grid = NDArray[np.float64]
Single = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Extreme:
    """The worst element of all records: its value, its index, its step and attempt."""

    value: float
    element: tuple[int, ...]
    step: int
    attempt: int


@dataclass
class HeatCollector:
    """Follows one vector of two axes over one attempt's records; `step` is the one whose record is shown whole."""

    metric: str
    attempt: int
    step: int
    columns: Columns
    element: tuple[int, ...] | None = None
    """The element that the rule named."""
    snapshot: tuple[int, Single] | None = None
    extreme: Extreme | None = None
    _rows: dict[int, Single] = field(default_factory=dict[int, Single])

    def take(self, step: int, vector: Vector) -> None:
        """Note the vector of a step; one without two axes is left out."""
        if len(vector.shape) != 2:
            return
        grid = np.frombuffer(vector.data, "<f4").reshape(vector.shape)
        if step <= self.step:
            self.snapshot = (step, grid)
        # Minimum and maximum keep NaN, which is worse than any number.
        worst = grid.min(axis=1) if self._lowest else grid.max(axis=1)
        value = float(worst.min() if self._lowest else worst.max())
        if self.extreme is None or _is_worse(value, self.extreme.value, lowest=self._lowest):
            offset = _worst_offset(grid, lowest=self._lowest)
            self.extreme = Extreme(value, vector.index(offset), step, self.attempt)
        column = self.columns.of(step)
        known = self._rows.get(column)
        if known is not None and known.shape == worst.shape:
            worst = np.minimum(known, worst) if self._lowest else np.maximum(known, worst)
        self._rows[column] = worst

    def maps(self, *, whole: bool) -> tuple[HeatMap, ...]:
        """The worst of each layer over steps, behind the grid of the one record if that is wanted (`whole`)."""
        found = (self._of_record() if whole else None, self._over_steps())
        return tuple(one for one in found if one is not None)

    @property
    def _lowest(self) -> bool:
        return self.metric in _LOWEST_IS_WORST

    def _of_record(self) -> HeatMap | None:
        if self.snapshot is None or self.extreme is None:
            return None
        step, grid = self.snapshot[0], self.snapshot[1].astype(np.float64)
        offset = _worst_offset(grid, lowest=self._lowest)
        here = self.element or (int(offset // grid.shape[1]), int(offset % grid.shape[1]))
        if any(index >= size for index, size in zip(here, grid.shape, strict=True)):
            return None
        pooled, (down, across) = _pooled(grid, lowest=self._lowest)
        named = "the element that the rule names" if self.element else "the worst of this record"
        said = [f"{element_name(self.metric, here)}, {named}, has {grid[here]:.6g}"]
        worst = self.extreme
        if (worst.step, worst.element) != (step, here):
            said.append(f"the worst in the steps shown is {worst.value:.6g} at {self._named(worst)}")
        if (down, across) != (1, 1):
            said.append(f"each cell shows the worst of {down} by {across} elements")
        layers, heads = grid.shape
        row, column = _axes(self.metric)
        return self._map(
            f"{self.metric} at step {step} of attempt {self.attempt}, {row} by {column}",
            "; ".join(said),
            ((row, "0", str(layers - 1)), (column, "0", str(heads - 1))),
            pooled,
            ((here[0] // down, here[1] // across),),
        )

    def _over_steps(self) -> HeatMap | None:
        if self.extreme is None or len(self._rows) < 2:
            return None
        first, last = min(self._rows), max(self._rows)
        layers = max(len(row) for row in self._rows.values())
        grid = np.full((layers, last - first + 1), -math.inf if not self._lowest else math.inf)
        for column, row in self._rows.items():
            grid[: len(row), column - first] = row
        pooled, (down, across) = _pooled(grid, lowest=self._lowest)
        begins, worst = self.columns.begins(first), self.extreme
        ends = min(self.columns.begins(last) + self.columns.width - 1, self.columns.last)
        place = (worst.element[0] // down, (self.columns.of(worst.step) - first) // across)
        row, column = _axes(self.metric)
        return self._map(
            f"{self.metric} over the steps of attempt {self.attempt}: the worst {column} of each {row}",
            f"the worst is {worst.value:.6g} at {self._named(worst)}",
            ((row, "0", str(layers - 1)), ("step", str(begins), str(ends))),
            pooled,
            (place,),
        )

    def _named(self, extreme: Extreme) -> str:
        return f"{element_name(self.metric, extreme.element)} at step {extreme.step}"

    def _map(
        self,
        title: str,
        summary: str,
        axes: tuple[tuple[str, str, str], tuple[str, str, str]],
        grid: Grid,
        marked: tuple[tuple[int, int], ...],
    ) -> HeatMap:
        finite = grid[np.isfinite(grid)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        absent = math.inf if self._lowest else -math.inf
        values = tuple(tuple(None if value == absent else value for value in row) for row in grid.tolist())
        return HeatMap(title, summary, axes[0], axes[1], values, low, high, marked)


def _axes(metric: str) -> tuple[str, str]:
    """What the two axes of a vector are called."""
    words = element_name(metric, (0, 0)).split()
    return (words[0], words[2]) if words[0] != "element" else ("row", "column")


def _worst_offset(grid: Grid | Single, *, lowest: bool) -> int:
    if np.isnan(grid).any():
        return int(np.argmax(np.isnan(grid)))
    return int(grid.argmin() if lowest else grid.argmax())


def _is_worse(value: float, other: float, *, lowest: bool) -> bool:
    if math.isnan(other):
        return False
    return math.isnan(value) or (value < other if lowest else value > other)


def _pooled(grid: Grid, *, lowest: bool) -> tuple[Grid, tuple[int, int]]:
    """The grid in at most MOST_ROWS rows and MOST_CELLS cells, and how many elements a cell stands for."""
    down = max(1, math.ceil(grid.shape[0] / MOST_ROWS))
    rows = math.ceil(grid.shape[0] / down)
    across = max(1, math.ceil(grid.shape[1] / max(1, MOST_CELLS // rows)))
    reduce = np.minimum.reduceat if lowest else np.maximum.reduceat
    narrower = reduce(grid, list(range(0, grid.shape[0], down)), axis=0)
    return reduce(narrower, list(range(0, grid.shape[1], across)), axis=1), (down, across)
