"""Which pods and nodes an incident points at: where the replicas of some ranks differ, or are not finite. Pure.

A suspicion, not a finding: it is written into the journal, and the run's later worlds prefer other nodes.
"""

import re
from collections.abc import Sequence

import msgspec
from trimtab_contract.directives import Ack

from trimtab_operator.observation import PodPlace

_RANK = re.compile(r"rank (\d+): ")
KEPT_NODES = 8
"""So many of the nodes a run suspected last are avoided."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that stands out, its pod and its node; `why` says by what."""

    rank: int
    pod: str
    node: str
    why: str


def suspects(held: Ack, places: Sequence[PodPlace]) -> tuple[Suspect, ...]:
    """The ranks that stand out in what a held world says of its state, in order of rank.

    Where ranks differ without a majority each of the two sides may be the damaged one. What most ranks have in common,
    such as a NaN after the gradients were averaged, points at none of them.
    """
    differing = _ranks(held.replicas.differing) if held.replicas is not None else []
    why = "its parameters differ from the other ranks'"
    if differing and len(differing) * 2 >= held.ranks:
        # Compared with rank 0, for no parameters had a majority.
        differing, why = sorted({0, *differing}), "the ranks' parameters differ without a majority"
    found = dict.fromkeys(differing, why)
    nonfinite = _ranks(held.nonfinite or ())
    if len(nonfinite) * 2 < held.ranks:
        for rank in nonfinite:
            found.setdefault(rank, "its weights or optimizer state are not finite, and most other ranks' are")
    by_pod = {place.pod: place for place in places}
    named: list[Suspect] = []
    for rank in sorted(found):
        place = by_pod.get(_pod(held, rank, places))
        named.append(
            Suspect(rank=rank, pod=place.pod if place else "", node=place.node if place else "", why=found[rank])
        )
    return tuple(named)


def avoided(known: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """The nodes to avoid, the newest suspects last."""
    fresh = list(dict.fromkeys(node for node in found if node))
    return (*(node for node in known if node not in fresh), *fresh)[-KEPT_NODES:]


def _ranks(named: Sequence[str]) -> list[int]:
    """The ranks in texts such as `rank 3: embedding.weight`."""
    return [int(match[1]) for match in map(_RANK.match, named) if match]


def _pod(held: Ack, rank: int, places: Sequence[PodPlace]) -> str:
    """A pod's host name is `<world>-<index>`, and its own name begins with it."""
    host = held.hosts[rank] if rank < len(held.hosts) else ""
    return next((place.pod for place in places if host and f"{place.pod}-".startswith(f"{host}-")), "")
