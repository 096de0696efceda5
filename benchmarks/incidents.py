"""From the record that makes a rule fire to the Hold that the trainer can see: real incidents of the tiny job.

Two jobs at a time on the sandbox, many damaged stretches each. The times are Redis's own: MONITOR shows when the
record arrived, when the operator's script stored the Hold, and when the trainer's next look found it.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import cast

from sandbox_fixture import Cluster
from training_jobs import Namespace, guard_policy, install_chart, new_namespace
from trimtab_contract.directives import ACK_FIELD, Ack, AckState, Action, decode
from trimtab_contract.keys import ack_stream
from trimtab_sandbox.cluster import up

from benchmarks.bus_watch import BusWatch, Happening, Look, Record, Written
from benchmarks.figures import Figure, Measurement, write
from benchmarks.tiny_runs import damaged_data, incident_job, wait_for_completion

JOBS = ("first", "second")
SPACING = 55
"""Windows from stretch to stretch: rollback, the steps trained again and the probation fit between them."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """One incident: seconds from the record that made the rule fire, and steps trained meanwhile."""

    stored: float
    seen: float
    held: float
    steps: int
    step_seconds: float


def reactions(namespace: Namespace, job: str, watch: BusWatch) -> Iterator[Reaction]:
    """Every incident of a job."""
    run = namespace.run(job)
    happened = watch.of(run)
    records = {(one.attempt, one.step): one for one in happened if isinstance(one, Record)}
    looks = [one for one in happened if isinstance(one, Look)]
    typical = step_seconds(happened)
    holding = {
        (ack.epoch, ack.seq): (time, ack) for time, ack in _acks(namespace, job) if ack.state is AckState.HOLDING
    }
    holds: dict[str, Written] = {}
    for one in happened:
        if isinstance(one, Written) and one.directive.action is Action.HOLD and one.directive.incident:
            holds.setdefault(one.directive.incident, one)
    for opened in namespace.trail(job).of("IncidentOpened"):
        latch = (opened.after or {})["latch"]
        record = records.get((latch["attempt"], latch["fired_step"]))
        hold = holds.get(opened.incident or "")
        if record is None or hold is None or hold.directive.order not in holding:
            continue
        seen = next(one.time for one in looks if one.client == record.client and one.time >= hold.time)
        held, ack = holding[hold.directive.order]
        yield Reaction(
            stored=hold.time - record.time,
            seen=seen - record.time,
            held=held - record.time,
            steps=ack.step - record.step,
            step_seconds=typical,
        )


def step_seconds(happened: tuple[Happening, ...]) -> float:
    """The median time between the records of two steps in a row."""
    records = [one for one in happened if isinstance(one, Record)]
    return median(
        later.time - earlier.time
        for earlier, later in pairwise(records)
        if (later.attempt, later.step) == (earlier.attempt, earlier.step + 1)
    )


def _acks(namespace: Namespace, job: str) -> Iterator[tuple[float, Ack]]:
    """The newest acks with the second in which Redis stored each."""
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", namespace.redis.xrange(ack_stream(namespace.run(job))))
    for entry, fields in entries:
        yield int(entry.split(b"-")[0]) / 1000, decode(Ack, fields[ACK_FIELD])


def measure(stretches: int, seed: int, seconds: float) -> list[Reaction]:
    """Run both jobs, to their end if the time suffices; every incident of both."""
    info = up(progress=print)
    cluster = Cluster(info.environment)
    install_chart(cluster)
    data = [damaged_data(stretches, SPACING, seed + number) for number in range(len(JOBS))]
    with (
        new_namespace(cluster, info, "incidents") as namespace,
        BusWatch(info.environment["TRIMTAB_REDIS_URL"]) as watch,
    ):
        jobs = [incident_job(job, path, stretches, SPACING) for job, path in zip(JOBS, data, strict=True)]
        namespace.apply(guard_policy(), *jobs)
        wait_for_completion(namespace, JOBS, seconds)
        return [reaction for job in JOBS for reaction in reactions(namespace, job, watch)]


def figures(found: list[Reaction]) -> tuple[Figure, ...]:
    """Latencies in seconds and in steps."""
    return (
        Figure(
            "XADD of the record → Hold visible to the trainer, ÷ step", tuple(o.seen / o.step_seconds for o in found)
        ),
        Figure("steps trained between the record that fired and the hold", tuple(float(one.steps) for one in found)),
        Figure("XADD of the record → Hold visible to the trainer", tuple(1000 * one.seen for one in found), "ms"),
        Figure("XADD of the record → Hold stored in Redis", tuple(1000 * one.stored for one in found), "ms"),
        Figure("XADD of the record → all ranks held and said so", tuple(1000 * one.held for one in found), "ms"),
        Figure("step of the tiny job, median of each job", tuple({1000 * one.step_seconds for one in found}), "ms"),
    )


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretches", type=int, default=34, help="damaged stretches of each of the two jobs")
    parser.add_argument("--rounds", type=int, default=3, help="how often both jobs are run")
    parser.add_argument("--seconds", type=float, default=900, help="longest time of a round")
    parser.add_argument("--add", action="store_true", help="add to the samples that are kept")
    options = parser.parse_args()
    for number in range(options.rounds):
        found = measure(options.stretches, 2 * number, options.seconds)
        measurement = Measurement(
            title="From a breach to a hold",
            about=(
                "Incidents of the tests' tiny job, two jobs at a time in the sandbox: four windows of noise each, "
                "`loss-spike` with `forRecords: 3`. From the arrival of the record that made the rule fire."
            ),
            figures=figures(found),
            notes=(
                "Times are those of Redis itself.",
                "Before the Hold lie a look at the cluster and two journal records in S3: the incident and the intent.",
            ),
        )
        write("incidents", measurement, add=options.add or number > 0)
        print(f"{len(found)} incidents")


if __name__ == "__main__":
    main()
