"""What every run must satisfy in the end, whatever happened to it: proved from records, batch logs and journal."""

from collections import Counter
from collections.abc import Collection

from training_jobs import Namespace, Trail

USABLE = frozenset({"Committed", "Verified", "Certified"})


def assert_each_window_once(namespace: Namespace, job: str, steps: int, skipped: Collection[int] = ()) -> None:
    """Steps 1 to `steps` survive, trained on every window in order but the skipped ones, on both ranks' own word."""
    surviving = namespace.surviving(job)
    assert sorted(surviving) == list(range(1, steps + 1))
    expected = [window for window in range(steps + len(skipped)) if window not in skipped]
    assert [surviving[step].window for step in range(1, steps + 1)] == expected

    state = namespace.trail(job).state
    owners = {step: state.owner(step) for step in surviving}
    log = namespace.batch_log(job)
    for rank in (0, 1):
        read = Counter(entry.window for one, entry in log if one == rank and owners.get(entry.step) == entry.attempt)
        assert read == Counter(expected)


def losses(namespace: Namespace, job: str) -> dict[int, float]:
    """The loss of every step of the surviving history, to be compared bit for bit."""
    return {step: record.scalars["loss"] for step, record in namespace.surviving(job).items()}


def worlds(namespace: Namespace, job: str) -> set[str]:
    """The worlds whose pods exist: more than one means that something restarted."""
    return {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods(job)}


def usable_checkpoints(trail: Trail) -> list[tuple[int, int]]:
    """(attempt, step) of every checkpoint the journal ever called committed, verified or certified."""
    return [((one.after or {})["attempt"], (one.after or {})["checkpoint"]["step"]) for one in trail.of(*USABLE)]
