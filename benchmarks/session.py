"""What the door to the outside costs a training step: telemetry on the main thread, control exchange, checkpoints.

The real trainer in a world of two processes, with the demo's model and settings, real Redis and real S3.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import Run, until
from trimtab_contract.directives import Action

from benchmarks.demo_run import demo_settings, write_corpus
from benchmarks.figures import Figure, Measurement, ratios, write

SHARES = {
    "telemetry": ("scalars", "vectors", "report"),
    "evidence": ("log", "digest"),
    "news": ("events",),
    "gate": ("gate",),
}
"""What a step's time is asked for; queueing and encoding are parts of `report`."""

CHECKPOINT_EVERY = 20

FIRST_STEPS = 10
"""Steps that are left out: caches are cold."""


@dataclass(frozen=True)
class Times:
    """One rank's stopwatches: seconds on the clock, and seconds of the main thread on a processor."""

    times: dict[str, list[float]]
    processor: dict[str, list[float]]
    counted: dict[str, list[int]]
    boundaries: list[float]
    processor_boundaries: list[float]
    threads: dict[str, float]

    @property
    def steps(self) -> list[float]:
        """Seconds from one reported step to the next."""
        return _differences(self.boundaries)

    @property
    def processor_steps(self) -> list[float]:
        """The main thread's processor seconds of the same steps."""
        return _differences(self.processor_boundaries)

    def per_step(self, watch: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
        """Seconds within each step, summed over the names; a call belongs to the step that is reported next."""
        sums = [0.0] * (len(self.boundaries) + 1)
        for name in names:
            for seconds, step in zip(watch[name], self.counted[name], strict=True):
                sums[step] += seconds
        return sums[FIRST_STEPS : len(self.boundaries)]


def _differences(boundaries: list[float]) -> list[float]:
    pairs = zip(boundaries[FIRST_STEPS - 1 :], boundaries[FIRST_STEPS:], strict=False)
    return [later - earlier for earlier, later in pairs]


def measure(steps: int, folder: Path) -> Times:
    """Train that many steps; the stopwatches of rank 0, which does most of the talking."""
    (folder / "redis").mkdir()
    (folder / "s3").mkdir()
    corpus = folder / "corpus.bin"
    write_corpus(corpus)
    redis, store = RedisServer(folder / "redis"), ObjectStoreServer(folder / "s3")
    redis.start()
    try:
        store.start()
        run = Run(redis, store, folder, store.new_bucket(), {}, program="benchmarks.timed_trainer")
        run.config, run.checkpoint_every = demo_settings(corpus, steps=steps), CHECKPOINT_EVERY
        with run.world() as world:
            run.direct(Action.RUN)
            until("the last step", lambda: run.records().get(steps), seconds=900)
            run.direct(Action.FINISH)
            world.ended()
    finally:
        store.stop()
        redis.stop()
    return Times(**json.loads((folder / "rank-0.json").read_text()))


def figures(times: Times) -> tuple[Figure, ...]:
    """Ratios to the step in which they were taken; checkpoints and replica checks to the median step."""
    steps, typical = times.steps, median(times.steps)
    shares = {name: _percent(times.per_step(times.times, parts), steps) for name, parts in SHARES.items()}
    computed = _percent(times.per_step(times.processor, SHARES["telemetry"]), times.processor_steps)
    courier = 100 * times.threads["courier"] / (times.boundaries[-1] - times.boundaries[0])
    return (
        Figure("telemetry calls on the main thread, of the step", shares["telemetry"], "%", goal=1.0),
        Figure("the same in processor time", computed, "%", goal=1.0),
        Figure("batch log and its digests, of the step", shares["evidence"], "%"),
        Figure("looking for checkpoint news, of the step", shares["news"], "%"),
        Figure("gate with its exchange (waits for the slower rank), of the step", shares["gate"], "%"),
        Figure("processor time of the thread that speaks to Redis, of the run", (courier,), "%"),
        Figure("checkpoint's stall of the main thread ÷ step", _over(times.times["save"], typical)),
        Figure("what the step behind it tells the save, ÷ step", _over(_behind_saves(times), typical)),
        Figure("replica check with its exchange ÷ step", _over(times.times["replicas"], typical)),
        Figure("step", tuple(steps), "s"),
    )


def _behind_saves(times: Times) -> list[float]:
    """Of the steps that a save waits for, one each: in the others there is nothing to tell."""
    return sorted(times.times["told"])[-len(times.times["save"]) :]


def _percent(parts: list[float], steps: list[float]) -> tuple[float, ...]:
    return tuple(100 * one for one in ratios(parts, steps))


def _over(times: list[float], step: float) -> tuple[float, ...]:
    return tuple(one / step for one in times)


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        times = measure(steps, Path(folder))
    write(
        "session",
        Measurement(
            title="The trainer's door to the outside",
            about=(
                "The demo's model and settings in a world of two processes, with real Redis and S3; stopwatches in "
                f"rank 0, a checkpoint every {CHECKPOINT_EVERY} steps."
            ),
            figures=figures(times),
            notes=("Telemetry calls make the record, encode it, and queue it for Redis and the archive; none waits.",),
        ),
    )


if __name__ == "__main__":
    main()
