"""Real worlds of two trainer processes under torchrun, driven by directives that a test writes by hand."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from object_store_fixture import ADMIN, ObjectStoreServer
from redis_fixture import RedisServer
from trimtab_contract import keys
from trimtab_contract.checkpoints import CheckpointManifest, decode_manifest
from trimtab_contract.directives import (
    ACK_FIELD,
    Ack,
    AckState,
    Action,
    CheckpointReference,
    Directive,
    TerminationMessage,
    decode,
    encode,
)
from trimtab_contract.evidence import BatchLogEntry, decode_batch_log
from trimtab_contract.metrics import STREAM_FIELD, MetricRecord, decode_archive, decode_record

RANKS = 2
PATIENCE_SECONDS = 120.0
ROOT = "runs"
_COMMANDS = ("+xadd", "+xrange", "+get", "+ping", "+hello", "+client|setname")
_Found = TypeVar("_Found")

TINY: dict[str, Any] = {
    "model": {"width": 32, "layers": 2, "heads": 2, "sequence": 32},
    "optimizer": {"newtonSchulzDtype": "float32"},
    "schedule": {"warmupSteps": 5},
    "globalBatch": 8,
    "replicaCheckEvery": 5,
    "holdTickSeconds": 0.05,
    "collectiveTimeoutSeconds": 60,
    # Steps as short as these would overtake the store, and a save that finds too many before it is left out.
    "checkpoint": {"pendingSaves": 8},
    "telemetry": {"stateSeconds": 0.5, "pollSeconds": 0.02, "archiveSeconds": 0.5},
}


def until(
    what: str | Callable[[], str], look: Callable[[], _Found | None], seconds: float = PATIENCE_SECONDS
) -> _Found:
    """Look until something is found; fails with `what` was expected, asked for only then where it is a function."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            expected = what if isinstance(what, str) else what()
            raise AssertionError(f"still waiting after {seconds:.0f} s for {expected}")
        time.sleep(0.02)
    return found


def grant_user(redis: RedisServer, run: keys.RunId) -> None:
    """Make the ACL user of a run, with the password `pass`."""
    rules = ("reset", "on", ">pass", *keys.redis_acl_patterns(run), *_COMMANDS)
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", keys.redis_user(run), *rules)  # pyright: ignore[reportUnknownMemberType]


@dataclass
class Run:
    """One run: its identity, its data, and everything that was said and stored about it."""

    redis: RedisServer
    store: ObjectStoreServer
    folder: Path
    bucket: str
    config: dict[str, Any]
    checkpoint_every: int = 5
    progress_deadline: float = 60.0
    program: str = "trimtab_trainer"
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """More of the environment of every pod."""

    id: keys.RunId = field(default_factory=lambda: keys.RunId("team", "tiny", uuid.uuid4().hex[:12]))
    source: keys.RunId | None = None
    """The run that this one continues."""
    seq: int = 0

    def __post_init__(self) -> None:
        """Write the data file and make the run's Redis user."""
        data = self.folder / "data.bin"
        words = np.random.default_rng(7).integers(97, 123, size=(64, 6), dtype=np.uint8)
        text = words[np.random.default_rng(8).integers(0, 64, size=20_000)]
        data.write_bytes(text.tobytes())
        self.config = {**TINY, **self.config, "data": {"path": str(data), **self.config.get("data", {})}}
        self.make_user()

    def make_user(self) -> None:
        """The ACL user that the operator makes before a job; a restarted Redis forgets it."""
        grant_user(self.redis, self.id)

    def direct(self, action: Action, *, world: int = 1, attempt: int = 1, epoch: int = 1, **rest: Any) -> Directive:
        """Put a new directive in force."""
        self.seq += 1
        directive = Directive(epoch=epoch, seq=self.seq, world=world, attempt=attempt, action=action, **rest)
        with self.redis.client() as client:
            client.set(keys.directive_key(self.id), encode(directive))
        return directive

    def acks(self) -> list[Ack]:
        """Every ack so far."""
        with self.redis.client() as client:
            entries = cast("list[Any]", client.xrange(keys.ack_stream(self.id)))
        return [decode(Ack, entry[1][ACK_FIELD]) for entry in entries]

    def ack(self, state: AckState, directive: Directive | None = None, **expected: Any) -> Ack:
        """Wait for the first ack of a state, in answer to a directive."""

        def look() -> Ack | None:
            for ack in self.acks():
                answers = directive is None or (ack.epoch, ack.seq) == directive.order
                if ack.state is state and answers and all(getattr(ack, k) == v for k, v in expected.items()):
                    return ack
            return None

        def missing() -> str:
            return f"{state} {expected} of {directive}; acks: {[f'{a.state} at step {a.step}' for a in self.acks()]}"

        return until(missing, look)

    def records(self, attempt: int = 1) -> dict[int, MetricRecord]:
        """The records of one attempt in Redis, by step."""
        with self.redis.client() as client:
            entries = cast("list[Any]", client.xrange(keys.metrics_stream(self.id, attempt)))
        found = [decode_record(entry[1][STREAM_FIELD]) for entry in entries]
        return {record.step: record for record in found}

    def record(self, step: int, attempt: int = 1) -> MetricRecord:
        """Wait for one record."""
        return until(f"record {step} of attempt {attempt}", lambda: self.records(attempt).get(step))

    def archived(self, attempt: int = 1) -> dict[int, MetricRecord]:
        """The records of one attempt in S3, by step."""
        bodies = self.objects(keys.records_prefix(ROOT, self.id, attempt)).values()
        return {record.step: record for body in bodies for record in decode_archive(body)}

    def batches(self) -> list[tuple[int, BatchLogEntry]]:
        """The batch logs of all attempts: rank and entry, in step order."""
        found: list[tuple[int, BatchLogEntry]] = []
        for key, body in self.objects(keys.batches_prefix(ROOT, self.id)).items():
            rank = int(key.split("-r")[-1].split("/")[0])
            found += [(rank, entry) for entry in decode_batch_log(body)]
        return sorted(found, key=lambda pair: (pair[1].attempt, pair[1].step, pair[0]))

    def objects(self, prefix: str, suffix: str = "") -> dict[str, bytes]:
        """Every object under a prefix, or those whose key ends with `suffix`."""
        client = self.store.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        found = [entry["Key"] for page in pages for entry in page.get("Contents", []) if entry["Key"].endswith(suffix)]
        return {key: client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in found}

    def manifests(self) -> list[CheckpointManifest]:
        """The manifests of all complete checkpoints, in step order."""
        found = self.objects(keys.checkpoints_prefix(ROOT, self.id), keys.MANIFEST_NAME)
        return [decode_manifest(body) for _, body in sorted(found.items())]

    def saved(self, step: int, attempt: int = 1) -> CheckpointReference:
        """Wait for the Saved ack of a step."""

        def look() -> CheckpointReference | None:
            saved = [ack.checkpoint for ack in self.acks() if ack.state is AckState.SAVED and ack.checkpoint]
            return next((c for c in saved if c.step == step and f"-a{attempt:06d}-" in c.key), None)

        return until(f"checkpoint {step} of attempt {attempt}", look)

    def environment(self, world: int, node: int) -> dict[str, str]:
        """The environment of one pod."""
        config = self.folder / "config.yaml"
        config.write_text(json.dumps(self.config))
        sources = Path(__file__).parents[1]
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{sources / 'contract'}:{sources / 'trainer_image'}",
            "OMP_NUM_THREADS": "1",
            # Ranks of one machine, more than it may have GPUs, whose numbers are compared with those of the CPU.
            "CUDA_VISIBLE_DEVICES": "",
            "TRIMTAB_CONFIG": str(config),
            "TRIMTAB_RUN": str(self.id),
            "TRIMTAB_ATTEMPT": str(world),
            "TRIMTAB_REDIS_URL": f"redis://{self.redis.host}:{self.redis.port}/0",
            "TRIMTAB_REDIS_USERNAME": keys.redis_user(self.id),
            "TRIMTAB_REDIS_PASSWORD": "pass",
            "TRIMTAB_CHECKPOINT_URI": f"s3://{self.bucket}/{ROOT}",
            "TRIMTAB_S3_ENDPOINT": self.store.endpoint,
            "AWS_ACCESS_KEY_ID": ADMIN.access_key,
            "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "TRIMTAB_CHECKPOINT_EVERY": str(self.checkpoint_every),
            "TRIMTAB_PROGRESS_DEADLINE": str(self.progress_deadline),
            "TRIMTAB_HOSTNAME": f"pod-{node}",
            "TRIMTAB_TERMINATION_LOG": str(self.message_path(world, node)),
            "TMPDIR": str(self.folder),
            **({"TRIMTAB_RESUME_FROM": str(self.source)} if self.source is not None else {}),
            **self.variables,
        }

    def message_path(self, world: int, node: int) -> Path:
        """Where a pod leaves its termination message."""
        return self.folder / f"termination-{world}-{node}"

    def log_path(self, world: int, node: int) -> Path:
        """Where a pod's log is written."""
        return self.folder / f"log-{world}-{node}.txt"

    def log(self, node: int, world: int = 1) -> str:
        """What a pod has printed so far."""
        return self.log_path(world, node).read_text(errors="replace")

    def message(self, node: int, world: int = 1) -> TerminationMessage:
        """A dead pod's termination message."""
        return decode(TerminationMessage, self.message_path(world, node).read_text().strip())

    @contextmanager
    def world(self, number: int = 1, *, torchrun: bool = False, ranks: int = RANKS) -> Generator["World"]:
        """A pod per rank, ended by its process id in any case. Without torchrun the trainer is its first process."""
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        world = World(self, [self._pod(number, node, ranks, port, torchrun) for node in range(ranks)])
        try:
            yield world
        finally:
            world.kill()

    def _pod(self, number: int, node: int, ranks: int, port: int, torchrun: bool) -> "subprocess.Popen[bytes]":
        environment = self.environment(number, node)
        command = [sys.executable]
        if torchrun:
            command += ["-m", "trimtab_trainer.launcher", "--nnodes", str(ranks), "--node-rank", str(node)]
            command += ["--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
            command += ["--max-restarts", "0"]
        else:
            rendezvous = {"RANK": node, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
            environment |= {name: str(value) for name, value in rendezvous.items()} | {"MASTER_ADDR": "127.0.0.1"}
            environment |= self.variables
        command += ["-m", self.program]
        with self.log_path(number, node).open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


@dataclass
class World:
    """The pods of one world, by node; a pod is the process group of its torchrun."""

    run: Run
    pods: list["subprocess.Popen[bytes]"]

    def trainer_pid(self, node: int) -> int:
        """The training process of a pod."""

        def look() -> int | None:
            path = Path(f"/proc/{self.pods[node].pid}/task/{self.pods[node].pid}/children")
            children = path.read_text().split()
            return int(children[0]) if children else None

        return until("the trainer's process", look)

    def signal_trainer(self, node: int, number: int) -> None:
        """Send a signal to the training process of a pod."""
        os.kill(self.trainer_pid(node), number)

    def signal_pod(self, node: int, number: int) -> None:
        """Send a signal to a pod's first process, as the kubelet does."""
        self.pods[node].send_signal(number)

    def ended(self) -> list[int]:
        """Wait for all pods to end; their exit statuses."""
        until("the end of all pods", lambda: True if all(pod.poll() is not None for pod in self.pods) else None)
        return [pod.returncode for pod in self.pods]

    def kill(self) -> None:
        """End what still runs; torchrun's workers lead sessions of their own, so each is ended by its process id."""
        for pod in self.pods:
            if pod.poll() is None:
                children = Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()
                for pid in (*map(int, children), pod.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                pod.wait()
