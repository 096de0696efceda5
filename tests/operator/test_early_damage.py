"""Damage in the first steps: the checkpoint of step 0 may still be on its way when it is needed."""

import msgspec
from run_states import checkpoint, incident, latch, run_state
from trimtab_operator.commands import Append, Command
from trimtab_operator.observation import Limits, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import Checkpoint, JournalAction, RunPhase, World

LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)


def decided(*checkpoints: Checkpoint, lives: bool = True) -> Command | None:
    opened = msgspec.structs.replace(incident(), latch=latch(first_bad_step=1), held_step=1)
    state = run_state(
        phase=RunPhase.SELECTING, incident=opened, checkpoints=checkpoints, world=World(number=1, live=lives)
    )
    pods = Pods(world=1, state=PodsState.LIVE if lives else PodsState.GONE)
    return advance(state, Observation(job="demo", now="2026-01-01T00:00:00+00:00", limits=LIMITS, pods=pods))


def test_a_held_world_is_given_the_time_to_save_its_first_state() -> None:
    assert decided() is None
    command = decided(checkpoint(0))
    assert isinstance(command, Append)
    assert command.draft.action is JournalAction.TARGET_SELECTED


def test_nobody_waits_for_what_cannot_come() -> None:
    for command in (decided(checkpoint(0, state="Quarantined")), decided(lives=False)):
        assert isinstance(command, Append)
        assert command.draft.action is JournalAction.NEEDS_HUMAN
