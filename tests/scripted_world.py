"""A run in memory, tick by tick: the real journal, state machine and rules of obedience; trainer and pods are played.

Nothing here waits or is random. `ScriptedRun` is everything outside the operator (journal bucket, bus, pods, acks,
records, checkpoints) and checks, at every act, what must never happen.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from forks import rebound
from memory_journal import MemoryJournal
from played_trainer import RUN, Line, PlayedWorld, Saved, Scenario
from scripted_acts import Act, Killed
from scripted_policy import BAD, HEALTHY, latch_of, limits_of, policy_of, settings_of
from trimtab_contract.directives import (
    Ack,
    AckState,
    CheckpointReference,
    Diagnose,
    Directive,
    decode,
    encode,
)
from trimtab_contract.evidence import ProbeEvidence
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.adapters.ports import KubernetesObject
from trimtab_operator.errors import (
    BusUnavailable,
    ClusterUnavailable,
    Conflict,
    Fenced,
    OperatorError,
)
from trimtab_operator.incidents import Latch, Vitals, WithheldStep
from trimtab_operator.journal_fold import fold
from trimtab_operator.observation import (
    Acks,
    MissingMetric,
    NoticeOutcome,
    Observation,
    Pods,
    PodsState,
    Request,
)
from trimtab_operator.run_state import (
    AcceptedGuard,
    AutomationHold,
    Checkpoint,
    CheckpointState,
    JournalAction,
    RequestAction,
    RunPhase,
    RunState,
)
from trimtab_trainer.directives import Inbox

FOR_RECORDS = 3
DIAGNOSIS_TICKS = 5
"""How long a held world may measure."""
FINAL_CHECK_TICKS = 4
"""How long a finished run waits for its last checkpoint to be read back."""

_T = TypeVar("_T")


class ScriptedRun:
    """Everything outside the operator, and the invariants."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.store = MemoryJournal(self)
        self.bus: bytes | None = None
        self.made: set[tuple[str, str]] = set()
        """The objects that worlds need, by kind and name, and the Redis user."""
        self.lease_object: KubernetesObject | None = None
        self.anchor_object: KubernetesObject | None = None
        self.anchored = 0
        """The newest record that an anchor ever knew."""
        self.versions = 0
        self.worlds: dict[int, PlayedWorld] = {}
        self.saved: dict[str, Saved] = {}
        self.acks: list[Ack] = []
        self.records: dict[tuple[int, int], Line] = {}
        self.trained: list[tuple[int, int, int]] = []
        self.suspects: dict[tuple[int, tuple[int, int]], tuple[int, ProbeEvidence]] = {}
        """By attempt and windows: the tick at which a held world began to measure, and what it found."""
        self.refusals: list[str] = []
        self.violations: list[str] = []
        self.announced: list[JournalRecord] = []
        self.ticks = 0
        self.generation = 1
        self.policy_generation = 1
        self.suspend = False
        self.missing: tuple[MissingMetric, ...] = ()
        self.automation: AutomationHold | None = None
        self.notices: tuple[NoticeOutcome, ...] = ()
        self.on_record: Callable[[JournalRecord], None] = lambda _record: None
        self.operations = 0
        self.effects: list[int] = []
        """The numbers of the acts that the trainer or its pods feel."""
        self.on_act: Callable[[Act], None] | None = None
        """Told of every act as soon as it is done."""
        self.kills: frozenset[tuple[int, str]] = frozenset()
        self.opened_at: int | None = None
        """The number of operations before the first incident."""
        self.requests: list[Request] = []
        self.stronger: Latch | None = None
        """What a stronger rule finds, when a test says so."""
        self.state = RunState()
        """The fold of the journal as a reader sees it."""
        self.under_way: list[Callable[[], object]] = []
        """What frozen operators were about to do."""
        self.highest = (0, 0)
        self.intended: set[bytes] = set()
        """The directives that the journal holds."""
        self._judged: dict[tuple[int, frozenset[int]], tuple[int, tuple[int, ...], Latch | None]] = {}

    # What may interrupt an operator ---------------------------------------------------------------------------------

    def fork(self) -> "ScriptedRun":
        """The same run, to be continued in another way."""
        run = rebound(self, on_act=None)
        run.store = rebound(self.store, _run=run)
        run.worlds = {
            number: rebound(world, run=run, inbox=copy(world.inbox), tried=set(world.tried))
            for number, world in self.worlds.items()
        }
        return run

    def operation(
        self,
        act: Callable[[], _T],
        *,
        away: type[OperatorError],
        denied: type[OperatorError],
        ends_turn: bool = True,
        tells_apart: bool = False,
    ) -> _T:
        """One append or one write of an effect, and the ways in which it can go wrong.

        before, after: the process dies around it. lost: it is done, and no reply comes. undone: it is not done, and
        that is what the reply says. denied: it is done, and the reply says that it was refused. frozen: the process
        freezes with the act under way, which is done when it wakes; until then another one may have taken its place.
        forgotten: it is not done, and the reply says that it is, which only Redis and the pods may do.
        """
        number = self.operations
        self.operations += 1
        if (number, "before") in self.kills:
            raise Killed
        if (number, "frozen") in self.kills:
            self.under_way.append(act)
            raise Killed
        if (number, "undone") in self.kills or self.refuses(away):
            raise away("it was not done")
        result = act()
        if self.on_act is not None:
            self.on_act(Act(number, ends_turn, issubclass(denied, Fenced), tells_apart))
        if (number, "after") in self.kills:
            raise Killed
        if (number, "lost") in self.kills:
            raise away("the reply was lost")
        if (number, "denied") in self.kills:
            raise denied("it was refused")
        return result

    def _keeps(self) -> bool:
        """Whether what this act says is done is done."""
        number = self.operations - 1
        self.effects.append(number)
        return (number, "forgotten") not in self.kills

    def refuses(self, away: type[OperatorError]) -> bool:
        """Whether what answers with this error when it is away is away now."""
        return False

    def clock(self) -> str:
        """Wall time: one second a tick."""
        return _instant(self.ticks)

    # What the operator's effects do -----------------------------------------------------------------------------------

    def publish(self, directive: Directive) -> tuple[int, int]:
        """The order of the directive that is in force now."""

        def write() -> tuple[int, int]:
            wire = encode(directive)
            if wire not in self.intended:
                self.violations.append(f"directive {directive.order} was published without an earlier intent")
            stored = decode(Directive, self.bus).order if self.bus is not None else (0, 0)
            if stored < directive.order and self._keeps():
                self.bus = wire
            return max(stored, directive.order)

        return self.operation(write, away=BusUnavailable, denied=Fenced)

    def create_job(self, world: int, attempt: int) -> None:
        def write() -> None:
            if world in self.worlds:
                return
            starts = [
                one for one in self.announced if one.action == JournalAction.START_WORLD and one.phase is Phase.INTENT
            ]
            if not any(directive_of((one.after or {})["directive"]).world == world for one in starts):
                self.violations.append(f"world {world} was created without an earlier intent")
            if any(one.alive or one.ending for one in self.worlds.values()):
                self.violations.append(f"world {world} was created while another one lives")
            if self._keeps():
                self.worlds[world] = PlayedWorld(self, world, attempt, Inbox(world))

        self.operation(write, away=ClusterUnavailable, denied=Conflict)

    def end_pods(self, world: int) -> None:
        def write() -> None:
            self.worlds[world].told = self.worlds[world].told or self._keeps()

        self.operation(write, away=ClusterUnavailable, denied=Conflict)

    # What the trainer does --------------------------------------------------------------------------------------------

    def acked(
        self, world: PlayedWorld, state: AckState, *, order: tuple[int, int] | None = None, **fields: Any
    ) -> None:
        epoch, seq = order or (world.directive.order if world.directive else (0, 0))
        self.acks.append(
            Ack(
                state=state,
                epoch=epoch,
                seq=seq,
                world=world.number,
                attempt=world.attempt,
                ranks=2,
                hosts=("a", "b"),
                step=world.step,
                progress=world.progress,
                time=float(self.ticks),
                **fields,
            )
        )

    def published(self, attempt: int, step: int, line: Line) -> None:
        if (attempt, step) in self.records:
            self.violations.append(f"step {step} of attempt {attempt} was trained twice")
        self.records[attempt, step] = line
        self.trained.append((attempt, step, line.window))
        live = [world.number for world in self.worlds.values() if world.alive and world.training]
        if len(live) != 1:
            self.violations.append(f"worlds {live} train at the same time")

    def check_restore(self, directive: Directive, target: CheckpointReference) -> None:
        """A restore only from a committed or verified checkpoint of the lineage that the journal knew."""
        state = self.state
        known = state.checkpoint(target.key)
        if known is None or known.reference != target or known.state is CheckpointState.QUARANTINED:
            self.violations.append(f"attempt {directive.attempt} restores {target.key}, which nobody trusts")
        elif not _survived(state, directive.attempt, known):
            self.violations.append(f"attempt {directive.attempt} restores {target.key} of an abandoned attempt")

    def measured(self, world: PlayedWorld, diagnose: Diagnose) -> None:
        """A held world measures its own state, forward only."""
        nonfinite = {
            line.window
            for (attempt, step), line in self.records.items()
            if line.nonfinite and (attempt, step) not in self.scenario.glitches
        }
        usual = BAD if world.spoiled else HEALTHY

        def loss(window: int) -> float | None:
            return None if window in nonfinite else BAD if window in self.scenario.damaged else usual

        first, last = diagnose.windows
        probe = ProbeEvidence(
            attempt=world.attempt,
            state=None,
            windows=tuple((window, loss(window)) for window in range(first, last + 1)),
            control=tuple((window, loss(window)) for window in diagnose.control),
        )
        self.suspects.setdefault((world.attempt, diagnose.windows), (self.ticks, probe))

    # What is seen ----------------------------------------------------------------------------------------------------

    def written(self, record: JournalRecord, head: str) -> None:
        """A record is in the journal."""
        self.announced.append(record)
        if (record.seq, record.prev) != (self.state.seq + 1, self.state.head):
            self.violations.append(f"record {record.seq} does not continue the one before it")
        stale = record.actor.epoch < self.state.epoch
        self.state = replace(self.state, seq=record.seq, head=head) if stale else fold(self.state, record, head)
        if (wire := (record.after or {}).get("directive")) is not None:
            self.intended.add(encode(directive_of(wire)))
        if record.action == JournalAction.INCIDENT_OPENED and self.opened_at is None:
            self.opened_at = self.operations - 1
        ends = record.action in {JournalAction.INCIDENT_CLOSED, JournalAction.COMPLETED}
        if ends and record.phase is not Phase.RESULT and self.anchored != record.seq - 1:
            self.violations.append(f"{record.action} was written before all that led to it was anchored")
        answers = self.scenario.answers[len(self.requests) :]
        if answers and answers[0][0] == record.action and record.phase is not Phase.RESULT:
            _, action, *wishes = answers[0]
            self.ask(action, **({"wishes": wishes[0]} if wishes else {}))
        self.on_record(record)

    def ask(self, action: str, **changes: Any) -> None:
        """A person creates a RunRequest; an approval names the plan that is shown, unless it names another."""
        uid = f"request-{len(self.requests) + 1}"
        incident = self.state.incident
        if action == "Approve" and incident is not None and incident.plan is not None:
            changes.setdefault("plan_hash", incident.plan.hash)
        asked: dict[str, Any] = {"uid": uid, "name": uid, "by": "ada", "reason": "seen and understood", **changes}
        self.requests.append(Request(action=RequestAction(action), **asked))

    @property
    def world(self) -> PlayedWorld:
        """The newest world."""
        return self.worlds[max(self.worlds)]

    @property
    def living(self) -> list[int]:
        """The worlds that have processes."""
        return [number for number, world in self.worlds.items() if world.alive]

    def tick(self) -> None:
        """Time passes for every world."""
        self.ticks += 1
        stored = decode(Directive, self.bus).order if self.bus is not None else self.highest
        if stored < self.highest:
            self.violations.append(f"the directive {stored} is in force after {self.highest}")
        self.highest = max(self.highest, stored)
        for world in self.worlds.values():
            world.tick()

    def observe(self, state: RunState, acks: Acks, pods: Pods) -> Observation:
        """What an operator sees; it looked at the pods earlier."""
        judged, firing = self._judge(state)
        known = {one.reference.key for one in state.checkpoints}
        unknown = [reference for reference in acks.saved if reference.key not in known]
        world = self.worlds.get(state.world.number) if state.world else None
        if world is not None and world.message is not None and world.message.saved is not None:
            told = world.message.saved
            if told.key not in known and told not in unknown:
                unknown.append(told)
        guard = policy_of(self.policy_generation)
        return Observation(
            job=RUN.name,
            now=self.clock(),
            limits=limits_of(self.scenario, self.generation, self.suspend),
            acks=acks,
            pods=pods,
            hung="no progress" if world is not None and world.stalled >= 5 else "",
            guard=AcceptedGuard(
                policies=(guard,), mode="Enforce", from_attempt=max(1, state.attempt), from_step=judged + 1
            ),
            judged_step=judged,
            green_step=judged,
            firing=firing,
            missing_metrics=self.missing,
            claims=tuple(self.scenario.claim(one, self.saved[one.key].attempt) for one in unknown),
            probe=self._probe(state, acks),
            **self._suspect(state, acks),
            withheld=self._withheld(state, judged),
            probation=self._vitals(state),
            hold_on_nonfinite=self.scenario.holds_on_nonfinite,
            final_check_over=acks.finished is not None and self.ticks - acks.finished.time >= FINAL_CHECK_TICKS,
            requests=tuple(self.requests),
            remediation=settings_of(self.scenario),
            last_step=self.scenario.steps,
            automation_held=self.automation,
            notices=self.notices,
        )

    def pods(self, state: RunState) -> Pods:
        """The newest world as Kubernetes shows it now."""
        if state.world is None:
            return Pods()
        number = state.world.number
        world = self.worlds.get(number)
        if world is None:
            return Pods(world=number)
        messages = (world.message,) if world.message else ()
        alive = world.alive or world.ending > 0
        if not alive:
            return Pods(world=number, state=PodsState.GONE, failed=True, evicted=world.evicted, messages=messages)
        names = () if world.told else (f"demo-{number}-0",)
        ending = world.told or not world.alive
        return Pods(world=number, state=PodsState.ENDING if ending else PodsState.LIVE, names=names, messages=messages)

    def _judge(self, state: RunState) -> tuple[int, Latch | None]:
        """Three bad records in a row, or one that is non-finite or of differing replicas, fire; the first stays.

        Where a person let the run go on, the row begins anew and what fired before is settled.
        """
        if not state.attempts or not state.guards:
            return 0, None
        attempt = state.attempts[-1]
        streak: tuple[int, ...] = ()
        firing: Latch | None = None
        judged = attempt.branch_step
        resumed = state.resumed(attempt.number)
        if (attempt.number, resumed) in self._judged:
            judged, streak, firing = self._judged[attempt.number, resumed]
        while (line := self.records.get((attempt.number, judged + 1))) is not None:
            judged += 1
            streak = () if judged - 1 in resumed else streak
            streak = (*streak, judged) if line.bad else ()
            if state.settled(attempt.number, judged):
                continue
            if firing is None and len(streak) >= FOR_RECORDS:
                firing = self._latch("loss-spike", "loss", attempt.number, min(streak), judged)
            if firing is None and line.mismatch:
                firing = self._latch("replica-mismatch", "replica_mismatch", attempt.number, judged, judged)
            if firing is None and line.nonfinite and self.scenario.fires_on_nonfinite:
                firing = self._latch("non-finite", "nonfinite", attempt.number, judged, judged)
        self._judged[attempt.number, resumed] = (judged, streak, firing)
        stronger = self.stronger
        return judged, stronger if stronger is not None and stronger.attempt == attempt.number else firing

    def latch(self, rule: str, metric: str, attempt: int) -> Latch:
        """A rule that fires on the newest record of an attempt."""
        step = max(step for number, step in self.records if number == attempt)
        return self._latch(rule, metric, attempt, step, step)

    def _latch(self, rule: str, metric: str, attempt: int, first: int, fired: int) -> Latch:
        flagged = (self.records[attempt, first].window, self.records[attempt, fired].window)
        return latch_of(self.scenario, rule, metric, (attempt, first, fired), flagged)

    def _probe(self, state: RunState, acks: Acks) -> ProbeEvidence | None:
        diagnosed, incident = acks.diagnosed, state.incident
        if diagnosed is None or incident is None or diagnosed.attempt != incident.restoring_attempt:
            return None
        directive = state.directive
        if directive is None or directive.diagnose is None or directive.restore is None:
            return None
        first, last = directive.diagnose.windows
        control = BAD if directive.restore.step in self.scenario.control_bad else HEALTHY
        return ProbeEvidence(
            attempt=diagnosed.attempt,
            state=directive.restore,
            windows=tuple(
                (window, BAD if window in self.scenario.damaged else HEALTHY) for window in range(first, last + 1)
            ),
            control=tuple((window, control) for window in directive.diagnose.control),
        )

    def _suspect(self, state: RunState, acks: Acks) -> dict[str, Any]:
        """What is known of the measurement on the held state."""
        directive, diagnosed = state.directive, acks.diagnosed
        if state.phase is not RunPhase.DIAGNOSING or directive is None or directive.diagnose is None:
            return {}
        began, probe = self.suspects.get((state.attempt, directive.diagnose.windows), (self.ticks, None))
        late = {"diagnosis_late": self.ticks - began >= DIAGNOSIS_TICKS}
        answered = diagnosed is not None and diagnosed.attempt == state.attempt and diagnosed.checkpoint is None
        if not answered or self.scenario.diagnosis == "Late":
            return late
        if self.scenario.diagnosis == "Unusable":
            return {"suspect_problem": "the probe's SHA-256 is not the one the trainer named"}
        return {"suspect": probe}

    def _vitals(self, state: RunState) -> Vitals | None:
        ends = self.scenario.vitals
        extensions = state.incident.extensions if state.incident is not None else 0
        return ends[min(extensions, len(ends) - 1)] if ends else None

    def _withheld(self, state: RunState, judged: int) -> WithheldStep | None:
        line = self.records.get((state.attempt, judged))
        if line is None or not line.nonfinite:
            return None
        return WithheldStep(step=judged, window=line.window, loss_finite=False)


@lru_cache(None)
def _instant(ticks: int) -> str:
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=ticks)).isoformat()


def directive_of(wire: Any) -> Directive:
    """The directive in a journal record."""
    return msgspec.convert(wire, type=Directive)


def _survived(state: RunState, attempt: int, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint belonged to the history that `attempt` continues."""
    before = tuple(one for one in state.attempts if one.number < attempt)
    return replace(state, attempts=before).owner(checkpoint.reference.step) == checkpoint.attempt
