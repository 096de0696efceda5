"""A run that is configured otherwise than the one that saved its checkpoints fails, and blames none of them."""

from typing import Any

import msgspec
import pytest
from run_states import ack, attempts, checkpoint, incident, reference, run_state
from trimtab_contract.directives import AckState, Action, Directive, Reason
from trimtab_operator.commands import Append
from trimtab_operator.observation import Acks, Limits, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import JournalAction, RunPhase, World

LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=7, suspend=False)
TARGET = reference(80)
RESTARTED: dict[str, Any] = {"phase": RunPhase.PENDING}
ROLLED_BACK: dict[str, Any] = {
    "phase": RunPhase.RESTORING,
    "incident": msgspec.structs.replace(incident(targets=(TARGET,)), restoring_attempt=2),
}


@pytest.mark.parametrize("changes", [RESTARTED, ROLLED_BACK], ids=["after a restart", "in a rollback"])
@pytest.mark.parametrize(
    ("reason", "action"),
    [(Reason.CONFIG_MISMATCH, JournalAction.FAILED), (Reason.RESTORE_FAILED, JournalAction.QUARANTINED)],
)
def test_only_a_checkpoint_that_is_at_fault_is_quarantined(
    changes: dict[str, Any], reason: Reason, action: JournalAction
) -> None:
    state = run_state(
        attempts=attempts((None, 0), (1, 80)),
        world=World(number=2, spec_generation=7),
        directive=Directive(epoch=1, seq=9, world=2, attempt=2, action=Action.HOLD, restore=TARGET),
        checkpoints=(checkpoint(80),),
        **changes,
    )
    failed = ack(AckState.FAILED, world=2, attempt=2, reason=reason, detail="width: saved is 64", checkpoint=TARGET)
    observation = Observation(
        job="demo",
        now="2026-01-01T00:00:00+00:00",
        limits=LIMITS,
        acks=Acks().fold("1-0", failed),
        pods=Pods(world=2, state=PodsState.LIVE),
    )
    command = advance(state, observation)
    assert isinstance(command, Append)
    assert command.draft.action is action
    if reason is Reason.CONFIG_MISMATCH:
        assert (command.draft.after or {})["generation"] == 7
        assert "spec.trainer.config" in (command.draft.reason or {})["message"]
