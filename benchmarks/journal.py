"""What a journal record costs beside the bare conditional PUT it is made of: the same bytes, one after the other.

Real S3; records of the sizes that a run writes, appended by the operator's own journal. `python -m benchmarks.journal`.
"""

import argparse
import asyncio
import tempfile
import time
import uuid
from pathlib import Path

from object_store_fixture import ADMIN, ObjectStoreServer
from rollback_trail import rollback_trail
from trimtab_contract.keys import RunId, journal_record
from trimtab_operator.adapters.ports import Appended
from trimtab_operator.adapters.s3 import S3Credentials, S3JournalStore, S3Location
from trimtab_operator.commands import Draft
from trimtab_operator.journal import Identity, RunJournal
from trimtab_operator.run_state import JournalAction

from benchmarks.figures import Figure, Measurement, ratios, write

WARM_UP = 20
"""Records that are left out: connections are made."""


class TimedStore(S3JournalStore):
    """Repeats every append as a bare conditional PUT of another key, and keeps the times of that."""

    def __init__(self, location: S3Location, credentials: S3Credentials) -> None:
        super().__init__(location, credentials)
        self.sizes: list[int] = []
        self.body = b""

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        """Append as the store does, and remember the bytes."""
        self.body = body
        self.sizes.append(len(body))
        return await super().append(run, seq, body)

    async def bare(self, key: str) -> float:
        """Seconds of a conditional PUT of the bytes that were appended last."""
        begun = time.perf_counter()
        await self._bucket.put_if_absent(key, self.body)
        return time.perf_counter() - begun


async def measure(server: ObjectStoreServer, records: int) -> tuple[list[float], list[float], list[int]]:
    """Seconds of each append and of the PUT beside it, and the sizes of the records."""
    location = S3Location(server.new_bucket("journal"), server.endpoint)
    store = TimedStore(location, S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    run, other = (RunId("bench", "job", str(uuid.uuid4())) for _ in range(2))
    journal = RunJournal(store, run, Identity("trimtab", "operator-0", "uid", "image"))
    message = "x" * (sum(len(body) for _, body in rollback_trail()) // len(rollback_trail()) - 500)
    appends: list[float] = []
    puts: list[float] = []
    try:
        await journal.take_over(0)
        for step in range(WARM_UP + records):
            draft = Draft(
                action=JournalAction.RULE_FIRED,
                id=f"rule/{step}",
                reason={"message": message},
                after={"rule": "guards/loss-spike", "attempt": 1, "step": step % 100},
            )
            begun = time.perf_counter()
            await journal.append(draft)
            appends.append(time.perf_counter() - begun)
            puts.append(await store.bare(journal_record(other, step + 1)))
    finally:
        await store.close()
    return appends[WARM_UP:], puts[WARM_UP:], store.sizes


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400)
    records = parser.parse_args().records
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        server = ObjectStoreServer(Path(folder))
        server.start()
        try:
            appends, puts, sizes = asyncio.run(measure(server, records))
        finally:
            server.stop()
    typical = sorted(sizes)[len(sizes) // 2]
    write(
        "journal",
        Measurement(
            title="A journal record",
            about=(
                f"{records} records of {typical} bytes appended one after the other, each followed by a bare "
                "conditional PUT of the same bytes under another key; real S3."
            ),
            figures=(
                Figure("append of a record ÷ bare conditional PUT of the same bytes", ratios(appends, puts)),
                Figure("append of a record", tuple(1000 * one for one in appends), "ms"),
                Figure("bare conditional PUT", tuple(1000 * one for one in puts), "ms"),
            ),
            notes=("An append also makes the record canonical, hashes it, and folds it into the run's state.",),
        ),
    )


if __name__ == "__main__":
    main()
