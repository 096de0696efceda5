"""What a run was really trained on, from the batch logs of its ranks. Pure.

The surviving history of a run is made of stretches of its attempts: each up to the step where its successor branched.
In it every window must appear exactly once, in order, except the skipped ones; and from the attempt on that skips a
window nobody may have trained on it again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.evidence import BatchLogEntry
from trimtab_contract.journal import JournalRecord
from trimtab_operator.run_state import Attempt, RunState

MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class ExactnessReport:
    """What the batch logs show.

    `windows` is the number of windows in the surviving history, `retrained` how many of them an abandoned attempt had
    seen before, `skipped` how many were left out.
    """

    ranks: int
    steps: int
    windows: int
    retrained: int
    skipped: int
    problems: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether every window was trained on exactly once, and no skipped one after it was skipped."""
        return not self.problems


def skipped_since(records: Iterable[JournalRecord]) -> dict[int, int]:
    """Every skipped window, and the first attempt that skips it, from the directives in the journal."""
    since: dict[int, int] = {}
    for record in records:
        directive = (record.after or {}).get("directive")
        if not directive:
            continue
        for first, last in directive["skip"]:
            for window in range(first, last + 1):
                since.setdefault(window, int(directive["attempt"]))
    return since


def trained_windows(
    logs: Mapping[int, Sequence[BatchLogEntry]],
    attempts: Sequence[Attempt],
    ledger: SkipLedger,
    steps: int,
    since: Mapping[int, int],
    ranks: int,
) -> ExactnessReport:
    """Compare each rank's log with what the journal says must have been trained on.

    `logs` maps rank to its entries, in any order; `steps` is the last step of the run; `since` is `skipped_since`. Of a
    run that continues another one, the steps before it are that run's.
    """
    problems = [f"rank {rank}: it has no batch log" for rank in range(ranks) if not logs.get(rank)]
    owner = RunState(attempts=tuple(attempts)).owner
    begun = attempts[0].branch_step if attempts and attempts[0].parent is None else 0
    abandoned: set[int] = set()
    windows: set[int] = set()
    for rank, entries in sorted(logs.items()):
        read, clashes = _by_step(rank, entries)
        problems += clashes
        problems += _forbidden(rank, entries, since)
        survived = {step: read.get((owner(step), step)) for step in range(begun + 1, steps + 1)}
        problems += _deviations(rank, survived, ledger)
        windows |= {entry.window for entry in survived.values() if entry is not None}
        abandoned |= {entry.window for (attempt, step), entry in read.items() if owner(step) != attempt}
    if len(problems) > MAX_PROBLEMS:
        problems = [*problems[:MAX_PROBLEMS], f"and {len(problems) - MAX_PROBLEMS} more"]
    return ExactnessReport(
        ranks=len(logs),
        steps=steps,
        windows=len(windows),
        retrained=len(abandoned & windows),
        skipped=sum(last - first + 1 for first, last in ledger.ranges),
        problems=tuple(problems),
    )


def _by_step(
    rank: int, entries: Iterable[BatchLogEntry]
) -> tuple[dict[tuple[int, int], BatchLogEntry], tuple[str, ...]]:
    """One entry per attempt and step; a withheld step that was computed again has read the same bytes twice."""
    read: dict[tuple[int, int], BatchLogEntry] = {}
    problems: list[str] = []
    for entry in entries:
        known = read.setdefault((entry.attempt, entry.step), entry)
        if known != entry:
            problems.append(
                f"rank {rank}: step {entry.step} of attempt {entry.attempt} read windows {known.window} "
                f"and {entry.window}, or different bytes"
            )
    return read, tuple(problems)


def _forbidden(rank: int, entries: Iterable[BatchLogEntry], since: Mapping[int, int]) -> tuple[str, ...]:
    return tuple(
        f"rank {rank}: step {entry.step} of attempt {entry.attempt} trained on window {entry.window}, "
        f"which is skipped from attempt {since[entry.window]} on"
        for entry in entries
        if entry.window in since and entry.attempt >= since[entry.window]
    )


def _deviations(rank: int, survived: Mapping[int, BatchLogEntry | None], ledger: SkipLedger) -> tuple[str, ...]:
    problems: list[str] = []
    for step, entry in survived.items():
        expected = ledger.window_of_step(step)
        if entry is None:
            problems.append(f"rank {rank}: nothing says which window step {step} trained on; {expected} was due")
        elif entry.window != expected:
            problems.append(f"rank {rank}: step {step} trained on window {entry.window} instead of {expected}")
    return tuple(problems)
