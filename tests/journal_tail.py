"""A run's journal followed record by record, as fast as the object store answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from botocore.exceptions import ClientError
from training_jobs import Namespace
from trimtab_contract.directives import Directive, decode
from trimtab_contract.journal import JournalRecord, parse_record
from trimtab_contract.keys import RunId, directive_key, journal_prefix
from trimtab_operator.journal_fold import fold
from trimtab_operator.run_state import RunState

BUCKET = "trimtab-audit"


@dataclass
class JournalTail:
    """What the journal of one job's run says so far."""

    namespace: Namespace
    job: str
    state: RunState = field(default_factory=RunState)
    records: list[JournalRecord] = field(default_factory=list[JournalRecord])
    _last_key: str = ""

    @cached_property
    def run(self) -> RunId:
        """The job's run."""
        return self.namespace.run(self.job)

    @property
    def directive(self) -> Directive | None:
        """The directive that Redis holds."""
        stored = self.namespace.redis.get(directive_key(self.run))
        return decode(Directive, stored) if isinstance(stored, bytes) else None

    def poll(self) -> RunState:
        """Read what is new and return the state after it."""
        s3 = self.namespace.s3
        page = s3.list_objects_v2(Bucket=BUCKET, Prefix=journal_prefix(self.run), StartAfter=self._last_key)
        for found in page.get("Contents", []):
            try:
                body = s3.get_object(Bucket=BUCKET, Key=found["Key"])["Body"].read()
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "InternalError":
                    raise
                break  # a store that has just come back lists what it cannot read yet; the next look finds it
            record = parse_record(body)
            self.records.append(record)
            self.state = fold(self.state, record)
            self._last_key = found["Key"]
        return self.state

    def count(self, action: str) -> int:
        """How many records of an action there are, results left out."""
        return sum(record.action == action and record.phase != "Result" for record in self.records)

    def wait(self, what: str, holds: Callable[["JournalTail"], bool], seconds: float = 180) -> None:
        """Follow the journal until `holds`."""
        end = time.monotonic() + seconds
        while True:
            self.poll()
            if holds(self):
                return
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}; {self.namespace.describe(self.job)}"
            time.sleep(0.02)
