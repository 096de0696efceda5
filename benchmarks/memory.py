"""The operator's resident memory while it looks after the demo's job, from its first record to its completion."""

from pathlib import Path

from sandbox_fixture import Cluster
from training_jobs import DATA, install_chart, new_namespace
from trimtab_sandbox.cluster import up

from benchmarks.demo_run import damage_corpus, demo_job, demo_policy, demo_settings, write_corpus
from benchmarks.figures import Figure, Measurement, write
from benchmarks.memory_watch import MemoryWatch

CORPUS = "benchmark-corpus.bin"


def measure() -> tuple[float, ...]:
    """Run the demo's job with its damage, in a namespace of its own; megabytes, twice a second."""
    info = up(progress=print)
    cluster = Cluster(info.environment)
    install_chart(cluster)
    DATA.mkdir(parents=True, exist_ok=True)
    write_corpus(DATA / CORPUS)
    damage_corpus(DATA / CORPUS)
    job = demo_job()
    name = job["metadata"]["name"]
    job["spec"]["trainer"]["config"] = demo_settings(Path("/data") / CORPUS)
    with new_namespace(cluster, info, "memory") as namespace, MemoryWatch(cluster) as memory:
        namespace.apply(demo_policy(), job)
        namespace.wait_phase(name, "Completed", seconds=1800)
    return tuple(memory.samples)


def main() -> None:
    """Measure and keep."""
    samples = measure()
    write(
        "memory",
        Measurement(
            title="The operator's memory",
            about="Resident memory of the leading operator, shared pages included, while the demo's job runs.",
            figures=(
                Figure("resident memory", samples, "MB", goal=250.0),
                Figure("largest resident memory", (max(samples),), "MB", goal=250.0),
            ),
        ),
    )


if __name__ == "__main__":
    main()
