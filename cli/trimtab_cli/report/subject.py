"""Which run and which of its incidents a name means."""

import re
from dataclasses import dataclass

from trimtab_contract.keys import RunId

from trimtab_cli.access import Access
from trimtab_cli.errors import NotFound
from trimtab_cli.trail import Trail, understood_trail
from trimtab_cli.trail_verification import StoredTrail, read_stored

NEWEST = "last"
_INCIDENT = re.compile(r"(?P<job>.+)-(?:a[0-9]+-s[0-9]+(?:-[0-9]+)?|[a-z]+-[0-9a-f]{8})", re.ASCII)
"""Incidents are named after their job, and after the attempt and the first bad step of what fired or what was asked."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An incident of a run, and the run's whole journal."""

    run: RunId
    incident: str
    stored: StoredTrail
    trail: Trail


def find_subject(access: Access, name: str, incident: str = NEWEST) -> Subject:
    """The incident that `name` means: its own name, or that of a job or run, and then `incident` or the newest.

    Raises NotFound with what there is.
    """
    match = _INCIDENT.fullmatch(name)
    if match is not None and incident == NEWEST:
        try:
            return _of_run(access, access.run(match["job"]), name)
        except NotFound as not_an_incident:
            # A job may have such a name, too.
            try:
                return _of_run(access, access.run(name), incident)
            except NotFound:
                raise not_an_incident from None
    return _of_run(access, access.run(name), incident)


def _of_run(access: Access, run: RunId, incident: str) -> Subject:
    stored = read_stored(access, run)
    trail = understood_trail(stored.bodies)
    names = trail.state.incident_names
    if incident == NEWEST and names:
        incident = names[-1]
    if incident not in names:
        had = f"it has had {', '.join(names)}" if names else "it has had none"
        raise NotFound(f"Run {run} has had no incident{'' if incident == NEWEST else f' {incident}'}; {had}.")
    return Subject(run, incident, stored, trail)
