"""Tiny training jobs on the sandbox's real node: data that is damaged on disk, the job, and what can be read of it.

One model for all fault tests: 20 ms a step, a checkpoint every 10 steps, margin 10, probation 20. Data are windows of
the standard library's sources, shuffled once; `damage` overwrites a run of global batches with random bytes.
"""

import hashlib
import json
import os
import random
import subprocess
import sysconfig
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from redis import Redis
from sandbox_fixture import Cluster
from trimtab_contract.directives import ACK_FIELD, Ack, AckState, decode
from trimtab_contract.evidence import BatchLogEntry, decode_batch_log
from trimtab_contract.journal import JournalRecord, parse_record, verify_chain
from trimtab_contract.keys import (
    RunId,
    ack_stream,
    batches_prefix,
    directive_key,
    journal_prefix,
    journal_seq,
    records_prefix,
    run_prefix,
)
from trimtab_contract.metrics import MetricRecord, decode_archive
from trimtab_operator.journal_fold import fold_all
from trimtab_operator.run_state import RunState
from trimtab_sandbox.cluster import SandboxInfo

ROOT = Path(__file__).resolve().parent.parent
DATA = Path("/var/lib/trimtab-sandbox/data")
IMAGE = "localhost/trimtab-dev:1"
S3_IN_CLUSTER = "http://s3.trimtab-system.svc.cluster.local:8333"
SEQUENCE, GLOBAL_BATCH, WINDOWS = 32, 8, 2000
CHECKPOINT_ROOT = "e2e"
HELD = frozenset({AckState.HOLDING, AckState.DIAGNOSED})
"""What a world says of itself while it stands still; after a measurement, the latter."""

Json = dict[str, Any]


def prepare_data(*, damage: Sequence[tuple[int, int]] = (), seed: int = 0) -> Path:
    """A data file with the given ranges of windows (inclusive) overwritten by noise; made once for equal arguments."""
    name = hashlib.sha256(repr((damage, seed)).encode()).hexdigest()[:16]
    path = DATA / f"{name}.bin"
    if path.exists():
        return path
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)
    order = random.Random(seed)
    samples = [text[start : start + SEQUENCE] for start in range(0, len(text) - SEQUENCE, SEQUENCE)]
    order.shuffle(samples)
    body = bytearray(b"".join(samples[: WINDOWS * GLOBAL_BATCH]))
    size = SEQUENCE * GLOBAL_BATCH
    for first, last in damage:
        body[first * size : (last + 1) * size] = order.randbytes((last - first + 1) * size)
    DATA.mkdir(parents=True, exist_ok=True)
    DATA.chmod(0o755)
    path.write_bytes(body)
    path.chmod(0o644)
    return path


def guard_policy(name: str = "guard", **changes: Any) -> Json:
    """The guard of the tiny jobs; `changes` replace fields of its spec."""
    spec: Json = {
        "rules": [
            {
                "name": "loss-spike",
                "metric": "loss",
                "spike": {"baseline": {"statistic": "Mean", "records": 100, "minRecords": 50}, "sigma": 4},
                "forRecords": 3,
                "afterSteps": 100,
                "action": "Rollback",
            },
            {"name": "non-finite", "metric": "nonfinite", "range": {"max": 0}, "action": "Rollback"},
            {"name": "replica-mismatch", "metric": "replica_mismatch", "range": {"max": 0}, "action": "Rollback"},
        ],
        "remediation": {
            "margin": 10,
            "skipBatches": {"before": 1, "after": 2, "probe": 32},
            "probationSteps": 20,
            "minThroughput": 0,  # a machine that others use stalls, and no test says when
        },
        **changes,
    }
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "GuardPolicy", "metadata": {"name": name}, "spec": spec}


def training_job(name: str, data: Path, *, steps: int = 300, config: Json | None = None, **changes: Any) -> Json:
    """A tiny job of two pods; `config` is merged into the trainer's, `changes` replace fields of the spec."""
    spec: Json = {
        "trainer": {
            "numNodes": 2,
            "config": {
                "data": {"path": f"/data/{data.name}"},
                "steps": steps,
                "globalBatch": GLOBAL_BATCH,
                "model": {"width": 32, "layers": 2, "heads": 2, "sequence": SEQUENCE},
                "optimizer": {"qkClipThreshold": 30},
                "replicaCheckEvery": 5,
                "telemetry": {"archiveSeconds": 5},
                **(config or {}),
            },
        },
        "podTemplate": {
            "volumes": [{"name": "data", "hostPath": {"path": str(DATA)}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
            "terminationGracePeriodSeconds": 20,
        },
        "checkpoint": {
            "uri": f"s3://training/{CHECKPOINT_ROOT}",
            "endpoint": S3_IN_CLUSTER,
            "everySteps": 10,
            "certifySteps": 40,
            "keepLast": 100,  # runs are compared, and which checkpoints are gone by then is a matter of chance
            "credentialsSecretRef": {"name": "s3"},
        },
        "guard": {"policies": [{"name": "guard"}]},
        "progressDeadline": "2m",
        **changes,
    }
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True)
class Trail:
    """A run's journal as a reader finds it: intact, or the test fails."""

    records: tuple[JournalRecord, ...]
    state: RunState

    def of(self, *actions: str) -> tuple[JournalRecord, ...]:
        """The records of the given actions, results left out."""
        return tuple(one for one in self.records if one.action in actions and one.phase != "Result")

    @property
    def story(self) -> list[tuple[str, str | None, str]]:
        """(action, phase, id) of every record of an incident, checkpoint states left out."""
        states = {"Committed", "Verified", "Certified", "Quarantined"}
        return [(one.action, one.phase, one.id) for one in self.records if one.incident and one.action not in states]


@dataclass(frozen=True)
class Namespace:
    """One test's namespace on the sandbox: apply, watch, read."""

    cluster: Cluster
    info: SandboxInfo
    redis: Redis
    s3: Any = field(repr=False)

    @property
    def name(self) -> str:
        """The namespace."""
        return self.cluster.namespace

    def apply(self, *objects: Json) -> None:
        """Create or change objects."""
        self.cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))

    def get(self, kind: str, name: str) -> Json:
        """One object."""
        return json.loads(self.cluster.kubectl("get", kind, name, "-o", "json"))

    def items(self, kind: str, selector: str = "") -> list[Json]:
        """All objects of a kind."""
        return json.loads(self.cluster.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]

    def status(self, job: str) -> Json:
        """A TrainingJob's status."""
        return self.get("trainingjob", job).get("status") or {}

    def run(self, job: str) -> RunId:
        """A TrainingJob's run."""
        return RunId(self.name, job, self.get("trainingjob", job)["metadata"]["uid"])

    def wait(self, job: str, what: str, holds: Callable[[Json], bool], seconds: float = 180) -> Json:
        """Wait until a TrainingJob's status satisfies `holds`; fails with status and events when it does not."""
        end = time.monotonic() + seconds
        while True:
            status = self.status(job)
            if holds(status):
                return status
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}; {self.describe(job)}"
            time.sleep(0.5)

    def wait_phase(self, job: str, *phases: str, seconds: float = 180) -> Json:
        """Wait for one of the phases."""
        return self.wait(job, f"phase {' or '.join(phases)}", lambda one: one.get("phase") in phases, seconds)

    def wait_step(self, job: str, step: int, seconds: float = 180) -> Json:
        """Wait until the trainer has published the record of a step, in the newest attempt."""
        run, end = self.run(job), time.monotonic() + seconds
        while True:
            for key in self.redis.scan_iter(match=f"tt:{{{run}}}:a*:metrics".replace("[", "\\[")):
                newest = self.redis.xrevrange(key, count=1)
                if newest and int(newest[0][0].split(b"-")[0]) >= step:
                    return self.status(job)
            assert time.monotonic() < end, f"waited {seconds:.0f} s for step {step}; {self.describe(job)}"
            time.sleep(0.1)

    def wait_action(self, job: str, action: str, count: int = 1, seconds: float = 120) -> Trail:
        """Wait until the journal holds an action so often."""
        end = time.monotonic() + seconds
        while True:
            trail = self.trail(job)
            if len(trail.of(action)) >= count:
                return trail
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {action}; {self.describe(job)}"
            time.sleep(0.2)

    def acks(self, job: str) -> list[Ack]:
        """Everything the trainer said of itself, the oldest first."""
        return [decode(Ack, fields[ACK_FIELD]) for _, fields in self.redis.xrange(ack_stream(self.run(job)))]

    def wait_held(self, job: str, held_seconds: float, seconds: float = 120) -> None:
        """Wait until a world has been holding for so long by its own clock, getting on all the time."""
        end = time.monotonic() + seconds
        while True:
            acks = self.acks(job)
            held = list(takewhile(lambda ack: ack.state in HELD, reversed(acks)))
            if held and held[0].time - held[-1].time >= held_seconds:
                assert held[0].progress > held[-1].progress
                return
            assert time.monotonic() < end, f"waited {seconds:.0f} s for a hold; {self.describe(job)}"
            time.sleep(0.5)

    def describe(self, job: str) -> str:
        """What a person would look at when a test fails."""
        told = self.cluster.kubectl("describe", "trainingjob", job)
        pods = self.cluster.kubectl("get", "pods", "-o", "wide")
        story = "\n".join(
            f"{one.seq} {one.action} {one.phase or ''} {one.reason}" for one in self.trail(job).records[-40:]
        )
        return f"{told}\n{pods}\n{story}\n{operator_log(self.cluster)}"

    def trail(self, job: str) -> Trail:
        """The run's journal, verified."""
        return self.trail_of(self.run(job))

    def trail_of(self, run: RunId) -> Trail:
        """The same, also of a run whose TrainingJob is gone."""
        bodies = [(journal_seq(key), self._audit(key)) for key in self._keys("trimtab-audit", journal_prefix(run))]
        report = verify_chain(bodies)
        assert report.intact, report.problems
        records = tuple(parse_record(body) for _, body in bodies)
        counted = tuple(one for seq, one in enumerate(records, 1) if seq not in report.ignored)
        return Trail(records, fold_all(counted))

    def records(self, job: str) -> dict[tuple[int, int], MetricRecord]:
        """Every archived record by (attempt, step)."""
        run = self.run(job)
        found: dict[tuple[int, int], MetricRecord] = {}
        for attempt in range(1, self.trail(job).state.attempt + 1):
            for key in self._keys("training", records_prefix(CHECKPOINT_ROOT, run, attempt)):
                body = self.s3.get_object(Bucket="training", Key=key)["Body"].read()
                found.update({(one.attempt, one.step): one for one in decode_archive(body)})
        return found

    def surviving(self, job: str) -> dict[int, MetricRecord]:
        """The surviving history: the record of every step."""
        state, records = self.trail(job).state, self.records(job)
        last = max(step for attempt, step in records if attempt == state.attempt)
        return {step: records[state.owner(step), step] for step in range(1, last + 1)}

    def batch_log(self, job: str) -> list[tuple[int, BatchLogEntry]]:
        """(rank, entry) of every window any rank read for training."""
        entries: list[tuple[int, BatchLogEntry]] = []
        for key in self._keys("training", batches_prefix(CHECKPOINT_ROOT, self.run(job))):
            rank = int(key.split("-r")[-1].split("/")[0])
            body = self.s3.get_object(Bucket="training", Key=key)["Body"].read()
            entries += [(rank, entry) for entry in decode_batch_log(body)]
        return entries

    def directive(self, job: str) -> Json | None:
        """The directive that Redis holds."""
        stored = self.redis.get(directive_key(self.run(job)))
        return json.loads(stored) if stored else None

    def stored(self, run: RunId) -> set[str]:
        """The keys of everything that the run's trainer keeps in S3."""
        return set(self._keys("training", run_prefix(CHECKPOINT_ROOT, run)))

    def pods(self, job: str) -> list[Json]:
        """The job's pods, all worlds."""
        return self.items("pods", f"trimtab.dev/job={job}")

    def _audit(self, key: str) -> bytes:
        return self.s3.get_object(Bucket="trimtab-audit", Key=key)["Body"].read()

    def _keys(self, bucket: str, prefix: str) -> Iterator[str]:
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            yield from (found["Key"] for found in page.get("Contents", []))


def operator_log(cluster: Cluster, lines: int = 60) -> str:
    """The newest lines of the operator."""
    return cluster.kubectl("-n", "trimtab-system", "logs", "deploy/trimtab", f"--tail={lines}")


def chart_values(**changes: Any) -> Json:
    """The chart's values on the sandbox, with the mounted development image."""
    return {
        "image": IMAGE,
        "trainerImage": IMAGE,
        "audit": {"endpoint": S3_IN_CLUSTER},
        "leaseSeconds": 6,
        "resyncSeconds": 5,
        # The tests break many jobs on purpose, one after the other.
        "breaker": {"enabled": False},
        "resources": {"requests": {"memory": None}, "limits": {"memory": None}},
        **changes,
    }


def install_chart(cluster: Cluster, **changes: Any) -> None:
    """Install or change the operator and wait until it is ready."""
    subprocess.run(
        [
            "helm",
            "upgrade",
            "--install",
            "trimtab",
            str(ROOT / "helm" / "trimtab"),
            "--namespace=trimtab-system",
            "--values=-",
            # Its policies come last, and need their kind to be known by then.
            "--wait",
        ],
        input=yaml.safe_dump(chart_values(**changes)),
        text=True,
        check=True,
        capture_output=True,
        env={**os.environ, **cluster.environment},
    )
    cluster.kubectl("-n", "trimtab-system", "rollout", "status", "deployment/trimtab", "--timeout=120s")


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Cluster:
    """The operator installed on the sandbox by its chart."""
    install_chart(cluster)
    return cluster


@pytest.fixture
def namespace(operator: Cluster, sandbox: SandboxInfo, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, with the training bucket's Secret; removed at the end."""
    with new_namespace(operator, sandbox, request.node.nodeid) as opened:
        yield opened


@contextmanager
def new_namespace(operator: Cluster, sandbox: SandboxInfo, purpose: str) -> Generator[Namespace]:
    """A namespace with the training bucket's Secret; removed at the end."""
    environment: Mapping[str, str] = sandbox.environment
    name = "e2e-" + hashlib.sha256(purpose.encode()).hexdigest()[:8] + f"-{int(time.time()) % 100000}"
    cluster = Cluster(environment, name)
    secret = json.loads(operator.kubectl("-n", "default", "get", "secret", "s3", "-o", "json"))
    plain = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "data": secret["data"]}
    s3 = boto3.client(
        "s3",
        endpoint_url=environment["TRIMTAB_S3_ENDPOINT"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )
    operator.kubectl("create", "namespace", name)
    try:
        cluster.kubectl("apply", "-f", "-", text=json.dumps(plain))
        with Redis.from_url(environment["TRIMTAB_REDIS_URL"]) as redis:
            yield Namespace(cluster, sandbox, redis, s3)
    finally:
        # Behind the last tests the cluster is another one, without it.
        operator.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
