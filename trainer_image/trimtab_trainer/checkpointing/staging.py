"""Room on the host for copies of the state: made once, and used again for every save."""

from collections import deque

import torch
from torch import Tensor

from trimtab_trainer.checkpointing.state import FlatState
from trimtab_trainer.distributed_tensors import own_part, with_part


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
            room = {name: _room_for(own_part(value)) for name, value in flat.items() if isinstance(value, Tensor)}
        copied: FlatState = {}
        for name, value in flat.items():
            if isinstance(value, Tensor):
                part = own_part(value.detach())
                copied[name] = with_part(room[name].copy_(part, non_blocking=value.is_cuda), value)
            else:
                copied[name] = value
        if any(isinstance(value, Tensor) and value.is_cuda for value in flat.values()):
            torch.cuda.synchronize()
        return copied

    def give_back(self, copied: FlatState) -> None:
        """Let the next copy have this one's room."""
        self._free.append({name: own_part(value) for name, value in copied.items() if isinstance(value, Tensor)})


def _room_for(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
