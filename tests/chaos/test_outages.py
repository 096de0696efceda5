"""Redis, S3 and the API server go away, each during an incident of one job and in the middle of another's training."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from journal_tail import JournalTail
from surviving_history import assert_each_window_once, worlds
from training_jobs import Namespace, guard_policy, prepare_data, training_job
from trimtab_sandbox.cluster import SandboxInfo, sandbox_process
from trimtab_sandbox.commands import wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

SECONDS = 16
"""Longer than any timeout of operator and trainer, and than two terms of the Lease."""
FIRST, APART, LENGTH = 150, 60, 4
"""The first damaged window, the distance to the next, and how long each stretch is."""
STRUCK_STEPS, CALM_STEPS = 440, 520


@dataclass(frozen=True)
class Outage:
    """What happens to a server; `lasts` says that training must be seen to go on meanwhile."""

    name: str
    happen: Callable[[Path, Namespace], None]
    lasts: bool


def _flush(_home: Path, namespace: Namespace) -> None:
    namespace.redis.flushall()  # pyright: ignore[reportUnknownMemberType] -- untyped keywords


def _restart_redis(home: Path, _namespace: Namespace) -> None:
    """Its data survive a kill, its users do not."""
    redis = sandbox_process("redis", home)
    redis.kill()
    redis.start()


def _stop_s3(home: Path, namespace: Namespace) -> None:
    s3 = sandbox_process("s3", home)
    s3.stop()
    try:
        time.sleep(SECONDS)
    finally:
        s3.start()
    wait_until("S3 answering", lambda: _answers(namespace))


def _answers(namespace: Namespace) -> bool:
    try:
        namespace.s3.list_objects_v2(Bucket="trimtab-audit", MaxKeys=1)
    except (BotoCoreError, ClientError):
        return False
    return True


def _frozen(server: str) -> Callable[[Path, Namespace], None]:
    def happen(home: Path, _namespace: Namespace) -> None:
        process = sandbox_process(server, home)
        process.freeze()
        try:
            time.sleep(SECONDS)
        finally:
            process.thaw()

    return happen


OUTAGES = (
    Outage("Redis flushed", _flush, lasts=False),
    Outage("Redis frozen", _frozen("redis"), lasts=True),
    Outage("Redis restarted", _restart_redis, lasts=False),
    Outage("S3 refusing", _stop_s3, lasts=True),
    Outage("the API server away", _frozen("apiserver"), lasts=True),
)


def test_every_outage_ends_with_nothing_lost_or_doubled(namespace: Namespace, sandbox: SandboxInfo) -> None:
    """One job is in an incident whenever something goes away; the other one trains all the while, at a steady pace."""
    stretches = [(first, first + LENGTH - 1) for first in range(FIRST, FIRST + len(OUTAGES) * APART, APART)]
    pace = [{"attempt": 1, "step": step, "rank": 0, "kind": "slow", "seconds": 0.25} for step in range(1, CALM_STEPS)]
    struck = training_job("struck", prepare_data(damage=stretches), steps=STRUCK_STEPS, budget={"maxRollbacks": 8})
    calm = training_job("calm", prepare_data(), steps=CALM_STEPS, config={"faults": pace})
    namespace.apply(guard_policy(), struck, calm)

    tail, spans = JournalTail(namespace, "struck"), list[tuple[float, float]]()
    for number, outage in enumerate(OUTAGES, start=1):
        tail.wait(f"firing {number}", lambda seen, wanted=number: _firings(seen) >= wanted)
        assert tail.count("IncidentClosed") < number, f"{outage.name}: the incident was over too soon"
        begun = time.time()
        outage.happen(sandbox.home, namespace)
        spans.append((begun, time.time()))
    namespace.wait_phase("struck", "Completed", seconds=240)
    namespace.wait_phase("calm", "Completed", seconds=240)

    trail = namespace.trail("struck")
    assert len(trail.of("IncidentOpened", "Relapsed")) == len(trail.of("TargetSelected")) == len(OUTAGES)
    assert {one.outcome for one in trail.of("IncidentClosed")} == {"Recovered"}
    assert trail.state.incident is None
    assert trail.state.restarts == 0
    skipped = {window for first, last in _skip(trail.state.directive) for window in range(first, last + 1)}
    assert all(set(range(first, last + 1)) <= skipped for first, last in stretches)
    assert_each_window_once(namespace, "struck", STRUCK_STEPS, skipped)

    assert namespace.trail("calm").state.attempt == 1
    assert worlds(namespace, "calm") == worlds(namespace, "struck") == {"1"}
    assert_each_window_once(namespace, "calm", CALM_STEPS)
    times = [record.time for record in namespace.surviving("calm").values()]
    for outage, (begun, ended) in zip(OUTAGES, spans, strict=True):
        trained = sum(begun < moment < ended for moment in times)
        assert not outage.lasts or trained > SECONDS / 2, f"{outage.name}: {trained} steps meanwhile"
        assert times[0] < begun < times[-1], f"{outage.name}: the calm job did not train then"


def _firings(seen: JournalTail) -> int:
    """While S3 is away no Hold can be announced, so the job may reach its next damage within the same incident."""
    return seen.count("IncidentOpened") + seen.count("Relapsed")


def _skip(directive: object) -> tuple[tuple[int, int], ...]:
    ranges: tuple[tuple[int, int], ...] = getattr(directive, "skip", ())
    return ranges
