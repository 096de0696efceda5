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
    access: Access, name: str, *, seconds: float | None = None, final: frozenset[str] = FINAL_PHASES
) -> Iterator[KubernetesObject | str]:
    """The job whenever its status changed, and each new Event as a line, until it is in a final phase.

    Ends after `seconds` without a word. Raises NotFound when the job goes, Unreachable when the API server stays away.
    """
    shown: dict[str, int] = {}
    before: object = None
    begun = answered = time.monotonic()
    while seconds is None or time.monotonic() - begun < seconds:
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
                yield f"{event['reason']}: {event['message']}"
        status = section(job, "status")
        now = (status.get("phase"), status.get("step"), status.get("attempt"), status.get("message"))
        if now != before:
            before = now
            yield job
        if status.get("phase") in final:
            return
        time.sleep(POLL_SECONDS)
