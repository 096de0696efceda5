"""Room on the host for copies of the state: made once, and used again for every save and every restore."""

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

from trimtab_trainer.checkpointing.state import FlatState
from trimtab_trainer.distributed_tensors import own_part, with_part


class StagingRoom:
    """Copies of the state on the CPU. The main thread takes them, the thread that saved one gives it back.

    One room is kept for the next copy; others are made while saves overlap, and dropped afterwards.
    """

    def __init__(self) -> None:
        self._free: deque[dict[str, Tensor]] = deque(maxlen=1)

    def copy(self, flat: FlatState) -> FlatState:
        """A copy that later updates do not reach."""
        copied = self._room_for(flat)
        for name, value in flat.items():
            if isinstance(value, Tensor):
                own_part(copied[name]).copy_(own_part(value.detach()), non_blocking=_is_elsewhere(value))
        for device in {value.device for value in flat.values() if isinstance(value, Tensor) and _is_elsewhere(value)}:
            torch.get_device_module(device).synchronize(device)
        return copied

    @contextmanager
    def beside(self, flat: FlatState) -> Generator[FlatState]:
        """Meanwhile, room for another state of the same structure: its tensors hold anything."""
        room = self._room_for(flat)
        try:
            yield room
        finally:
            self.give_back(room)

    def give_back(self, copied: FlatState) -> None:
        """Let the next copy have this one's room."""
        self._free.append({name: own_part(value) for name, value in copied.items() if isinstance(value, Tensor)})

    def _room_for(self, flat: FlatState) -> FlatState:
        parts = {name: own_part(value) for name, value in flat.items() if isinstance(value, Tensor)}
        try:
            room = self._free.pop()
        except IndexError:
            room = {}
        if not _alike(room, parts):
            room = {name: _on_host(part) for name, part in parts.items()}
        return {name: with_part(room[name], value) if name in room else value for name, value in flat.items()}


def _alike(room: dict[str, Tensor], parts: dict[str, Tensor]) -> bool:
    """Whether the one can hold the other."""
    return room.keys() == parts.keys() and all(
        (room[name].shape, room[name].dtype) == (part.shape, part.dtype) for name, part in parts.items()
    )


def _on_host(part: Tensor) -> Tensor:
    return torch.empty_like(part, device="cpu", pin_memory=_is_elsewhere(part))


def _is_elsewhere(tensor: Tensor) -> bool:
    """Whether it lies in the memory of an accelerator."""
    return tensor.device.type != "cpu"
