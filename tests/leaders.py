"""The operators of one run, one after the other: each takes the Lease over when the one before died, froze or was told
that it leads no more.

An old one that only froze believes for ever that its Lease is valid, for its clock stands still: what it writes when it
wakes meets nothing but the journal's epochs, the directive's order and the names of what exists.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

from interrupted_ports import Interrupter
from staged_run import StagedRun
from trimtab_operator.adapters.api_server import ApiServer, Resource
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.lease import LeaderLease
from trimtab_operator.adapters.ports import Cluster, Created, Kind, KubernetesObject
from trimtab_operator.errors import Fenced, NotFound, TemporaryError
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import JournalAction
from trimtab_operator.supervisor import Supervisor

LEASES = Resource("coordination.k8s.io/v1", "leases")
TICK_SECONDS = 0.02
AFTER_LOOKS = 100
"""How often an old leader is looked at in the end before it counts as one that nobody fenced."""


class Clock:
    """A leader's clock: it runs fast while the leader waits for the Lease, then it stands still."""

    def __init__(self) -> None:
        self.now, self.runs = 0.0, True

    def __call__(self) -> float:
        """Seconds."""
        self.now += 1000.0 if self.runs else 0.0
        return self.now


class Witness:
    """A cluster that tells the run which records its journal's anchor was told of."""

    def __init__(self, cluster: Cluster, run: StagedRun) -> None:
        self._cluster, self._run = cluster, run

    def __getattr__(self, name: str) -> Any:
        """All else as it is."""
        return getattr(self._cluster, name)

    async def create(self, body: KubernetesObject) -> Created:
        """The object, which may be the anchor."""
        made = await self._cluster.create(body)
        if body["kind"] == Kind.JOURNAL_ANCHOR.value:
            self._run.anchored_heads.add(body["spec"]["seq"])
        return made

    async def patch_spec(self, kind: Kind, namespace: str, name: str, spec: Mapping[str, Any], version: str) -> str:
        """A change of what may be the anchor."""
        patched = await self._cluster.patch_spec(kind, namespace, name, spec, version)
        if kind is Kind.JOURNAL_ANCHOR:
            self._run.anchored_heads.add(spec["seq"])
        return patched


@dataclass
class Leaders:
    """Who leads the run now, and who did."""

    run: StagedRun
    body: dict[str, Any]
    ports: Ports
    server: ApiServer
    lease_store: KubernetesCluster
    interrupter: Interrupter
    chance: Random
    leader: Supervisor | None = None
    frozen: list[Supervisor] = field(default_factory=list[Supervisor])
    deleted_leases: int = 0
    terms: int = 0

    async def succeed(self) -> None:
        """Another operator takes over, half of the times after somebody deleted the Lease."""
        space, name = self.run.id.namespace, f"{self.run.id.name}-operator"
        if self.leader is not None and self.chance.random() < 0.5:
            await self._delete_lease(space, name)
        clock = Clock()
        lease = LeaderLease(
            self.lease_store, space, name, f"pod-{self.terms}", duration_seconds=15, pause_seconds=0.01, clock=clock
        )
        await lease.acquire()
        clock.runs = False
        await lease.renew()
        witness = cast("Cluster", Witness(self.ports.cluster, self.run))
        cluster, bus, journal = self.interrupter.ports(witness, self.ports.bus, self.ports.journal)
        self.interrupter.dead = False
        self.leader = Supervisor(replace(self.ports, cluster=cluster, bus=bus, journal=journal, lease=lease))
        self.terms += 1
        if self.run.job_deleted:
            await self._end_orphans(self.leader)
        else:
            self.leader.see(self.body)

    async def _end_orphans(self, leader: Supervisor) -> None:
        """What every operator does at its start, until all that it needs answers."""
        while True:
            try:
                return await leader.end_orphans()
            except TemporaryError:
                await asyncio.sleep(TICK_SECONDS)

    async def _delete_lease(self, space: str, name: str) -> None:
        try:
            lease = await self.server.get(LEASES, space, name)
        except NotFound:
            return
        await self.server.delete(LEASES.item(space, name), lease["metadata"]["uid"])
        self.deleted_leases += 1

    async def play(self) -> None:
        """Let the run come to its end under as many operators as it takes."""
        await self.succeed()
        try:
            while not self.run.over:
                changed, self.interrupter.changed = self.interrupter.changed, False
                await self.run.live(changed=changed)
                await self._keep_led()
                await asyncio.sleep(TICK_SECONDS)
            self.interrupter.awake.set()
            for old in self.frozen:
                await self._ended(old)
            await self.run.live(changed=True)
            await self.run.reread_journal()
        finally:
            for one in (*self.frozen, self.leader):
                if one is not None:
                    await one.close()

    async def _keep_led(self) -> None:
        leader = self.leader
        assert leader is not None
        fenced = leader.failed.done() and isinstance(leader.failed.exception(), Fenced)
        if not self.interrupter.dead and not fenced:
            return
        await self.run.look(changed=True)
        if self.interrupter.asleep:
            self.frozen.append(leader)
        else:
            await leader.close()
        await self.succeed()

    async def _ended(self, old: Supervisor) -> None:
        """An old leader that woke learns that it leads no more."""
        for _ in range(AFTER_LOOKS):
            if old.failed.done():
                assert isinstance(old.failed.exception(), Fenced)
                return
            old.wake(None)
            await asyncio.sleep(TICK_SECONDS)
        self.run.violations.append("an old leader that woke was not fenced")

    def check(self) -> None:
        """No operator ever led under an epoch that another one had; a Lease that was deleted lowers none."""
        epochs = [record.actor.epoch for record in self.run.announced if record.action == JournalAction.TAKEOVER]
        assert epochs == sorted(set(epochs)), f"epochs {epochs} do not rise"
        assert len(epochs) >= self.terms - 1
