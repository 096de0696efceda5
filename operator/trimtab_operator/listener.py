"""What one run says, through Redis and the archive behind it: acks and records, judged as they come, and the clocks.

Nothing here needs the API server, and nothing is written. The reconciler asks whether anything changed that a decision
may depend on.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from trimtab_contract.directives import AckState
from trimtab_contract.keys import RunId, ack_stream, metrics_stream

from trimtab_operator.adapters.ports import ACK_PAGE, Bus, CheckpointStore
from trimtab_operator.errors import BusUnavailable
from trimtab_operator.judge import Judge
from trimtab_operator.observation import Acks
from trimtab_operator.progress import DiagnosisClock, ProgressClock, TrainingClock
from trimtab_operator.records import BATCH, RecordFeed, Rejections
from trimtab_operator.run_state import RunPhase, RunState
from trimtab_operator.tasks import end_tasks

LISTEN_MILLISECONDS = 1000

_TRAINING = frozenset({RunPhase.WATCHING, RunPhase.PROBATION})
_STANDING = frozenset({AckState.HOLDING, AckState.FINISHED})


class RunListener:
    """Hears one run; `state` gives the fold of its journal and `store` its archive, as they are known now."""

    def __init__(
        self,
        run: RunId,
        bus: Bus,
        judge: Judge,
        state: Callable[[], RunState],
        store: Callable[[], CheckpointStore | None],
    ) -> None:
        self.acks = Acks()
        self.hung = ""
        """Why the world counts as hung, if it does."""
        self.late = False
        """Whether a diagnosis has taken longer than it may."""
        self._run = run
        self._bus = bus
        self._judge = judge
        self._state = state
        self._store = store
        self._rejections = Rejections(run)
        self._feed = RecordFeed(bus, run, self._rejections)
        self._progress: ProgressClock | None = None
        self._trained = TrainingClock()
        self._diagnosis = DiagnosisClock()
        self._bus_answers = True
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Something about the run changed: stop waiting."""
        self._woken.set()

    def rest(self) -> None:
        """What we were woken for is being looked at."""
        self._woken.clear()

    def give_deadlines(self, startup: float, progress: float) -> None:
        """How long a world may take, in seconds, to start and to make a step."""
        if self._progress is None:
            self._progress = ProgressClock(startup, progress)
        self._progress.startup_deadline, self._progress.progress_deadline = startup, progress

    async def wait(self) -> bool:
        """Wait until a stream has news or somebody woke us; True for the latter. Raises BusUnavailable."""
        if self._woken.is_set():
            return True
        state = self._state()
        streams = {ack_stream(self._run): self.acks.cursor}
        if state.attempt and not state.ended:
            streams[metrics_stream(self._run, state.attempt)] = self._feed.cursor
        woken = asyncio.ensure_future(self._woken.wait())
        news = asyncio.ensure_future(self._bus.wait(streams, LISTEN_MILLISECONDS))
        try:
            await asyncio.wait({woken, news}, return_when=asyncio.FIRST_COMPLETED)
            if news.done():
                self.hear(answers=True)
                news.result()
        except BusUnavailable:
            self.hear(answers=False)
            raise
        finally:
            await end_tasks(woken, news)
        return self._woken.is_set()

    def hear(self, *, answers: bool) -> None:
        """Redis that comes back may have forgotten users and directive: the run is looked at at once."""
        if answers and not self._bus_answers:
            self._woken.set()
        self._bus_answers = answers

    async def read(self) -> bool:
        """Take in acks and records; whether anything changed that a decision may depend on. Raises BusUnavailable."""
        before = (_said(self.acks), self.hung, self.late)
        await self.read_acks()
        await self.read_records()
        self._look_at_clocks()
        return before != (_said(self.acks), self.hung, self.late) or self._verdict_changed()

    def _look_at_clocks(self) -> None:
        state, now = self._state(), time.monotonic()
        world = state.world
        if self._progress is not None and world is not None and world.live:
            self.hung = self._progress.observe(now, world.number, self.acks.latest, bus_answers=self._bus_answers)
        self._judge.listen(self._trained.observe(now, training=self._trains(state)), state)
        diagnosing = state.phase is RunPhase.DIAGNOSING
        self.late = self._diagnosis.observe(now, state.directive, waits=diagnosing, bus_answers=self._bus_answers)

    def _trains(self, state: RunState) -> bool:
        """Whether records should be coming, and would be heard."""
        latest = self.acks.latest
        running = latest is not None and latest.state is AckState.RUNNING and latest.attempt == state.attempt
        return self._bus_answers and running and state.phase in _TRAINING

    def _verdict_changed(self) -> bool:
        state, firing = self._state(), self._judge.firing
        if firing is not None and (state.incident is None or state.incident.latch != firing):
            return True
        notes = ((f"{note.policy}/{note.rule}", note.attempt, note.step) for note in self._judge.notes)
        return any(note not in state.fired for note in notes) or self._milestone(state)

    def _milestone(self, state: RunState) -> bool:
        """A judged step at which remediation has something to decide, without any ack or firing."""
        judged, finished = self._judge.judged_step, self.acks.finished
        if finished is not None and finished.attempt == state.attempt and judged >= finished.step and not state.ended:
            return True
        return state.incident is not None and judged >= state.incident.probation_until

    async def read_acks(self) -> None:
        """Take in every ack there is; raises BusUnavailable."""
        state = self._state()
        while True:
            batch = await self._bus.acks(self._run, self.acks.cursor)
            for entry_id, ack in batch.acks:
                self.acks = self.acks.hear(entry_id, ack, state)
            self.acks = replace(self.acks, cursor=batch.cursor)
            self._rejections.add(batch.rejected)
            if len(batch.acks) + len(batch.rejected) < ACK_PAGE:
                return

    async def read_records(self) -> None:
        """Judge every record there is; raises temporary errors."""
        state, store = self._state(), self._store()
        if not state.attempts or not state.guards:
            return
        if self._judge.needs_loading(state) or self._feed.store is not store:
            segments, first = self._judge.wanted(state)
            self._feed.store = store
            self._judge.begin(state, await self._feed.surviving(segments, first))
            return
        while True:
            judged = self._judge.judged_step
            records = await self._feed.after(state.attempt, judged)
            self._judge.take(records, state)
            if len(records) < BATCH or self._judge.judged_step == judged:
                break
        last = self._last_told(state)
        self._judge.take(await self._feed.archived(state.attempt, self._judge.judged_step + 1, last), state)

    def _last_told(self, state: RunState) -> int:
        """The step up to which there must be records, though a bus that was emptied shows no gap; 0 for no step.

        A world that stands publishes nothing more, and one that is over has left its checkpoints at least.
        """
        told = self.acks.latest
        if told is not None and told.attempt == state.attempt and told.state in _STANDING:
            return told.step
        own = (one.reference.step for one in state.checkpoints if one.attempt == state.attempt)
        return max(own, default=0) if state.ended else 0


def _said(acks: Acks) -> tuple[object, ...]:
    """What of all acks a decision may depend on: progress alone changes nothing."""
    latest, heard = acks.latest, (acks.saved, acks.verified, acks.verify_failed, acks.refused)
    if latest is None:
        return heard
    state = (latest.state, latest.world, latest.attempt, latest.epoch, latest.seq, latest.reason, latest.checkpoint)
    return (*heard, *state)
