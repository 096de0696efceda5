"""Whether logits follow when QK-Clip scales the weights that make them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.tensors import true_indices

UPDATES: Final = 20
"""So many updates in a row a head must have been clipped in before anything is said."""

LARGEST_FACTOR: Final = 0.8
"""Each of them by this factor or a smaller one: twenty times that is a hundredth. A head whose logits follow comes so
far only if each single update adds a quarter of the threshold to them."""

LARGEST_FALL: Final = 0.5
"""To this part of what they were the logits have fallen at most."""


class ClipEffect:
    """Finds heads that are clipped again and again and keep their logits.

    A model that normalises queries and keys in its forward pass by a function has no module that would tell, and
    scaling the weights changes no logit of it. What is found so is no part of the state: it begins anew with each
    optimizer.
    """

    def __init__(self) -> None:
        self._lengths: Tensor | None = None
        self._first: Tensor | None = None
        self._told: set[int] = set()

    def seen(self, max_logits: Tensor, gamma: Tensor, hot: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Take note of an update; return layers in which clipping is in vain, each once, with the heads.

        `max_logits` are what the factors `gamma` follow from, both [layers, heads]; `hot` layers are scaled by them.
        """
        if not hot:
            self._lengths = None
            return []
        if self._lengths is None or self._first is None:
            self._lengths, self._first = torch.zeros_like(gamma, dtype=torch.int64), max_logits
        clipped = gamma <= LARGEST_FACTOR
        self._first = torch.where(self._lengths > 0, self._first, max_logits)
        self._lengths = torch.where(clipped, self._lengths + 1, 0)
        vain = (self._lengths > UPDATES) & (max_logits > LARGEST_FALL * self._first)
        of_layer: defaultdict[int, list[int]] = defaultdict(list)
        for layer, head in true_indices(vain):
            of_layer[layer].append(head)
        found = [(layer, of_layer[layer]) for layer in hot if layer not in self._told and layer in of_layer]
        self._told.update(layer for layer, _ in found)
        return found
