"""Documents in a window: which targets belong to the document of their input, and who may see whom."""

import torch
from torch import Tensor

from trimtab_trainer.tensors import IGNORED_TARGET


def targets_of(samples: Tensor, separator: int | None) -> Tensor:
    """The targets [batch, T] of `samples` [batch, T + 1], each the token after its input.

    With a `separator`, the targets whose input it is begin another document and become `IGNORED_TARGET`. The separator
    itself is a target: where a document ends is to be learnt.
    """
    targets = samples[:, 1:]
    return targets if separator is None else targets.masked_fill(samples[:, :-1] == separator, IGNORED_TARGET)


def documents_of(samples: Tensor, separator: int | None) -> Tensor | None:
    """The number of the document, within its sample, that each input [batch, T] of `samples` [batch, T + 1] belongs to.

    A `separator` belongs to the document that it ends; without one documents are not told apart: None.
    """
    if separator is None:
        return None
    ended = (samples[:, :-1] == separator).long()
    return torch.cumsum(ended, 1) - ended
