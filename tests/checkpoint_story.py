"""One run that is trained attempt after attempt in real worlds, and what of its steps must repeat."""

from typing import Any

from trainer_world import Run
from trimtab_contract.directives import AckState, Action, CheckpointReference

Steps = dict[int, dict[str, float]]

EXACT = ("loss", "loss_max", "grad_norm", "clip_ratio", "lr", "update_rms", "loss_scale")
"""The numbers that a step repeats bit for bit in a world of as many ranks."""


class Story:
    """One run, attempt after attempt; `number` is that of the world which is up."""

    def __init__(self, run: Run, steps: int, names: tuple[str, ...] = EXACT) -> None:
        self.run, self.steps, self.names, self.attempt, self.number = run, steps, names, 0, 0

    def train(self, target: CheckpointReference | None = None, skip: tuple[tuple[int, int], ...] = ()) -> Steps:
        """One attempt from a checkpoint to the last step: the numbers of every step that must repeat."""
        self.attempt += 1
        at: dict[str, Any] = {"world": self.number, "attempt": self.attempt, "restore": target, "skip": skip}
        if target is not None:
            self.run.ack(AckState.RESTORED, self.run.direct(Action.HOLD, **at))
        self.run.direct(Action.RUN, **at)
        self.run.ack(AckState.FINISHED, attempt=self.attempt)
        self.run.record(self.steps, self.attempt)
        records = self.run.records(self.attempt)
        return {step: {name: record.scalars[name] for name in self.names} for step, record in records.items()}

    def windows(self, attempt: int) -> dict[int, int]:
        """The window of each step, on which the logs of all ranks agree."""
        found = {(entry.step, entry.window) for _, entry in self.run.batches() if entry.attempt == attempt}
        assert len(found) == len({step for step, _ in found})
        return dict(found)

    def contents(self, attempt: int) -> dict[int, str]:
        """The hash of all bytes of the window that comes after each checkpoint."""
        return {one.step: one.evaluation.samples_sha256 for one in self.run.manifests() if one.attempt == attempt}


def later(steps: Steps, after: int) -> Steps:
    """The steps behind one."""
    return {step: numbers for step, numbers in steps.items() if step > after}


def far_apart(ours: Steps, theirs: Steps, name: str = "loss") -> float:
    """The largest relative distance between a number of the same steps."""
    assert ours.keys() <= theirs.keys()
    return max(abs(ours[step][name] / theirs[step][name] - 1) for step in ours)
