"""The audit bucket of a run in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from played_trainer import RUN
from trimtab_contract.journal import parse_record, record_hash
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.ports import Appended
from trimtab_operator.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from scripted_world import ScriptedRun


class MemoryJournal:
    """The audit bucket: one writer wins each number."""

    def __init__(self, run: ScriptedRun) -> None:
        self.bodies: dict[int, bytes] = {}
        self._run = run

    async def probe(self) -> None:
        return None

    async def read(self, run: RunId, after: int = 0) -> tuple[tuple[int, bytes], ...]:
        return tuple((seq, body) for seq, body in sorted(self.bodies.items()) if seq > after)

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        def write() -> Appended:
            if seq in self.bodies:
                return Appended.SAME if self.bodies[seq] == body else Appended.OTHER
            self.bodies[seq] = body
            self._run.written(parse_record(body), record_hash(body))
            return Appended.WON

        return self._run.operation(write, away=StoreUnavailable, denied=StoreRefused)

    async def put_object(self, key: str, body: bytes) -> str:
        raise AssertionError("unused")

    async def get_object(self, key: str) -> bytes:
        raise AssertionError("unused")

    async def last(self, run: RunId) -> bytes | None:
        return self.bodies[max(self.bodies)] if self.bodies else None

    async def runs(self) -> tuple[RunId, ...]:
        return (RUN,)
