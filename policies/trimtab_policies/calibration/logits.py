"""The threshold of QK-Clip (tau) from the largest attention logits of a run that was not clipped.

Every record has the largest logit of each head. They are kept as counts in buckets 2 % wide, by blocks of records that
are merged in pairs when there are many, so that memory does not grow with the log. The first half of the records is
left out: logits rise from near 0, and what a young run shows is no guide. The run is representative if it has
FEWEST_RECORDS records, and if the mean of the largest logit over the last quarter of them is at most MOST_GROWTH above
that over the quarter before.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from trimtab_contract.metrics import Vector

MAXIMA = "qk_max_logit"
BOUNDS = "qk_max_logit_bound"
GAMMA = "qk_clip_gamma"
QUANTILE = 0.999
MARGIN = 1.5
"""The threshold over the quantile."""

FEWEST_RECORDS = 1_000
MOST_GROWTH = 0.05
_MOST_BLOCKS = 64
_WIDTH = math.log(1.02)
_SMALLEST = 1e-6
"""Logits below it, and negative ones, are counted as this."""


class LogitEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one log says of attention logits; `refusal` says why it says nothing about a threshold.

    `quantile` is that of the logits of all heads in the second half of the records, at most 2 % too high; `largest` is
    the largest one there. `growth` is the last quarter's mean largest logit over the one before, less 1. `gamma_known`
    says whether the log shows that nothing was clipped.
    """

    records: int
    quantile: float = 0.0
    largest: float = 0.0
    growth: float = 0.0
    gamma_known: bool = False
    refusal: str = ""


class LogitChoice(msgspec.Struct, frozen=True):
    """The threshold proposed, and the limits of the rules that go with it.

    The logs' highest quantile and largest logit count. No healthy record exceeded `high`, nor `runaway`.
    """

    tau: float
    high: float
    runaway: float
    quantile: float
    largest: float
    by_log: tuple[LogitEvidence | None, ...]


class LogitSurvey:
    """Follows the attention logits of one log."""

    def __init__(self) -> None:
        self._records = 0
        self._span = 1
        self._blocks: list[_Block] = []
        self._clipped = self._bounds = 0
        self._first_clipped = 0
        self._gamma_known = False
        self._non_finite = 0

    def take(self, vectors: Mapping[str, Vector], step: int) -> None:
        """Take the vectors of the next record."""
        gamma = vectors.get(GAMMA)
        if gamma is not None:
            self._gamma_known = True
            if bool(np.any(_array(gamma) < 1)):
                self._first_clipped = self._first_clipped or step
                self._clipped += 1
        self._bounds += BOUNDS in vectors
        maxima = vectors.get(MAXIMA)
        if maxima is None or not maxima.data:
            return
        values = _array(maxima)
        self._records += 1
        if not bool(np.isfinite(values).all()):
            self._non_finite += 1
            return
        self._append(values)

    def evidence(self) -> LogitEvidence | None:
        """What was found; None in a log without attention logits."""
        if not (self._records or self._bounds or self._clipped):
            return None
        refusal = self._refusal()
        if refusal:
            return LogitEvidence(records=self._records, gamma_known=self._gamma_known, refusal=refusal)
        before, last = self._quarters()
        growth = last.mean / max(before.mean, _SMALLEST) - 1
        settled = before.joined(last)
        if settled.largest <= _SMALLEST:
            refusal = "has no positive logit in the second half of its records"
        elif growth > MOST_GROWTH:
            refusal = (
                f"is too early: the largest logit still grows, by {growth:.0%} from the third to the last quarter of "
                f"its {self._records:,} records, and at most {MOST_GROWTH:.0%} are taken for settled"
            )
        return LogitEvidence(
            records=self._records,
            quantile=settled.quantile(QUANTILE),
            largest=settled.largest,
            growth=growth,
            gamma_known=self._gamma_known,
            refusal=refusal,
        )

    def _refusal(self) -> str:
        if self._clipped:
            return (
                f"was clipped: {GAMMA} is below 1 in {self._clipped:,} record(s), first at step {self._first_clipped}, "
                "so its logits show the threshold that was set and not the one to set"
            )
        if self._bounds:
            return (
                f"has only bounds ({BOUNDS}) in {self._bounds:,} record(s): "
                "train with telemetry.exactMaxLogits to know the logits"
            )
        if self._non_finite:
            return f"has logits that are not finite in {self._non_finite:,} record(s)"
        if self._records < FEWEST_RECORDS:
            return f"is too early: it has {MAXIMA} in {self._records:,} records, and {FEWEST_RECORDS:,} are needed"
        return ""

    def _append(self, values: NDArray[np.float32]) -> None:
        block = _Block.of(values)
        if self._blocks and self._blocks[-1].records < self._span:
            self._blocks[-1] = self._blocks[-1].joined(block)
            return
        if len(self._blocks) == _MOST_BLOCKS:
            pairs = zip(self._blocks[::2], self._blocks[1::2], strict=True)
            self._blocks = [first.joined(second) for first, second in pairs]
            self._span *= 2
        self._blocks.append(block)

    def _quarters(self) -> tuple["_Block", "_Block"]:
        """The third and the last quarter of the records, to within a block."""
        blocks = self._blocks
        last = math.ceil(3 * len(blocks) / 4)
        return _joined(blocks[len(blocks) // 2 : last]), _joined(blocks[last:])


class _Block:
    """The logits of some records in a row: the sum of the records' largest, the largest, and counts by bucket."""

    def __init__(self, records: int, total: float, largest: float, buckets: Counter[int]) -> None:
        self.records = records
        self.largest = largest
        self.total = total
        self.buckets = buckets

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> "_Block":
        """One record's."""
        places = np.ceil(np.log(np.maximum(values.astype(np.float64), _SMALLEST)) / _WIDTH).astype(np.int64)
        found, counts = np.unique(places, return_counts=True)
        largest = float(values.max())
        return cls(1, largest, largest, Counter(dict(zip(found.tolist(), counts.tolist(), strict=True))))

    @property
    def mean(self) -> float:
        """The mean over the records of the largest logit."""
        return self.total / self.records

    def joined(self, other: "_Block") -> "_Block":
        """Both together."""
        return _Block(
            self.records + other.records,
            self.total + other.total,
            max(self.largest, other.largest),
            self.buckets + other.buckets,
        )

    def quantile(self, share: float) -> float:
        """The upper edge of the bucket below which this share of all logits lies, or the largest logit if less."""
        wanted, seen = share * self.buckets.total(), 0
        for place in sorted(self.buckets):
            seen += self.buckets[place]
            if seen >= wanted:
                return min(math.exp(place * _WIDTH), max(self.largest, _SMALLEST))
        return self.largest


def choose_threshold(logs: Sequence[LogitEvidence | None]) -> LogitChoice | None:
    """The threshold over what the logs have; None where they have no logits. Refusals are the caller's."""
    known = [one for one in logs if one is not None and not one.refusal]
    if not known:
        return None
    quantile = max(one.quantile for one in known)
    largest = max(one.largest for one in known)
    tau = _two_digits_up(MARGIN * quantile)
    high = max(0.8 * tau, largest)
    return LogitChoice(
        tau, _two_digits_up(high), _two_digits_up(max(1.5 * tau, 1.25 * high)), quantile, largest, tuple(logs)
    )


def _two_digits_up(value: float) -> float:
    """Rounded up to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.6g}")


def _joined(blocks: Iterable[_Block]) -> _Block:
    first, *others = blocks
    for other in others:
        first = first.joined(other)
    return first


def _array(vector: Vector) -> NDArray[np.float32]:
    return np.frombuffer(vector.data, dtype="<f4")
