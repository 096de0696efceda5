"""Following a job until it ends."""

import time
from collections.abc import Iterator

from trimtab_cli.access import Access
from trimtab_cli.cluster_choice import KubernetesObject
from trimtab_cli.errors import Unreachable
from trimtab_cli.job_view import section

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 90.0
"""An API server that is away for so long is waited for."""

FINAL_PHASES = frozenset({"Completed", "Stopped", "Failed"})


def changes(
    access: Access,
    name: str,
    *,
    seconds: float | None = None,
    idle_seconds: float | None = None,
    final: frozenset[str] = FINAL_PHASES,
) -> Iterator[KubernetesObject | str]:
    """The job whenever its status changed, and each new Event as a line, until it is in a final phase.

    Ends after `seconds`, or when nothing was new for `idle_seconds`, without a word. Raises NotFound when the job goes,
    Unreachable when the API server stays away.
    """
    shown: dict[str, int] = {}
    before: object = None
    begun = answered = new = time.monotonic()
    while not _over(begun, seconds) and not _over(new, idle_seconds):
        try:
            job = access.job(name)
            events = access.cluster.events(name, job["metadata"]["uid"])
        except Unreachable:
            if time.monotonic() - answered > PATIENCE_SECONDS:
                raise
            time.sleep(POLL_SECONDS)
            continue
        answered = time.monotonic()
        for event in events:
            key, count = event["metadata"]["uid"], int(event.get("count") or 1)
            if shown.get(key) != count:
                shown[key] = count
                new = answered
                yield f"{event['reason']}: {event['message']}"
        status = section(job, "status")
        now = (status.get("phase"), status.get("step"), status.get("attempt"), status.get("message"))
        if now != before:
            before = now
            new = answered
            yield job
        if status.get("phase") in final:
            return
        time.sleep(POLL_SECONDS)


def _over(since: float, seconds: float | None) -> bool:
    return seconds is not None and time.monotonic() - since >= seconds
