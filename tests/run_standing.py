"""What the rest of a scripted run depends on, and what its past will be judged by: two runs with it go on alike.

An interruption leaves traces that nothing decides by: epochs, sequence numbers, hashes, times, and words said twice.
They are left out, so that a run which has come back to the undisturbed one is known to have. So is the order in which
records, steps and words came among each other: whoever looks back (`run_checks`, an operator that takes over) looks at
each of these by itself.
"""

import math
import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from played_trainer import PlayedWorld
from scripted_operator import TIMER_SECONDS, Playing, ScriptedOperator
from scripted_world import DIAGNOSIS_TICKS, FINAL_CHECK_TICKS, ScriptedRun, directive_of
from trimtab_contract.directives import Ack, AckState, Directive, decode
from trimtab_contract.journal import JournalRecord
from trimtab_operator.observation import Acks
from trimtab_operator.run_state import CheckpointState, JournalAction, RunState

Standing = tuple[Any, ...]

_ORDER = re.compile(rb'"epoch":(\d+),"seq":(\d+)|"order":\[(\d+),(\d+)\]')
_TRACES = re.compile(
    rb'"20\d\d-[^"]*"|"(?:seq|opened_seq)":\d+|"(?:head|prev)":"[0-9a-f]*"'
    rb'|"(?:progress|time|epoch|issued_at)":[\d.]+|"cursor":"[\d-]+"|up to step \d+'
)
_LASTING = itemgetter(
    *(at for at, name in enumerate(Ack.__struct_fields__) if name not in {"epoch", "seq", "progress", "time"})
)
"""The fields of an acknowledgement that are no traces."""
_HEARD = attrgetter(*(one.name for one in fields(Acks) if one.name != "cursor"))
_FOLDED = attrgetter(
    *(one.name for one in fields(RunState) if one.name not in {"owed", "failures", "epoch", "seq", "head"})
)
_CHECKPOINT_STATES = {state.value for state in CheckpointState}
_ORDINAL = tuple[int, int]


@dataclass
class Past:
    """The past of a run as later records and the final check look at it, kept up as the run goes on."""

    records: int = 0
    acks: int = 0
    trained: int = 0
    story: int = 0
    """Of every record what `run_checks` looks at; like those that follow a hash, and of the sequence."""
    ordered: int = 0
    """Of every directive, but those that only affirm."""
    history: int = 0
    """Of every trained step."""
    heard: int = 0
    """Of every word of a trainer, but those that it had just said."""
    sayings: int = 0
    orders: dict[_ORDINAL, int] | None = None
    """Which saying a directive is: one that only affirms another one under a new epoch is the same."""
    last: Directive | None = None
    said: Standing = ()
    folds: dict[int, tuple[RunState, Standing]] = field(default_factory=dict[int, tuple[RunState, Standing]])
    texts: dict[int, tuple[object, bytes]] = field(default_factory=dict[int, tuple[object, bytes]])
    """Folds and what they hold, written out, by their identity; shared by all runs of a search, as those values are."""

    def catch_up(self, run: ScriptedRun) -> None:
        """Take in what has happened since."""
        orders = self.orders = dict(self.orders or {})
        for record in run.announced[self.records :]:
            after = record.after or {}
            if (wire := after.get("directive")) is not None:
                directive = directive_of(wire)
                if self.last is None or not directive.reaffirms(self.last):
                    self.sayings += 1
                    self.last = directive
                    self.ordered = hash((self.ordered, directive.action, directive.attempt, directive.skip))
                orders[directive.order] = self.sayings
            told = _told(record, run)
            if any(told):
                self.story = hash((self.story, record.action, *told))
        for attempt, step, window in run.trained[self.trained :]:
            self.history = hash((self.history, attempt, step, window, run.records[attempt, step]))
        for ack in run.acks[self.acks :]:
            said = self._said(ack, orders)
            if said != self.said:
                self.heard = hash((self.heard, said))
            if ack.state is not AckState.SAVED:
                self.said = said
        self.records, self.acks, self.trained = len(run.announced), len(run.acks), len(run.trained)

    def saying(self, order: _ORDINAL | None) -> int:
        """The number of the directive with that order, 0 for none."""
        return (self.orders or {}).get(order, 0) if order is not None else 0

    def plain(self, value: object) -> object:
        """A value of a fold without its traces."""
        if isinstance(value, int):
            return value
        if id(value) not in self.texts:
            self.texts[id(value)] = (value, _traceless(msgspec.json.encode(value), self))
        return self.texts[id(value)][1]

    @staticmethod
    def _said(ack: Ack, orders: dict[_ORDINAL, int]) -> Standing:
        step = ack.step if ack.state is not AckState.RUNNING else None
        place = (ack.world, ack.attempt, step, ack.state, orders.get((ack.epoch, ack.seq)))
        return (*place, ack.detail, ack.reason, ack.checkpoint, ack.by, ack.replicas, ack.nonfinite)


def _told(record: JournalRecord, run: ScriptedRun) -> Standing:
    """What the final check, and the story that is compared, look at in a record besides its directive."""
    after = record.after or {}
    incident = record.incident if record.action not in _CHECKPOINT_STATES else None
    identity = record.id if record.phase is not None else None
    latch, skip = after.get("latch"), after.get("skip")
    line = run.records.get((latch["attempt"], latch["fired_step"])) if latch is not None else None
    bad = line is not None and (line.bad or line.nonfinite or line.mismatch)
    found = (skip["first"], skip["last"]) if record.action == JournalAction.EXTENT_FOUND and skip else None
    fired = latch is not None and (bad, latch.get("asked") is not None)
    return record.phase, identity, incident, after.get("phase"), fired, found


def standing(playing: Playing, past: Past) -> Standing:
    """See above; `past` is brought up to now."""
    run, process = playing.run, playing.process
    past.catch_up(run)
    journal = process.journal
    unsettled: tuple[int, bytes] | None = vars(journal)["_unsettled"]
    state, bus = run.state, decode(Directive, run.bus) if run.bus is not None else None
    return (
        (past.story, past.ordered, past.history, past.heard),
        len(run.violations),
        len(run.refusals),
        _folded(state, past),
        _heard(process.acks, past),
        None if journal.state is state else _folded(journal.state, past),
        _seconds_left(state, run),
        (process.opened, journal.epoch == state.epoch, process.read - len(run.acks), process.besides),
        _timers(process, run),
        None if unsettled is None else (unsettled[0] in run.store.bodies, _traceless(unsettled[1], past)),
        bus and (past.saying(bus.order), state.directive is not None and bus.order == state.directive.order),
        tuple(_world(world, bus, past) for world in run.worlds.values()),
        (tuple(run.saved), tuple(sorted(run.made))),
        tuple((key, min(run.ticks - began, DIAGNOSIS_TICKS)) for key, (began, _) in run.suspects.items()),
        min(run.ticks - process.acks.finished.time, FINAL_CHECK_TICKS) if process.acks.finished else None,
        tuple((one.uid, one.action, one.plan_hash) for one in run.requests),
        (run.generation, run.policy_generation, run.suspend, playing.quiet),
    )


def _timers(process: ScriptedOperator, run: ScriptedRun) -> Standing:
    """What is held of the Lease and known of the anchor, and whether the timers fire in the next turn.

    A Lease that outlasts two more failed renewals is as good as one that outlasts more, for no schedule has a third.
    An anchor is behind as soon as a record is written, and when the timers fire it is written if it is.
    """
    lease, anchors = vars(process.lease), vars(process.anchors)
    left = math.ceil((lease["_valid_until"] - process.clock.seconds) / TIMER_SECONDS) - 1
    state, fresh = process.journal.state, run.anchor_object is None
    held = process.clock.waits, lease["_epoch"] > 0, lease["_held"] is run.lease_object, min(left, 2)
    tried = state.ended and anchors["_tried"] < process.clock.seconds
    return held, anchors["_anchored"][0] >= state.seq, tried, fresh, process.phase is state.phase


def _folded(state: RunState, past: Past) -> Standing:
    """The fold; whom people are told of later decides nothing."""
    known = past.folds.get(id(state))
    if known is None:
        known = past.folds[id(state)] = (state, tuple(past.plain(one) for one in _FOLDED(state)))
    return known[1]


def _heard(acks: Acks, past: Past) -> Standing:
    """What an operator heard."""
    return tuple(
        (past.saying((one.epoch, one.seq)), _LASTING(msgspec.structs.astuple(one))) if isinstance(one, Ack) else one
        for one in _HEARD(acks)
    )


def _seconds_left(state: RunState, run: ScriptedRun) -> float | None:
    if state.incident is None or not state.incident.deadline:
        return None
    return (datetime.fromisoformat(state.incident.deadline) - datetime.fromisoformat(run.clock())).total_seconds()


def _traceless(text: bytes, past: Past) -> bytes:
    def saying(found: re.Match[bytes]) -> bytes:
        epoch, seq = (found[1], found[2]) if found[1] is not None else (found[3], found[4])
        return b"#%d" % past.saying((int(epoch), int(seq)))

    return _TRACES.sub(b"", _ORDER.sub(saying, text))


def _world(world: PlayedWorld, bus: Directive | None, past: Past) -> Standing:
    letter, directive = world.inbox.letter, world.directive
    ordered = (
        past.saying(letter.order),
        letter.count > world.seen,
        past.saying(directive.order) if directive else None,
        directive is not None and bus is not None and directive.order == bus.order,
        world.inbox.superseded,
    )
    where = (world.number, world.attempt, world.step, world.ledger.ranges, world.restored, tuple(sorted(world.tried)))
    marks = (world.ready, world.training, world.self_held, world.spoiled, world.differs, world.unread, world.failure)
    end = (world.alive, world.hung, world.stalled, world.told, world.ending, world.evicted, repr(world.message))
    return (*ordered, *where, *marks, world.said[0], *end)
