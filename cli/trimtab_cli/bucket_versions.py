"""What a bucket's versions say of a trail: each object written once, none deleted. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab_contract.errors import ContractError
from trimtab_contract.keys import journal_seq


class Versioning(StrEnum):
    """Whether the bucket keeps what was replaced or deleted."""

    ENABLED = "Enabled"
    SUSPENDED = "Suspended"
    OFF = "Off"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ObjectVersions:
    """How many versions an object has, and how many delete markers lie among them."""

    versions: int = 0
    deletions: int = 0


@dataclass(frozen=True, slots=True)
class StorageReport:
    """What the versions prove: problems, and one sentence."""

    versioning: Versioning
    problems: tuple[str, ...]
    says: str


_UNPROVED = "that no record was replaced before it was anchored, or cut off behind the anchor, is not proved"
_SAYS = {
    Versioning.ENABLED: "the bucket keeps versions: every object of the trail was written once and none was deleted",
    Versioning.SUSPENDED: f"the bucket's versioning is suspended: {_UNPROVED}",
    Versioning.OFF: f"the bucket keeps no versions: {_UNPROVED}",
    Versioning.UNKNOWN: f"these credentials may not look at the bucket's versions: {_UNPROVED}",
}


def storage_report(versioning: Versioning, found: Mapping[str, ObjectVersions]) -> StorageReport:
    """Judge every object of a trail, given by its key; `found` is empty where versions cannot be seen."""
    problems = tuple(problem for key, one in sorted(found.items()) for problem in _problems(key, one))
    says = "the bucket keeps versions, and they say that the trail was changed" if problems else _SAYS[versioning]
    return StorageReport(versioning, problems, says)


def _problems(key: str, found: ObjectVersions) -> Iterable[str]:
    what = _name(key)
    if found.deletions and not found.versions:
        yield f"{what}: it was deleted, and not even an older version is left"
    elif found.deletions:
        yield f"{what}: it was deleted ({found.deletions} delete marker(s) lie on it)"
    if found.versions > 1:
        yield f"{what}: it has {found.versions} versions, and is written once"


def _name(key: str) -> str:
    try:
        return f"record {journal_seq(key)}"
    except ContractError:
        return f"object {key}"
