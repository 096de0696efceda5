"""Builders for tests of decisions: states as the fold would leave them, latches, acks."""

from typing import Any

import msgspec
from trimtab_contract.directives import Ack, AckState, Action, CheckpointReference, Directive
from trimtab_operator.incidents import Incident, Latch, Plan, PolicyIdentity, RemediationSettings
from trimtab_operator.run_state import Attempt, Checkpoint, CheckpointState, RunPhase, RunState, World

POLICY = PolicyIdentity(kind="GuardPolicy", namespace="lab", name="guard", uid="p", generation=1, hash="h1")
SETTINGS = RemediationSettings(margin=10, before=1, after=2, probe=32, probation_steps=20, margin_factor=2.0)


def reference(step: int, attempt: int = 1) -> CheckpointReference:
    return CheckpointReference(key=f"run/checkpoints/{step}-a{attempt}/manifest.json", sha256="0" * 64, step=step)


def checkpoint(step: int, attempt: int = 1, state: str = "Verified", why: str = "") -> Checkpoint:
    return Checkpoint(reference=reference(step, attempt), attempt=attempt, state=CheckpointState(state), why=why)


def latch(*, first_bad_step: int = 181, attempt: int = 1, **changes: Any) -> Latch:
    base = Latch(
        policy=POLICY,
        rule="loss-spike",
        metric="loss",
        action="Rollback",
        observed=9.0,
        threshold=4.0,
        sigma=4.0,
        control_limit=4.0,
        message="loss 9 > 4",
        attempt=attempt,
        first_bad_step=first_bad_step,
        fired_step=first_bad_step + 2,
        flagged=(first_bad_step - 1, first_bad_step + 1),
        remediation=SETTINGS,
        rule_text={"metric": "loss"},
    )
    return msgspec.structs.replace(base, **changes)


def incident(*, relapses: int = 0, targets: tuple[CheckpointReference, ...] = (), **changes: Any) -> Incident:
    plans = tuple(Plan(number=number, target=target) for number, target in enumerate(targets, 1))
    return Incident(name="demo-a1-s181", latch=changes.pop("latch", latch()), relapses=relapses, plans=plans, **changes)


def attempts(*branches: tuple[int | None, int]) -> tuple[Attempt, ...]:
    """Attempts 1, 2, ... given as (parent, branch step), all of world 1."""
    return tuple(
        Attempt(number=number, world=1, parent=parent, branch_step=step)
        for number, (parent, step) in enumerate(branches, 1)
    )


def run_state(**changes: Any) -> RunState:
    base: dict[str, Any] = {
        "seq": 30,
        "epoch": 1,
        "phase": RunPhase.WATCHING,
        "attempts": attempts((None, 0)),
        "world": World(number=1),
        "directive": Directive(epoch=1, seq=28, world=1, attempt=1, action=Action.RUN),
    }
    return RunState(**{**base, **changes})


def ack(state: AckState, *, world: int = 1, attempt: int = 1, **fields: Any) -> Ack:
    base: dict[str, Any] = {
        "epoch": 1,
        "seq": 9,
        "ranks": 2,
        "hosts": ("a", "b"),
        "step": 80,
        "progress": 1,
        "time": 1.0,
    }
    return Ack(state=state, world=world, attempt=attempt, **{**base, **fields})
