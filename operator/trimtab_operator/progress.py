"""Whether a world gets on, against the operator's own monotonic clock. Nothing here reads a clock itself."""

from trimtab_contract.directives import Ack, AckState, Directive

HELD_DEADLINE_SECONDS = 60.0
"""Held ranks tick every second, so a held world that stands still is found sooner."""
FINAL_CHECK_SECONDS = 120.0
"""How long a run that is trained and judged waits for its last checkpoint to be read back."""
DIAGNOSIS_SECONDS = 300.0
"""How long a held world may take to measure the suspected windows before the rollback goes on without."""

_HELD = frozenset({AckState.HOLDING, AckState.FINISHED, AckState.RESTORED, AckState.DIAGNOSED})


class ProgressClock:
    """Counts the time without progress, and only time in which Redis answered.

    Restarts at every change of progress, at every new world and at every reconnect.
    """

    def __init__(self, startup_deadline: float, progress_deadline: float) -> None:
        self.startup_deadline = startup_deadline
        self.progress_deadline = progress_deadline
        self._mark: tuple[int, int, int] | None = None
        self._counted = 0.0
        self._last: float | None = None

    def observe(self, now: float, world: int, latest: Ack | None, *, bus_answers: bool) -> str:
        """Take note of what is seen at monotonic time `now`; the sentence that says why the world hangs, or nothing."""
        if not bus_answers:
            self._last = None
            self._counted = 0.0
            return ""
        heard = latest if latest is not None and latest.world == world else None
        mark = (world, heard.attempt if heard else 0, heard.progress if heard else -1)
        if mark != self._mark or self._last is None:
            self._mark, self._counted, self._last = mark, 0.0, now
            return ""
        self._counted += now - self._last
        self._last = now
        return self._verdict(heard)

    def _verdict(self, heard: Ack | None) -> str:
        if heard is None:
            if self._counted > self.startup_deadline:
                return f"no word from the world within the startup deadline of {self.startup_deadline:.0f} s"
            return ""
        held = heard.state in _HELD
        deadline = min(self.progress_deadline, HELD_DEADLINE_SECONDS) if held else self.progress_deadline
        if self._counted > deadline:
            return f"no progress for {deadline:.0f} s in state {heard.state} at step {heard.step}"
        return ""


class FinalCheckClock:
    """Counts how long a finished world has had to read its last checkpoint back."""

    def __init__(self) -> None:
        self._told: tuple[int, int, int] | None = None
        self._since = 0.0

    def observe(self, now: float, finished: Ack | None, judged_step: int) -> bool:
        """Take note of what is known at monotonic time `now`; whether the time is up.

        It begins when the last step is judged up to, as `judged_step` says: until then the run waits for that anyway.
        """
        over = finished is not None and judged_step >= finished.step
        told = (finished.world, finished.attempt, finished.step) if finished is not None and over else None
        if told != self._told:
            self._told, self._since = told, now
        return told is not None and now - self._since >= FINAL_CHECK_SECONDS


class DiagnosisClock:
    """Counts how long a held world has been asked to measure, and only time in which Redis answered.

    Begins anew with the operator, so one that is killed again and again waits longer, and nobody waits less.
    """

    def __init__(self) -> None:
        self._asked: tuple[int, tuple[int, int]] | None = None
        self._counted = 0.0
        self._last: float | None = None

    def observe(self, now: float, directive: Directive | None, *, waits: bool, bus_answers: bool) -> bool:
        """Take note of what is known at monotonic time `now`; whether the answer is late.

        `waits` says whether the run waits for a measurement; a directive that only re-affirms asks nothing new.
        """
        diagnose = directive.diagnose if directive is not None and waits else None
        asked = (directive.attempt, diagnose.windows) if directive is not None and diagnose is not None else None
        if asked != self._asked:
            self._asked, self._counted, self._last = asked, 0.0, None
        if asked is None:
            return False
        if self._last is not None and bus_answers:
            self._counted += now - self._last
        self._last = now if bus_answers else None
        return self._counted >= DIAGNOSIS_SECONDS


class TrainingClock:
    """Counts the seconds in which a run trained and Redis answered: only then does a missing record mean anything."""

    def __init__(self) -> None:
        self._counted = 0.0
        self._last: float | None = None

    def observe(self, now: float, *, training: bool) -> float:
        """The seconds counted up to monotonic time `now`; `training` says whether the run trains within earshot."""
        if training and self._last is not None:
            self._counted += now - self._last
        self._last = now if training else None
        return self._counted
