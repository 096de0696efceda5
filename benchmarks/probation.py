"""How often a healthy stretch of an old log would fail the comparison at the end of a probation.

`python -m benchmarks.probation LOG...`: logs of healthy runs, in any format that `trimtab policy backtest` reads. Each
is cut at every tenth record, as if a rollback had ended there and nothing had been wrong: the 100 records before the
cut are the baseline, and the last 20 of the probation and of its extensions are compared with them.
Logs have the norm of gradients and seldom their clipping, so that is computed for thresholds that clip every gradient
above 1, above the log's median, and above nine tenths of it.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from statistics import quantiles

from trimtab_cli.errors import CliError
from trimtab_cli.log_files import open_log
from trimtab_operator.probation import (
    BASELINE_RECORDS,
    COMPARED_RECORDS,
    MAX_EXTENSIONS,
    MINIMUM_RECORDS,
    doubts,
    vitals,
)

MIN_THROUGHPUT = 0.6
"""`minThroughput` of a policy that says nothing of it."""
CUT_EVERY = 10

Scalars = Mapping[str, float]


def main() -> int:
    """Print a table; 1 where a log cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+", help="logs of healthy runs")
    parser.add_argument("--probation", type=int, default=200, help="records of a probation (200)")
    parser.add_argument("--after", type=int, default=200, help="leave out the first descent: so many records (200)")
    options = parser.parse_args()
    try:
        for path in options.logs:
            records = [dict(point.scalars) for point in open_log(path)][options.after :]
            for line in _report(path.name.partition(".")[0], records, options.probation):
                print(line)
    except CliError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _report(name: str, records: Sequence[Scalars], probation: int) -> Iterator[str]:
    """One line for each thing that is compared: how many cuts, and how many of them would be doubted."""
    yield _line(name, "loss", "loss", records, probation)
    yield _line(name, "tokens_per_second", "throughput", records, probation)
    norms = [one["grad_norm"] for one in records if isfinite(one.get("grad_norm", inf))]
    if len(norms) >= BASELINE_RECORDS:
        tenths = quantiles(norms, n=10)
        for threshold in (1.0, tenths[4], tenths[8]):
            clipped = [_clipped(one, threshold) for one in records]
            yield _line(name, "clip_ratio", f"clipping above {threshold:.3g}", clipped, probation)


def _clipped(record: Scalars, threshold: float) -> Scalars:
    norm = record.get("grad_norm", inf)
    return {"clip_ratio": min(1.0, threshold / norm) if norm > 0 else 1.0} if isfinite(norm) else {}


def _line(name: str, metric: str, what: str, records: Sequence[Scalars], probation: int) -> str:
    """Of the given metric alone."""
    only = [{metric: one[metric]} if metric in one else {} for one in records]
    lengths = [probation * number for number in range(1, MAX_EXTENSIONS + 2)]
    compared = extended = degraded = 0
    for cut in range(BASELINE_RECORDS, len(only) - lengths[-1] + 1, CUT_EVERY):
        before = only[cut - BASELINE_RECORDS : cut]
        ends = [only[cut + length - COMPARED_RECORDS : cut + length] for length in lengths]
        if min(sum(map(bool, one)) for one in (before, *ends)) < MINIMUM_RECORDS:
            continue
        doubted = [bool(doubts(vitals(before), vitals(end), MIN_THROUGHPUT)) for end in ends]
        compared += 1
        extended += doubted[0]
        degraded += all(doubted)
    return f"{name}: {what}: of {compared} healthy stretches {extended} extended, {degraded} degraded"


if __name__ == "__main__":
    sys.exit(main())
