"""What a rank stores beside its periodic checkpoints: its state when it leaves, and the evidence of an incident."""

import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from object_store_fixture import ObjectStoreServer
from probed_rank import ROOT, STEP, alone, runtime, saved, train
from trimtab_contract.checkpoints import decode_manifest
from trimtab_contract.directives import Action, CheckpointReference, Diagnose, Directive
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_trainer.checkpointing import Checkpointer
from trimtab_trainer.errors import PeerLost
from trimtab_trainer.execution import DirectiveExecutor
from trimtab_trainer.runtime import Runtime

__all__ = ["alone", "runtime", "saved"]


def test_a_drain_waits_for_the_save_that_is_on_its_way_before_it_takes_another_copy(
    runtime: Runtime, object_store: ObjectStoreServer
) -> None:
    train(runtime, 2)
    object_store.freeze()
    runtime.save("Periodic")
    train(runtime, 1)
    landed: list[bool] = []
    whole = Checkpointer.save

    def counted(self: Checkpointer, *state: Any, **about: Any) -> bool:
        landed.append(self.flush(0))
        return whole(self, *state, **about)

    with patch.object(Checkpointer, "save", counted):
        threading.Timer(0.5, object_store.thaw).start()
        saved = runtime.save_now("Terminated")
    assert saved is not None
    assert (saved.step, landed) == (3, [True])


@pytest.mark.parametrize("others_are_gone", [False, True])
def test_nobody_leaves_before_all_ranks_know_that_their_save_is_complete(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, others_are_gone: bool
) -> None:
    known: list[CheckpointReference | None] = []
    agree = runtime.world.agree

    def meeting(values: Sequence[int]) -> list[int]:
        known.append(runtime.last_saved)
        if others_are_gone and values == [0]:
            raise PeerLost("they left")
        return agree(values)

    monkeypatch.setattr(runtime.world, "agree", meeting)
    train(runtime, STEP)
    reference = runtime.save_now("Terminated")
    assert reference is not None
    assert known[-1] == reference, "they meet when it is complete, and not before"


def kept_as_evidence(runtime: Runtime) -> list[tuple[int, int]]:
    """Attempt and step of every suspect state in the store."""
    runtime.wait_for_saves()
    bodies = [runtime.store.get(key) for key in runtime.store.list(ROOT) if key.endswith(MANIFEST_NAME)]
    found = [manifest for manifest in map(decode_manifest, bodies) if manifest.trigger == "Suspect"]
    return sorted((manifest.attempt, manifest.step) for manifest in found)


def hold(seq: int, *, attempt: int = 1, incident: str | None = "i-1", **rest: Any) -> Directive:
    return Directive(epoch=1, seq=seq, world=1, attempt=attempt, action=Action.HOLD, incident=incident, **rest)


def test_a_state_is_kept_as_evidence_when_an_incident_restores_over_it_and_not_when_a_person_holds(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    executor = DirectiveExecutor(runtime)
    executor.obey(hold(1))
    executor.obey(hold(2, incident="i-2"))
    assert kept_as_evidence(runtime) == []
    executor.obey(hold(3, attempt=2, restore=saved))
    assert runtime.state.step == STEP
    # A second restore takes the place of what is in the store already, and one outside an incident of nothing suspect.
    executor.obey(hold(4, attempt=3, restore=saved))
    train(runtime, 1)
    executor.obey(hold(5, attempt=4, restore=saved, incident=None))
    assert kept_as_evidence(runtime) == [(1, STEP + 3)]


def test_a_state_that_an_incident_has_measured_is_kept_while_that_goes_on_and_once(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    executor = DirectiveExecutor(runtime)
    executor.obey(hold(1, diagnose=Diagnose(windows=(1, 2), control=(0,))))
    assert kept_as_evidence(runtime) == [(1, STEP + 3)]
    executor.obey(hold(2, attempt=2, restore=saved))
    assert kept_as_evidence(runtime) == [(1, STEP + 3)]
