"""What a checkpoint costs beside what it cannot do without: the bytes' way to the store, and back.

One rank with real S3. Every round measures both sides of each ratio, one after the other.
"""

import argparse
import hashlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from boto3.s3.transfer import TransferConfig
from checkpoint_ranks import Ranks, new_state
from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import CheckpointLimits, Saved, ShareMeasurement, TrainingState
from trimtab_trainer.checkpointing.reading import READERS
from trimtab_trainer.checkpointing.state import tensors_of
from trimtab_trainer.checkpointing.uploading import PART_BYTES, PARTS_IN_FLIGHT
from trimtab_trainer.data import ByteWindows
from trimtab_trainer.model import TransformerConfig

from benchmarks.figures import Figure, Measurement, ratios, write
from benchmarks.network_link import distant_store

MODEL = TransformerConfig(width=512, layers=8, heads=8, sequence=128)
WINDOW = 4
"""Samples of a rank in a step."""
STAGING_MEGABYTES = 64 * 2**20 / 1e6
LINK_GIGABITS = 3.0
LINK = f"over a link of {LINK_GIGABITS:g} Gbit/s"
PATIENT = CheckpointLimits(save_deadline_seconds=600, restore_patience_seconds=600, verify_patience_seconds=0.001)
"""Verification gives up at once: it would read the same bytes while something else is measured."""


@dataclass
class Times:
    """Seconds of every round; `staging` in megabytes beyond a copy of the state."""

    stall: list[float] = field(default_factory=list[float])
    save: list[float] = field(default_factory=list[float])
    raw_upload: list[float] = field(default_factory=list[float])
    restore: list[float] = field(default_factory=list[float])
    library_download: list[float] = field(default_factory=list[float])
    raw_download: list[float] = field(default_factory=list[float])
    raw_download_again: list[float] = field(default_factory=list[float])
    hashed_download: list[float] = field(default_factory=list[float])
    told: list[float] = field(default_factory=list[float])
    forward: list[float] = field(default_factory=list[float])
    staging: list[float] = field(default_factory=list[float])


def seconds(act: Callable[[], Any]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def forget_peak() -> None:
    """Let the kernel begin anew to remember this process's largest resident memory."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes() -> float:
    """The largest resident memory since then."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024 / 1e6


class Bench:
    """One rank, its state, and the store."""

    def __init__(self, server: ObjectStoreServer, folder: Path) -> None:
        bucket = server.new_bucket()
        self._client, self._bucket = server.client(), bucket
        self._store = ObjectStore(
            bucket, endpoint=server.endpoint, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key
        )
        self.ranks = Ranks(self._store, folder, world_size=1, limits=PATIENT)
        self.state, self.other = new_state(7, MODEL), new_state(8, MODEL)
        self.megabytes = sum(tensor.nbytes for tensor in tensors_of(self.state.flat()).values()) / 1e6
        corpus = folder.parent / "corpus.bin"
        corpus.write_bytes(bytes(WINDOW * (MODEL.sequence + 1) * 100))
        self._windows = ByteWindows(corpus, sequence=MODEL.sequence, global_batch=WINDOW)
        self._step = 0
        self._saved: CheckpointReference | None = None

    def round(self, times: Times) -> None:
        """Measure everything once."""
        reference = self._save(times)
        shard = f"{reference.key.removesuffix(MANIFEST_NAME)}__0_0.distcp"
        body = self._store.get(shard)
        times.raw_upload.append(seconds(lambda: self._raw_upload(body)))
        self._read_back(reference, shard, len(body), times)

    def reading_round(self, times: Times) -> None:
        """Measure what reads only; the state is saved once."""
        if self._saved is None:
            self._saved = self._save(times)
        shard = f"{self._saved.key.removesuffix(MANIFEST_NAME)}__0_0.distcp"
        self._read_back(self._saved, shard, self._size(shard), times)

    def _save(self, times: Times) -> CheckpointReference:
        self._step += 1
        before = peak_megabytes()
        forget_peak()
        measured: Future[ShareMeasurement] = Future()
        times.stall.append(seconds(lambda: self.ranks.save([self.state], self._step, measured=[measured])))
        times.told.append(seconds(lambda: self._tell(measured)))
        waited = seconds(lambda: self.ranks.checkpointers[0].flush(600))
        times.save.append(times.stall[-1] + times.told[-1] + waited)
        if self._step == 1:
            # Later rounds use the room of the first: what they need beyond it has no copy in it.
            times.staging.append(peak_megabytes() - before - self.megabytes)
        times.forward.append(seconds(self._forward))
        return next(event.reference for event in reversed(self.ranks.drain(0)) if isinstance(event, Saved))

    def _tell(self, measured: "Future[ShareMeasurement]") -> None:
        """What the step that comes next says of its window: training waits for that, too."""
        samples = self._windows.sample_digests(self._step)
        measured.set_result(ShareMeasurement(loss=float(torch.ones(())), samples=samples))

    @torch.no_grad()
    def _forward(self) -> None:
        """A forward pass over the window that follows: what loops pay whose steps cannot be repeated."""
        tokens = torch.randint(0, MODEL.vocab_size, (WINDOW, MODEL.sequence + 1))
        self.state.model(tokens[:, :-1], tokens[:, 1:])

    def _read_back(self, reference: CheckpointReference, shard: str, size: int, times: Times) -> None:
        times.restore.append(seconds(lambda: self.ranks.restore(reference, [self.other])))
        assert torch.equal(_first(self.other), _first(self.state))
        times.library_download.append(seconds(lambda: self._library_download(shard)))
        room = bytearray(size)
        times.raw_download.append(seconds(lambda: self._raw_download(shard, room)))
        times.raw_download_again.append(seconds(lambda: self._raw_download(shard, room)))
        times.hashed_download.append(seconds(lambda: self._raw_download(shard, room, hashlib.sha256)))

    def _size(self, key: str) -> int:
        return int(self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"])

    def close(self) -> None:
        """End the rank's threads."""
        self.ranks.close()

    def _raw_upload(self, body: bytes) -> None:
        settings = TransferConfig(multipart_chunksize=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT)
        self._client.upload_fileobj(io.BytesIO(body), self._bucket, "raw", Config=settings)

    def _library_download(self, key: str) -> None:
        """The counterpart of the raw upload."""
        settings = TransferConfig(multipart_chunksize=PART_BYTES, max_concurrency=READERS)
        self._client.download_fileobj(self._bucket, key, io.BytesIO(), Config=settings)

    def _raw_download(self, key: str, room: bytearray, use: Callable[[bytes], object] = len) -> None:
        """The same bytes in the parts that they were stored in, on as many threads, into memory and no further."""

        def fetch(begin: int) -> None:
            end = min(begin + PART_BYTES, len(room))
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={begin}-{end - 1}")
            body = answer["Body"].read()
            use(body)
            room[begin:end] = body

        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(fetch, range(0, len(room), PART_BYTES)))


def _first(state: TrainingState) -> torch.Tensor:
    return next(iter(tensors_of(state.flat()).values()))


def measure(rounds: int, folder: Path) -> tuple[Times, float]:
    """So many rounds with a store on the loopback, and the size of the state in megabytes."""
    (folder / "s3").mkdir()
    server = ObjectStoreServer(folder / "s3")
    server.start()
    try:
        with closing(Bench(server, folder / "world")) as bench:
            times = Times()
            for _ in range(rounds):
                bench.round(times)
            return times, bench.megabytes
    finally:
        server.stop()


def measure_distant(rounds: int, folder: Path) -> Times:
    """So many rounds of reading over a link."""
    (folder / "far-s3").mkdir()
    with (
        distant_store(folder / "far-s3", LINK_GIGABITS) as server,
        closing(Bench(server, folder / "far-world")) as bench,
    ):
        times = Times()
        for _ in range(rounds):
            bench.reading_round(times)
        return times


def figures(times: Times, distant: Times) -> tuple[Figure, ...]:
    """Ratios of what was measured side by side; the first stall makes the room that later ones use."""
    stall = _added(times.stall[1:], times.told[1:])
    return (
        Figure("training's stall ÷ a synchronous save", ratios(stall, times.save[1:]), goal=1 / 20),
        Figure(
            f"the same in a framework's loop, with a forward pass ({WINDOW} samples of {MODEL.sequence} tokens)",
            ratios(_added(stall, times.forward[1:]), _added(times.save[1:], times.forward[1:])),
        ),
        Figure("save ÷ a raw multipart upload of the same bytes", ratios(times.save, times.raw_upload), goal=1.25),
        *_restores(times, ""),
        Figure("restore ÷ the plain one into memory used before", ratios(times.restore, times.raw_download_again)),
        Figure("the plain one with SHA-256 ÷ without", ratios(times.hashed_download, times.raw_download_again)),
        Figure("restore ÷ the plain one with SHA-256", ratios(times.restore, times.hashed_download)),
        *_restores(distant, f", {LINK}"),
        Figure("memory for a save beyond a copy of the state", tuple(times.staging), "MB", goal=STAGING_MEGABYTES),
        Figure("training's stall", tuple(stall), "s"),
        Figure("training's stall at the first save, which makes the room", (times.stall[0],), "s"),
        Figure("save until it is durable", tuple(times.save), "s"),
        Figure("restore", tuple(times.restore), "s"),
        Figure(f"restore, {LINK}", tuple(distant.restore), "s"),
    )


def _added(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one + other for one, other in zip(some, others, strict=True)]


def _restores(times: Times, where: str) -> Iterator[Figure]:
    yield Figure(
        f"restore ÷ boto3's parallel download{where}", ratios(times.restore, times.library_download), goal=1.25
    )
    yield Figure(f"restore ÷ a plain parallel download{where}", ratios(times.restore, times.raw_download), goal=1.25)


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        times, megabytes = measure(rounds, Path(folder))
        distant = measure_distant(rounds, Path(folder))
    write(
        "checkpoints",
        Measurement(
            title="Checkpoints",
            about=(
                f"A state of {megabytes:.0f} MB (model and optimizer), one rank, a real S3 server on the same machine. "
                "Saves inspect the copy and hash every slice and every object; restores verify every slice."
            ),
            figures=figures(times, distant),
            notes=(
                "A restore uses the memory of the save before; a download into new memory pays for every page of it.",
                "All transfers have parts of the same size, as many threads and the same client library.",
                "A restore is proved by the loss of the next step; a framework's loop measures it by a forward pass.",
                "The raw upload is boto3's own, as is the first download; the plain one asks for each part.",
                "With SHA-256, each part is hashed by the thread that fetched it: what no restore can do without.",
                "Server and trainer share the processors: hashing is hidden only where a network lies between.",
            ),
        ),
    )


if __name__ == "__main__":
    main()
