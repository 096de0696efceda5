"""What every rank of a world knows of itself; changed only at step boundaries, and on all ranks alike."""

from dataclasses import dataclass, field

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference, Directive, OnNonFinite, ReplicaReport

from trimtab_trainer.directives import Standing
from trimtab_trainer.optim import RateOverride


@dataclass(slots=True)
class WorldState:
    """The situation of a world between two steps."""

    attempt: int
    steps: int
    ready: bool = False
    tried: set[int] = field(default_factory=set[int])
    step: int = 0
    ledger: SkipLedger = field(default_factory=SkipLedger)
    directive: Directive | None = None
    """The directive last obeyed."""

    restored: CheckpointReference | None = None
    """The checkpoint this attempt began with."""

    self_held: bool = False
    """Whether the world holds by itself after a non-finite step."""

    withheld_in_a_row: int = 0
    replicas: ReplicaReport | None = None
    """The last comparison since the state came into place."""

    finished: bool = False
    """Whether the final checkpoint of this attempt was asked for."""

    @property
    def order(self) -> tuple[int, int]:
        """The `(epoch, seq)` obeyed, zeros before the first."""
        return (0, 0) if self.directive is None else self.directive.order

    @property
    def replicas_differ(self) -> bool:
        """Whether a comparison found a difference: no checkpoint may be taken any more."""
        return self.replicas is not None and not self.replicas.agree

    @property
    def holds_on_nonfinite(self) -> bool:
        """Whether a non-finite step makes the world hold by itself."""
        return self.directive is not None and self.directive.on_nonfinite is OnNonFinite.HOLD

    @property
    def in_incident(self) -> bool:
        """Whether the state is suspect: an incident is open, or the world holds by itself."""
        return self.self_held or (self.directive is not None and self.directive.incident is not None)

    @property
    def rate_override(self) -> RateOverride | None:
        """The learning-rate override in force."""
        if self.directive is None or self.directive.lr is None:
            return None
        return RateOverride(self.directive.lr.scale, self.directive.lr.until_step)

    def standing(self) -> Standing:
        """The part of the situation that decides what a directive means."""
        return Standing(
            attempt=self.attempt,
            ready=self.ready,
            tried=frozenset(self.tried),
            step=self.step,
            steps=self.steps,
            ledger=self.ledger,
            self_held=self.self_held,
        )

    def restored_to(self, checkpoint: CheckpointReference, step: int, ledger: SkipLedger) -> None:
        """A checkpoint is in place: nothing known about the former state holds any more."""
        self.ready = True
        self.restored = checkpoint
        self.step = step
        self.ledger = ledger
        self.self_held = False
        self.withheld_in_a_row = 0
        self.replicas = None
        self.finished = False
