"""What a step trains on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab_trainer.data import Windows, documents_of, targets_of
from trimtab_trainer.optim import RateOverride
from trimtab_trainer.tensors import sent


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's share of the window of one step: `tokens` and `targets` [share, sequence], int64.

    A target of -100 belongs to another document than its token and is no target (`torch` ignores it by default).
    """

    attempt: int
    step: int
    window: int
    tokens: Tensor
    targets: Tensor
    sample_ids: Tensor
    """[share] int64, the absolute positions of the samples: what dropout is keyed by."""

    rate_override: RateOverride | None

    documents: Tensor | None = None
    """[share, sequence] int64, the number of the document that a token belongs to, where attention sees no other."""

    def to(self, device: torch.device) -> "Batch":
        """The same in the memory of `device`; it goes there while the device is busy with what came before."""
        documents = None if self.documents is None else sent(self.documents, device)
        here = (sent(self.tokens, device), sent(self.targets, device), sent(self.sample_ids, device))
        return replace(self, tokens=here[0], targets=here[1], sample_ids=here[2], documents=documents)

    def micro_batches(self, count: int) -> Iterator["Batch"]:
        """The same samples in order, cut into `count` batches of equal size, which must divide the share."""
        parts = (self.tokens.chunk(count), self.targets.chunk(count), self.sample_ids.chunk(count))
        documents = (None,) * count if self.documents is None else self.documents.chunk(count)
        for tokens, targets, sample_ids, own in zip(*parts, documents, strict=True):
            yield replace(self, tokens=tokens, targets=targets, sample_ids=sample_ids, documents=own)


def batch_of(data: Windows, window: int, *, attempt: int, step: int, rate_override: RateOverride | None) -> Batch:
    """This rank's share of a window as a step trains on it; raises DataUnreadable."""
    samples = data.read(window)
    return Batch(
        attempt=attempt,
        step=step,
        window=window,
        tokens=samples[:, :-1],
        targets=targets_of(samples, data.separator),
        sample_ids=data.positions(window),
        rate_override=rate_override,
        documents=documents_of(samples, data.attention_separator),
    )
