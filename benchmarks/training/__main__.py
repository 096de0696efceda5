"""Compare MuonClip, Muon and AdamW on real text: `python -m benchmarks.training`.

Trains 42 small models, two at a time, which takes about 25 minutes on two quiet cores, and writes
docs/training-comparison.md with its pictures. What was trained is kept in build/benchmarks/training, so that an
interrupted command goes on where it stopped; `--again` trains all of it again.
"""

import argparse
import importlib.util
import multiprocessing
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from benchmarks.figures import FOLDER, ROOT
from benchmarks.training.comparison import (
    GROWTH_THRESHOLD,
    RATES,
    best_of,
    compared_runs,
    growing_runs,
)
from benchmarks.training.page import page
from benchmarks.training.plots import draw_logits, draw_losses, draw_rates
from benchmarks.training.runs import Curve, Run, train

KEPT = FOLDER / "training"
PICTURES = ROOT / "docs" / "images"


def main() -> int:
    """Train what is missing, draw, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="train all runs again, those that are kept too")
    parser.add_argument("--processes", type=int, default=2, help="runs trained at a time, one thread each")
    options = parser.parse_args()
    if options.again:
        shutil.rmtree(KEPT, ignore_errors=True)
    corpus = _corpus()
    curves = _trained(compared_runs() + growing_runs(), corpus, options.processes)
    compared, growing = curves[: len(compared_runs())], curves[len(compared_runs()) :]
    bests = [best_of(compared, optimizer) for optimizer in RATES]
    draw_losses(PICTURES / "training-losses.svg", bests)
    draw_rates(PICTURES / "training-rates.svg", compared)
    draw_logits(PICTURES / "training-logits.svg", growing, GROWTH_THRESHOLD)
    target = ROOT / "docs" / "training-comparison.md"
    target.write_text(page(compared, growing, bests))
    print(f"written: {target.relative_to(ROOT)}")
    return 0


def _corpus() -> Path:
    """The demo's text, made by the demo's own program."""
    target = KEPT / "corpus.bin"
    if not target.exists():
        spec = importlib.util.spec_from_file_location("prepare", ROOT / "examples" / "demo" / "prepare.py")
        if spec is None or spec.loader is None:
            sys.exit("examples/demo/prepare.py cannot be loaded")
        prepare = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(prepare)
        prepare.write_corpus(target)
    return target


def _trained(runs: list[Run], corpus: Path, processes: int) -> list[Curve]:
    """The curve of each run, in order: kept ones, and the others trained now."""
    begun = time.monotonic()
    missing = [run for run in runs if not _kept(run).exists()]
    # Not forked: a child would inherit the threads' locks of the parent's arithmetic.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(train, run, corpus): run for run in missing}
        for done, future in enumerate(as_completed(waiting), start=1):
            run, curve = waiting[future], future.result()
            _kept(run).write_bytes(msgspec.json.encode(curve))
            minutes = (time.monotonic() - begun) / 60
            print(f"{done} of {len(missing)}, {minutes:.1f} min: {run.name}: loss {curve.losses[-1]:.4f}", flush=True)
    return [msgspec.json.decode(_kept(run).read_bytes(), type=Curve) for run in runs]


def _kept(run: Run) -> Path:
    return KEPT / f"{run.name}.json"


if __name__ == "__main__":
    sys.exit(main())
