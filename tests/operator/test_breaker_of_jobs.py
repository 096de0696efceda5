"""Three jobs that fail together, with a real API server, Redis and S3: a new leader holds automation and says so."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec
from control_plane_fixture import ControlPlane
from operator_objects import training_job
from operator_ports import IDENTITY
from run_states import POLICY, latch
from trimtab_contract.keys import RunId
from trimtab_operator.breaker import BreakerSettings
from trimtab_operator.commands import Draft
from trimtab_operator.journal import RunJournal
from trimtab_operator.oversight import Oversight
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import JournalAction, RunPhase
from trimtab_operator.supervisor import Supervisor

NAMES = ("a", "b", "c")
GUARD = msgspec.structs.replace(POLICY, hash="ab" * 32)


async def fail(ports: Ports, run: RunId) -> None:
    """A rule has fired in the run, as its journal says."""
    journal = RunJournal(ports.journal, run, IDENTITY)
    await journal.take_over(0)
    await journal.append(
        Draft(
            action=JournalAction.INCIDENT_OPENED,
            id="incident",
            incident=f"{run.name}-a1-s5",
            after={"latch": latch(first_bad_step=5, policy=GUARD), "phase": RunPhase.HOLDING.value},
        )
    )


async def shown(ports: Ports, namespace: str, status: str) -> list[dict[str, Any]]:
    """Wait until every job shows the condition AutomationHeld with a status."""
    while True:
        found: list[dict[str, Any]] = []
        for name in NAMES:
            body = await ports.cluster.training_job(namespace, name)
            conditions: list[dict[str, Any]] = (body.get("status") or {}).get("conditions", [])
            found += [one for one in conditions if one["type"] == "AutomationHeld" and one["status"] == status]
        if len(found) == len(NAMES):
            return found
        await asyncio.sleep(0.05)


async def test_every_job_says_that_automation_is_held_and_that_it_was_let_go(api: ControlPlane, ports: Ports) -> None:
    (ours,) = ports.namespaces
    api.apply(*(training_job(name, ours) for name in NAMES))
    for name in NAMES:
        await fail(ports, RunId(ours, name, (await ports.cluster.training_job(ours, name))["metadata"]["uid"]))
    later = 0.0
    oversight = Oversight(BreakerSettings(), now=lambda: time.time() + later)
    supervisor = Supervisor(replace(ports, oversight=oversight))
    work = asyncio.create_task(supervisor.resync())
    try:
        held = await shown(ports, ours, "True")
        assert {one["reason"] for one in held} == {"BreakerTripped"}
        assert f"3 runs failed within 300 s ({ours}/a, {ours}/b, {ours}/c)" in held[0]["message"]
        later = 900.0
        assert {one["reason"] for one in await shown(ports, ours, "False")} == {"BreakerReleased"}
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await supervisor.close()
