"""The forward-only probe: what the loss of each window is on the state as it stands, changing nothing."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import CheckpointReference, Diagnose, EvidenceReference
from trimtab_contract.evidence import ProbeEvidence, encode_probe
from trimtab_contract.keys import RunId, evidence_object

from trimtab_trainer.collectives import World


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """An evidence object ready to be stored, and the reference an ack carries."""

    reference: EvidenceReference
    body: bytes


def windows_to_probe(diagnose: Diagnose) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The suspect windows and the control windows, each in rising order."""
    first, last = diagnose.windows
    return tuple(range(first, last + 1)), tuple(sorted(diagnose.control))


def mean_losses(
    windows: tuple[int, ...],
    loss_of_share: Callable[[int], Tensor],
    world: World,
    called_away: Callable[[], bool] | None = None,
) -> list[float | None] | None:
    """The loss of each window over the global batch; None for one that is not finite on some rank.

    `loss_of_share` yields the mean loss of this rank's share of a window; the shares of all ranks have equal size.
    `called_away` is asked before each window, by all ranks together; once it says so, there is no result at all.
    """
    losses: list[float] = []
    for window in windows:
        if called_away is not None and called_away():
            return None
        losses.append(float(loss_of_share(window)))
    shares = torch.tensor(losses, dtype=torch.float64)
    if len(windows):
        world.sum(shares)
    means = [float(value) / world.size for value in shares]
    return [mean if math.isfinite(mean) else None for mean in means]


def probe(
    diagnose: Diagnose,
    *,
    run: RunId,
    root: str,
    attempt: int,
    step: int,
    state: CheckpointReference | None,
    loss_of_share: Callable[[int], Tensor],
    world: World,
    called_away: Callable[[], bool] | None = None,
) -> ProbeResult | None:
    """Measure every window on all ranks together; `state` names the checkpoint the weights are, if they are one.

    Returns None when the ranks were called away (`mean_losses`).
    """
    windows, control = windows_to_probe(diagnose)
    losses = mean_losses(windows + control, loss_of_share, world, called_away)
    if losses is None:
        return None
    evidence = ProbeEvidence(
        attempt=attempt,
        state=state,
        windows=tuple(zip(windows, losses[: len(windows)], strict=True)),
        control=tuple(zip(control, losses[len(windows) :], strict=True)),
    )
    body = encode_probe(evidence)
    digest = sha256_hex(body)
    name = f"probe-s{step}-w{windows[0]}-{windows[-1]}-{digest[:12]}.json"
    return ProbeResult(EvidenceReference(key=evidence_object(root, run, attempt, name), sha256=digest), body)
