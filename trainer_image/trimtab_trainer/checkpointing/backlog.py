"""Whether checkpoints get stored as they are due, in a sentence for people: what is lost grows until one does."""

from dataclasses import dataclass

from trimtab_trainer.checkpointing.events import CheckpointBehind, CheckpointEvent, Saved, SaveFailed, SaveRefused
from trimtab_trainer.checkpointing.reasons import SaveRefusal

_REFUSED = {
    SaveRefusal.NON_FINITE: "the state is not finite",
    SaveRefusal.REPLICA_MISMATCH: "the replicas differ",
}


@dataclass(slots=True)
class Backlog:
    """Checkpoints that were left out or failed since the last one that was stored."""

    sentence: str = ""
    """Empty while all is well."""

    _missed: int = 0
    _step: int = 0
    _attempt: int = 0
    _stored: int | None = None

    def note(self, event: CheckpointEvent, attempt: int) -> None:
        """Take one event of the checkpoints into account, as it happened in this attempt.

        What becomes of a suspect state, from which nobody goes on, is neither a gain nor a loss.
        """
        if isinstance(event, (Saved, SaveFailed, SaveRefused, CheckpointBehind)) and event.trigger == "Suspect":
            return
        if isinstance(event, Saved):
            self._stored = event.reference.step
            # One that was on its way before the first was left out does not show that the store keeps up again.
            if attempt != self._attempt or event.reference.step > self._step:
                self._missed, self.sentence = 0, ""
        elif isinstance(event, CheckpointBehind):
            why = f"{event.pending} before it are still on their way to the store"
            self._miss(event.step, attempt, f"the checkpoint after step {event.step} was left out: {why}")
        elif isinstance(event, SaveFailed):
            self._miss(event.step, attempt, f"the checkpoint after step {event.step} was not stored: {event.detail}")
        elif isinstance(event, SaveRefused):
            told = f"{_REFUSED[event.reason]} ({event.detail})"
            self._miss(event.step, attempt, f"the checkpoint after step {event.step} was not stored: {told}")

    def leave_out(self, step: int, attempt: int, why: str) -> None:
        """A checkpoint that was due is not even tried, for the state is none to go on from."""
        self._miss(step, attempt, f"the checkpoint after step {step} was left out: {why}")

    def _miss(self, step: int, attempt: int, what: str) -> None:
        self._step, self._attempt = step, attempt
        self._missed += 1
        last = "none is stored yet" if self._stored is None else f"the newest stored is that after step {self._stored}"
        self.sentence = f"{what}; {self._missed} missed in a row, {last}"
