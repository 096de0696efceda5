"""What is watched over all runs together: the breaker, the notices that people are owed, how many Jobs read checkpoints
back at once, and the metrics.

It holds nothing that the journals do not give again, and no run waits for it.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.journal import JournalRecord
from trimtab_contract.keys import RunId

from trimtab_operator.breaker import Breaker, BreakerSettings, Failure, Trip, explain
from trimtab_operator.notices import still_news
from trimtab_operator.notifier import Notifier
from trimtab_operator.observation import NoticeOutcome
from trimtab_operator.read_back_places import ReadBackPlaces
from trimtab_operator.run_state import AutomationHold, Notice, NoticeKind, RunPhase, RunState
from trimtab_operator.telemetry import Seen, Telemetry

READING_SECONDS = 120.0
"""So long an operator that has just taken over begins nothing while it cannot read some run's journal."""
READ_BACKS_AT_ONCE = 10
"""So many Jobs read checkpoints back at once, unless somebody says otherwise."""

_STILL_READING = AutomationHold(id="", message="the journals of other runs are still being read")

log = structlog.stdlib.get_logger(__name__)


class Oversight:
    """`wake_all` and `wake` are called when runs have something new to look at."""

    def __init__(
        self,
        settings: BreakerSettings | None = None,
        *,
        telemetry: Telemetry | None = None,
        notifier: Notifier | None = None,
        now: Callable[[], float] = time.time,
        read_backs_at_once: int = READ_BACKS_AT_ONCE,
    ) -> None:
        self.read_backs = ReadBackPlaces(read_backs_at_once)
        self.settings = settings or BreakerSettings(enabled=False)
        self.wake_all: Callable[[], None] = lambda: None
        self.wake: Callable[[RunId], None] = lambda _run: None
        self._telemetry, self._notifier, self._now = telemetry, notifier, now
        self._states: dict[RunId, RunState] = {}
        self._unread: set[RunId] = set()
        self._broken: set[RunId] = set()
        self._failing: set[RunId] = set()
        self._listed_at: float | None = None
        self._adopted = False
        self._breaker = Breaker()
        if telemetry is not None:
            telemetry.show(self._seen)
        if notifier is not None:
            notifier.settled = self._settled

    # Which runs there are ----------------------------------------------------------------------------------------

    def seen(self, run: RunId) -> None:
        """A run exists; what its journal says comes later."""
        if run not in self._states:
            self._unread.add(run)

    def listed(self) -> None:
        """Every run there is has been seen once."""
        if self._listed_at is None:
            self._listed_at = self._now()

    def known(self, run: RunId, state: RunState) -> None:
        """What a run's journal says."""
        before = self._states.get(run)
        self._states[run] = state
        self.read_backs.know(run, state)
        self._unread.discard(run)
        self._broken.discard(run)
        if before is None or before.failures != state.failures:
            self.refresh()

    def broken(self, run: RunId, message: str) -> None:
        """A run's journal cannot be believed; nothing could be written about it there, so people are told at once."""
        self._states.pop(run, None)
        self.read_backs.leave(run)
        self._unread.discard(run)
        self._broken.add(run)
        identity = f"journal-broken/{sha256_hex(message.encode())}"
        self._offer(run, Notice(kind=NoticeKind.JOURNAL_BROKEN, id=identity, time=self._wall_time(), message=message))
        self.refresh()

    def failing(self, run: RunId) -> None:
        """Nothing can be decided for a run now, and people are told so."""
        self._failing.add(run)

    def going_on(self, run: RunId) -> None:
        """A turn of a run has ended well."""
        self._failing.discard(run)

    def gone(self, run: RunId) -> None:
        """Nobody looks after the run any more."""
        self._failing.discard(run)
        self._states.pop(run, None)
        self.read_backs.leave(run)
        self._unread.discard(run)
        self._broken.discard(run)
        # A job made anew under the name has the same series already, and counters must not fall while they are shown.
        made_anew = _name(run) in {_name(one) for one in (*self._states, *self._unread, *self._broken)}
        if self._telemetry is not None and not made_anew:
            self._telemetry.forget(run)
        self.refresh()

    def recorded(self, run: RunId, before: RunState, record: JournalRecord, after: RunState) -> None:
        """A record was written."""
        if self._telemetry is not None:
            self._telemetry.recorded(run, before, record, after)
        self.known(run, after)

    # What runs need of each other ----------------------------------------------------------------------------------

    def continued(self, run: RunId) -> Mapping[str, str] | None:
        """The checkpoints of a run from which others go on that are not over: who does so, by the manifest's key.

        None until the journals of all runs were read, or waited for long enough.
        """
        if not self._complete():
            return None
        return {
            state.source.checkpoint.key: str(other)
            for other, state in self._states.items()
            if state.source is not None and state.source.run == str(run) and not state.ended
        }

    # The breaker -------------------------------------------------------------------------------------------------

    def held(self) -> AutomationHold | None:
        """Why no rollback and no restart may begin now, if so."""
        if not self.settings.enabled:
            return None
        if not self._complete():
            return _STILL_READING
        trip = self._breaker.trip
        return None if trip is None else self._hold(trip)

    def refresh(self) -> None:
        """Look whether many runs have failed, or none has for long enough."""
        if not self.settings.enabled or not self._complete():
            return
        before = self._breaker.trip
        if not self._adopted:
            self._adopted = True
            self._breaker = Breaker(trip=self._journaled_trip())
        failures = [Failure(one, _name(run)) for run, state in self._states.items() for one in state.failures]
        watched = [_name(run) for run, state in self._states.items() if _could_fail(state)]
        self._breaker = self._breaker.after(failures, watched=watched, now=self._now(), settings=self.settings)
        trip = self._breaker.trip
        if (before is None) == (trip is None):
            return
        log.warning("breaker", open=trip is not None, runs=list(trip.runs) if trip else [])
        if trip is not None:
            self._offer(None, self._notice(trip))
        self.wake_all()

    def _complete(self) -> bool:
        """Whether what all journals say is known, or was waited for long enough."""
        if self._listed_at is None:
            return False
        return not self._unread or self._now() - self._listed_at >= READING_SECONDS

    def _journaled_trip(self) -> Trip | None:
        """The trip that runs wait for since before this operator led: however many runs are watched now, it holds."""
        holds = [state.automation for state in self._states.values() if state.automation is not None]
        last = max(holds, key=lambda hold: hold.since, default=None)
        return None if last is None else Trip(since=last.since, last=last.since, runs=last.runs)

    def _hold(self, trip: Trip) -> AutomationHold:
        return AutomationHold(id=trip.id, message=explain(trip, self.settings), since=trip.since, runs=trip.runs)

    # Reading checkpoints back --------------------------------------------------------------------------------------

    def may_read_back(self, run: RunId) -> bool:
        """Whether one more Job may read checkpoints back, of this run; where all journals are known, and not before."""
        return self._complete() and self.read_backs.free(run)

    def at_rest(self, run: RunId, state: RunState, stalled: int) -> None:
        """Nothing of the run is being written; `stalled` is the order of a Job that does not begin to read, or 0."""
        self.read_backs.stall(run, stalled)
        self.read_backs.know(run, state)

    # People ------------------------------------------------------------------------------------------------------

    def tell(self, run: RunId, state: RunState, now: str) -> None:
        """Hand over what the run owes people; `now` is RFC 3339."""
        if self._notifier is not None:
            self._notifier.owe(run, still_news(state, now))

    def outcomes(self, run: RunId, state: RunState) -> tuple[NoticeOutcome, ...]:
        """What became of what the run owes, for its journal."""
        return () if self._notifier is None else self._notifier.outcomes(run, state.owed)

    def _notice(self, trip: Trip) -> Notice:
        message = explain(trip, self.settings)
        return Notice(kind=NoticeKind.AUTOMATION_HELD, id=trip.id, time=self._wall_time(), message=message, shared=True)

    def _offer(self, run: RunId | None, notice: Notice) -> None:
        if self._notifier is not None:
            self._notifier.offer(run, (notice,))

    def _settled(self, run: RunId | None, notice: Notice, outcome: NoticeOutcome) -> None:
        if self._telemetry is not None:
            self._telemetry.noticed(notice, delivered=outcome.delivered)
        if run is None:
            self.wake_all()
        else:
            self.wake(run)

    def _seen(self) -> Seen:
        broken, failing = frozenset(self._broken), frozenset(self._failing)
        return Seen(dict(self._states), broken, failing, breaker_open=self._breaker.trip is not None)

    def _wall_time(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="microseconds")


def _could_fail(state: RunState) -> bool:
    return bool(state.attempts) and not state.ended and state.phase is not RunPhase.FAILED


def _name(run: RunId) -> str:
    return f"{run.namespace}/{run.name}"
