"""The room for copies of the state is used again, by saves and by restores, and never for a state it does not fit."""

from typing import Any

import torch
from trimtab_trainer.checkpointing.staging import StagingRoom


def state(**changes: Any) -> dict[str, Any]:
    return {"a": torch.ones(3, 4), "b": torch.zeros(5), "count": 7, **changes}


def test_a_copy_is_not_reached_by_later_updates() -> None:
    live = state()
    copied = StagingRoom().copy(live)
    live["a"].zero_()
    assert torch.equal(copied["a"], torch.ones(3, 4))
    assert copied["count"] == 7


def test_a_restore_has_the_room_of_the_last_save_and_the_next_save_has_it_again() -> None:
    room = StagingRoom()
    first = room.copy(state())
    memory = first["a"].data_ptr()
    room.give_back(first)
    with room.beside(state()) as beside:
        assert beside["a"].data_ptr() == memory
        assert room.copy(state())["a"].data_ptr() != memory, "a save beside a restore has room of its own"
    assert room.copy(state())["a"].data_ptr() == memory


def test_room_is_not_used_for_other_names_types_or_shapes() -> None:
    room = StagingRoom()
    for other in (state(a=torch.ones(4, 3)), state(b=torch.zeros(5, dtype=torch.int32)), state(c=torch.zeros(1))):
        room.give_back(room.copy(state()))
        with room.beside(other) as beside:
            assert {name: (value.shape, value.dtype) for name, value in beside.items() if name != "count"} == {
                name: (value.shape, value.dtype) for name, value in other.items() if name != "count"
            }
