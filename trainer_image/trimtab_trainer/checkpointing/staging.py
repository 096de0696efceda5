"""Room on the host for copies of the state: made once, and used again for every save."""

from collections import deque

import torch
from torch import Tensor

from trimtab_trainer.checkpointing.state import FlatState


class StagingRoom:
    """Copies of the state on the CPU. The main thread takes them, the thread that saved one gives it back.

    One room is kept for the next copy; others are made while saves overlap, and dropped afterwards.
    """

    def __init__(self) -> None:
        self._free: deque[FlatState] = deque(maxlen=1)

    def copy(self, flat: FlatState) -> FlatState:
        """A copy that later updates do not reach."""
        try:
            room = self._free.pop()
        except IndexError:
            room = {name: _room_for(value) for name, value in flat.items() if isinstance(value, Tensor)}
        copied: FlatState = {}
        for name, value in flat.items():
            if isinstance(value, Tensor):
                copied[name] = room[name].copy_(value.detach(), non_blocking=value.is_cuda)
            else:
                copied[name] = value
        if any(isinstance(value, Tensor) and value.is_cuda for value in flat.values()):
            torch.cuda.synchronize()
        return copied

    def give_back(self, copied: FlatState) -> None:
        """Let the next copy have this one's room."""
        self._free.append({name: value for name, value in copied.items() if isinstance(value, Tensor)})


def _room_for(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
