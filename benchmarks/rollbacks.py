"""A rollback in place beside one that needs a new world: the same job, the same plan, in turns.

Every second incident loses a trainer process at the moment its target is restored, so that the next world carries the
plan out. Measured from the directive that names the target to the first step of the next attempt, by Redis's clock.
"""

import argparse
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_fixture import Cluster
from training_jobs import guard_policy, install_chart, new_namespace
from trimtab_sandbox.cluster import up

from benchmarks.bus_watch import BusWatch, Happening, Record, Written
from benchmarks.figures import Figure, Measurement, ratios, write
from benchmarks.tiny_runs import damaged_data, incident_job, wait_for_completion

JOB = "turns"
SPACING = 60


@dataclass
class Assailant:
    """Kills rank 1 when every second incident begins to restore its target."""

    restores: list[Written] = field(default_factory=list[Written])
    """The first directive of each incident that names a target of its own."""
    attempt: int = 0

    def __call__(self, written: Written) -> None:
        """Called with every directive that is stored."""
        directive = written.directive
        # Every directive of an attempt repeats what the attempt began with; a new target is a new attempt.
        begins, self.attempt = directive.attempt > self.attempt, max(self.attempt, directive.attempt)
        known = {one.directive.incident for one in self.restores}
        if not begins or directive.restore is None or directive.incident is None or directive.incident in known:
            return
        self.restores.append(written)
        if len(self.restores) % 2 == 0:
            for pid in trainer_processes(written.run, rank=1):
                os.kill(pid, signal.SIGKILL)


def trainer_processes(run: str, rank: int) -> tuple[int, ...]:
    """The processes on this node that train a run as a rank."""
    wanted = {f"TRIMTAB_RUN={run}".encode(), f"RANK={rank}".encode()}
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is none of ours
        if wanted <= set(variables):
            found.append(int(folder.name))
    return tuple(found)


def durations(restores: list[Written], happened: tuple[Happening, ...]) -> list[float]:
    """Seconds from each plan's directive to the first record of a later attempt."""
    records = [one for one in happened if isinstance(one, Record)]
    firsts = (
        next((one.time for one in records if one.time > plan.time and one.attempt >= plan.directive.attempt), None)
        for plan in restores
    )
    return [first - plan.time for plan, first in zip(restores, firsts, strict=True) if first is not None]


def measure(pairs: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of the rollbacks in place and of those by a new world."""
    info = up(progress=print)
    cluster = Cluster(info.environment)
    install_chart(cluster)
    data = damaged_data(2 * pairs, SPACING)
    assailant = Assailant()
    with (
        new_namespace(cluster, info, "rollbacks") as namespace,
        BusWatch(info.environment["TRIMTAB_REDIS_URL"], assailant) as watch,
    ):
        namespace.apply(guard_policy(), incident_job(JOB, data, 2 * pairs, SPACING))
        wait_for_completion(namespace, (JOB,), seconds)
        taken = durations(assailant.restores, watch.of(namespace.run(JOB)))
        worlds = {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods(JOB)}
        print(f"{len(taken)} rollbacks, {len(worlds)} worlds")
    whole = len(taken) - len(taken) % 2
    return taken[0:whole:2], taken[1:whole:2]


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=900, help="longest time of the run")
    parser.add_argument("--add", action="store_true", help="add to the samples that are kept")
    options = parser.parse_args()
    in_place, by_new_world = measure(options.pairs, options.seconds)
    write(
        "rollbacks",
        Measurement(
            title="Rollback in place, and by a new world",
            about=(
                "One tiny job whose incidents take turns: left alone, or with a trainer process killed while its "
                "target is restored. From the directive that names the target to the first step trained after it."
            ),
            figures=(
                Figure("rollback in place ÷ rollback by a new world", ratios(in_place, by_new_world), goal=0.1),
                Figure("rollback in place", tuple(in_place), "s"),
                Figure("rollback by a new world", tuple(by_new_world), "s"),
            ),
            notes=("Both restore, measure the extent of the damage and skip it before they train again.",),
        ),
        add=options.add,
    )


if __name__ == "__main__":
    main()
