"""Which directive counts, and what a world does about it: pure, the same on every rank."""

from dataclasses import dataclass
from enum import StrEnum

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Action, CheckpointReference, Directive, Reason, decode
from trimtab_contract.errors import ContractError


class Reception(StrEnum):
    """What became of the bytes found under the directive key."""

    ABSENT = "absent"
    KNOWN = "known"
    ACCEPTED = "accepted"
    STALE = "stale"
    FOREIGN = "foreign"
    SUPERSEDED = "superseded"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Letter:
    """The directive in force and how many were accepted so far, 0 for none."""

    count: int = 0
    wire: bytes = b""
    order: tuple[int, int] = (0, 0)


class Inbox:
    """Keeps the highest directive of one world.

    One thread offers, another reads `letter` and `superseded`: both are replaced whole, never changed in place.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self.letter = Letter()
        self.superseded = False

    def offer(self, wire: bytes | None) -> Reception:
        """Judge the bytes of the directive key; never raises."""
        if wire is None:
            return Reception.ABSENT
        if wire == self.letter.wire:
            return Reception.KNOWN
        try:
            directive = decode(Directive, wire)
        except ContractError:
            return Reception.UNREADABLE
        if directive.world != self._world:
            # A lower world's directive is a predecessor's word; a higher one means that this world is over.
            self.superseded = self.superseded or directive.world > self._world
            return Reception.SUPERSEDED if directive.world > self._world else Reception.FOREIGN
        if directive.order <= self.letter.order:
            return Reception.STALE
        self.letter = Letter(self.letter.count + 1, wire, directive.order)
        return Reception.ACCEPTED


@dataclass(frozen=True, slots=True)
class Standing:
    """What a world knows of itself at a step boundary."""

    attempt: int
    ready: bool
    """Whether the state of `attempt` is in place: initialised from the seed, or restored and acknowledged."""

    tried: frozenset[int]
    """Attempts whose restore was executed, with success or without."""

    step: int
    """The last completed step."""

    steps: int
    """The last step of the run."""

    ledger: SkipLedger
    self_held: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a directive changes nothing."""

    reason: Reason | None
    detail: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a directive means for a world as it stands: the action, and the restore to execute first."""

    action: Action
    restore: CheckpointReference | None = None
    initialise: bool = False


def instruct(standing: Standing, directive: Directive) -> Instruction | Refusal:
    """Translate a directive that was not obeyed before."""
    if directive.action is Action.STOP:
        return Instruction(Action.STOP)
    if directive.attempt < standing.attempt:
        return Refusal(
            Reason.RESTORE_REQUIRED,
            f"attempt {directive.attempt} is over: this world is at attempt {standing.attempt}; name a new attempt",
        )
    if directive.attempt == standing.attempt and standing.ready:
        return _go_on(standing, directive)
    return _begin(standing, directive)


def _begin(standing: Standing, directive: Directive) -> Instruction | Refusal:
    """A directive of an attempt whose state is not in place."""
    untouched = not standing.ready and not standing.tried
    if directive.restore is None and untouched:
        return Instruction(directive.action, initialise=directive.action is Action.RUN)
    if directive.restore is not None and directive.action is Action.HOLD:
        return Instruction(Action.HOLD, restore=None if directive.attempt in standing.tried else directive.restore)
    return Refusal(
        Reason.RESTORE_REQUIRED,
        f"attempt {directive.attempt} has no restored state: send Hold with restore and wait for Restored",
    )


def _go_on(standing: Standing, directive: Directive) -> Instruction | Refusal:
    """A directive of the attempt in progress."""
    if not standing.ledger.agrees_up_to(SkipLedger.of(directive.skip), standing.step):
        window = standing.ledger.window_of_step(max(standing.step, 1))
        return Refusal(
            Reason.RANGE_ALREADY_TRAINED,
            f"skip {[list(pair) for pair in directive.skip]} changes windows up to {window}, which were trained",
        )
    if directive.action is Action.FINISH and standing.step < standing.steps:
        return Refusal(None, f"Finish at step {standing.step}: the run has {standing.steps} steps")
    if directive.action is Action.RUN and standing.self_held and directive.release != standing.step:
        return Instruction(Action.HOLD)
    return Instruction(directive.action)
