"""Measure, and write RESULTS.md: `python -m benchmarks [PART ...]`, all parts when none is named.

Every part is a program of its own (`python -m benchmarks.<part> --help`) and leaves build/benchmarks/<part>.json;
`report` alone writes RESULTS.md from what is kept. The parts of the cluster need the sandbox, which is brought up.
"""

import os
import subprocess
import sys

from benchmarks.figures import ROOT
from benchmarks.report import write_report

PARTS = (
    "incidents",
    "rollbacks",
    "session",
    "checkpoints",
    "many_ranks",
    "corruptions",
    "journal",
    "memory",
    "engine",
    "permutation",
    "max_logits",
    "compute",
    "optimizer",
    "divided_updates",
    "accelerator",
)
"""In the order of the report."""


def main() -> int:
    """Run the parts one after another; the number of those that failed."""
    chosen = tuple(sys.argv[1:]) or PARTS
    unknown = set(chosen) - {*PARTS, "report"}
    if unknown:
        print(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join((*PARTS, 'report'))}")
        return 2
    # The real servers and worlds that the tests bring up are measured here.
    paths = f"{ROOT / 'tests'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    failed = 0
    for part in (name for name in PARTS if name in chosen):
        print(f"measuring: {part}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{part}"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        failed += done.returncode != 0
    print(f"written: {write_report(PARTS).relative_to(ROOT)}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
