"""Sends notices to the webhook beside all reconciling: a bounded queue, bounded tries, and what became of each.

Nothing waits for it. A notice that finds the queue full stays owed by its run, and is offered again at the run's next
reconcile. What became of it goes into the run's journal, so that the next operator does not send it again.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.ports import Webhook
from trimtab_operator.errors import WebhookRefused, WebhookUnavailable
from trimtab_operator.notices import message_body, notice_key
from trimtab_operator.observation import NoticeOutcome
from trimtab_operator.run_state import Notice

QUEUE_LENGTH = 256
WORKERS = 4
"""So many notices are under way at once: one that hangs keeps no other waiting."""
MAX_TRIES = 8
FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 120.0
REMEMBERED = 4096
"""So many of the newest outcomes are at hand until every journal that wants them has them."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Letter:
    key: str
    run: RunId | None
    notice: Notice


def wait_seconds(tries: int, asked: float = 0.0) -> float:
    """How long to wait after so many failed tries: twice as long each time, never less than the receiver asks for."""
    backoff = min(FIRST_WAIT_SECONDS * 2 ** (tries - 1), MAX_WAIT_SECONDS)
    return max(backoff * random.uniform(0.5, 1.0), asked)  # noqa: S311 - jitter, not a secret


class Notifier:
    """The operator's voice towards people. `settled` is called with what became of a notice."""

    def __init__(
        self,
        webhook: Webhook,
        *,
        may_send: Callable[[], bool] = lambda: True,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.settled: Callable[[RunId | None, Notice, NoticeOutcome], None] = lambda _run, _notice, _outcome: None
        self._webhook = webhook
        self._may_send = may_send
        self._pause = pause
        self._queue: asyncio.Queue[_Letter] = asyncio.Queue(QUEUE_LENGTH)
        self._known: OrderedDict[str, NoticeOutcome | None] = OrderedDict()
        self._owed: dict[RunId, frozenset[str]] = {}
        self._withdrawn: set[str] = set()

    def owe(self, run: RunId, notices: Sequence[Notice]) -> None:
        """Send all that the run still has to say; of what it had to say before and has not now, nothing more."""
        now = frozenset(notice_key(run, notice) for notice in notices if not notice.shared)
        under_way = {key for key in self._owed.get(run, frozenset()) - now if self._is_under_way(key)}
        self._withdrawn = (self._withdrawn | under_way) - now
        self._owed[run] = now
        self.offer(run, notices)

    def offer(self, run: RunId | None, notices: Iterable[Notice]) -> None:
        """Send what was not offered before; no run: it concerns all of them. Never waits."""
        for notice in notices:
            about = None if notice.shared else run
            letter = _Letter(notice_key(about, notice), about, notice)
            if letter.key in self._known or self._queue.full():
                continue
            self._queue.put_nowait(letter)
            self._known[letter.key] = None

    def outcomes(self, run: RunId, notices: Iterable[Notice]) -> tuple[NoticeOutcome, ...]:
        """What became of those of the run's notices that are settled."""
        found = (self._known.get(notice_key(None if notice.shared else run, notice)) for notice in notices)
        return tuple(outcome for outcome in found if outcome is not None)

    async def work(self) -> None:
        """For ever: send what is offered."""
        async with asyncio.TaskGroup() as workers:
            for number in range(WORKERS):
                workers.create_task(self._work(), name=f"notices-{number}")

    async def _work(self) -> None:
        while True:
            letter = await self._queue.get()
            try:
                outcome = await self._send(letter)
            except Exception:
                log.exception("defect", run=str(letter.run or ""), kind=letter.notice.kind)
                outcome = NoticeOutcome(id=letter.notice.id, delivered=False, message="given up: a defect")
            if outcome is None:
                # Withdrawn, or owed still and offered again by whoever leads.
                self._known.pop(letter.key, None)
                self._withdrawn.discard(letter.key)
                continue
            self._known[letter.key] = outcome
            self._known.move_to_end(letter.key)
            self._forget()
            self.settled(letter.run, letter.notice, outcome)

    async def _send(self, letter: _Letter) -> NoticeOutcome | None:
        """Try until it is taken, refused or given up; None when this operator may not speak any more."""
        body, why = message_body(letter.run, letter.notice), ""
        for tries in range(1, MAX_TRIES + 1):
            if not self._may_send() or letter.key in self._withdrawn:
                return None
            try:
                await self._webhook.post(body)
            except WebhookRefused as error:
                why = str(error)
                break
            except WebhookUnavailable as error:
                why = f"given up after {tries} tries: {error}"
                if tries < MAX_TRIES:
                    await self._pause(wait_seconds(tries, error.retry_after))
            else:
                return NoticeOutcome(id=letter.notice.id, delivered=True, message=f"delivered at try {tries}")
        log.warning("notice not delivered", run=str(letter.run or ""), kind=letter.notice.kind, error=why)
        return NoticeOutcome(id=letter.notice.id, delivered=False, message=why)

    def _is_under_way(self, key: str) -> bool:
        return key in self._known and self._known[key] is None

    def _forget(self) -> None:
        """Of the oldest outcomes; what is under way is never forgotten."""
        for key in list(self._known)[: max(0, len(self._known) - REMEMBERED)]:
            if self._known[key] is not None:
                del self._known[key]
