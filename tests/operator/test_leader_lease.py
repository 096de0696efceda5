"""The leader's Lease on a real API server; each contender has a clock of its own that the test moves."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.lease import LeaderLease
from trimtab_operator.adapters.ports import KubernetesObject
from trimtab_operator.errors import ClusterUnavailable, Fenced

DURATION, MARGIN = 15, 4.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class UnreliableStore:
    """The real store, whose next replies can be lost after the request arrived, or before it was sent."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self.replies_to_lose = 0
        self.away = False
        self.reads = 0

    async def read_lease(self, namespace: str, name: str) -> KubernetesObject | None:
        self.reads += 1
        if self.away:
            raise ClusterUnavailable("away")
        return await self._cluster.read_lease(namespace, name)

    async def write_lease(self, body: KubernetesObject) -> KubernetesObject:
        if self.away:
            raise ClusterUnavailable("away")
        written = await self._cluster.write_lease(body)
        if self.replies_to_lose:
            self.replies_to_lose -= 1
            raise ClusterUnavailable("the reply is lost")
        return written


@pytest.fixture
async def store(control_plane: ControlPlane) -> AsyncIterator[UnreliableStore]:
    cluster = await KubernetesCluster.connect(control_plane.kubeconfig)
    yield UnreliableStore(cluster)
    await cluster.close()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    return control_plane.create_namespace("lease")


def contender(store: UnreliableStore, namespace: str, holder: str, clock: Clock) -> LeaderLease:
    return LeaderLease(
        store,
        namespace,
        "trimtab-operator",
        holder,
        duration_seconds=DURATION,
        pause_seconds=0.01,
        clock=clock,
    )


async def until_watching(store: UnreliableStore) -> None:
    """Until a standby has read the Lease twice, so that it knows which version it watches."""
    seen = store.reads
    while store.reads < seen + 2:
        await asyncio.sleep(0.01)


def stored_spec(control_plane: ControlPlane, namespace: str) -> dict[str, Any]:
    return json.loads(control_plane.kubectl("get", "lease", "trimtab-operator", f"-n={namespace}", "-o=json"))["spec"]


async def test_the_first_contender_holds_and_shows_itself(
    control_plane: ControlPlane, store: UnreliableStore, namespace: str
) -> None:
    clock = Clock()
    leader = contender(store, namespace, "one", clock)
    assert (leader.valid(), leader.epoch) == (False, 0)
    assert await leader.acquire() == 1
    assert leader.valid()
    assert stored_spec(control_plane, namespace)["holderIdentity"] == leader.identity
    clock.now += DURATION - MARGIN
    assert not leader.valid()
    await leader.renew()
    assert leader.valid()


@pytest.mark.parametrize("duration", [5, 6, DURATION, 300])
async def test_a_leader_that_renews_in_time_is_valid_throughout(
    store: UnreliableStore, namespace: str, duration: int
) -> None:
    clock = Clock()
    leader = LeaderLease(store, namespace, "trimtab-operator", "one", duration_seconds=duration, clock=clock)
    await leader.acquire()
    clock.now += 2 * leader.renew_every
    assert leader.valid(), "one renewal that fails must not stop the leader"


async def test_a_standby_waits_while_the_leader_renews_and_takes_over_when_it_stops(
    store: UnreliableStore, namespace: str
) -> None:
    first, second = Clock(), Clock()
    leader, standby = contender(store, namespace, "one", first), contender(store, namespace, "two", second)
    await leader.acquire()
    taking = asyncio.create_task(standby.acquire())
    for _ in range(3):
        await until_watching(store)
        second.now += DURATION - 1
        first.now += DURATION - 1
        await leader.renew()
        await until_watching(store)
        assert not taking.done()
    second.now += DURATION
    assert await taking == 2
    assert standby.valid()


async def test_a_frozen_leader_that_wakes_is_invalid_at_once_and_then_fenced(
    store: UnreliableStore, namespace: str
) -> None:
    first, second = Clock(), Clock()
    leader, standby = contender(store, namespace, "one", first), contender(store, namespace, "two", second)
    await leader.acquire()
    taking = asyncio.create_task(standby.acquire())
    await until_watching(store)
    # The leader's process stands still: time passes for both, and it renews nothing.
    first.now += 60
    second.now += 60
    assert await taking == 2
    assert not leader.valid()
    with pytest.raises(Fenced, match=standby.identity):
        await leader.renew()
    assert not leader.valid()
    with pytest.raises(Fenced):
        await leader.keep()
    assert standby.valid()


async def test_the_leader_is_invalid_before_a_standby_may_take_over(store: UnreliableStore, namespace: str) -> None:
    first, second = Clock(), Clock()
    leader, standby = contender(store, namespace, "one", first), contender(store, namespace, "two", second)
    await leader.acquire()
    taking = asyncio.create_task(standby.acquire())
    await until_watching(store)
    first.now += DURATION - MARGIN
    second.now += DURATION - MARGIN
    assert not leader.valid()
    await until_watching(store)
    assert not taking.done()
    taking.cancel()


async def test_a_leader_that_lapsed_while_nobody_took_over_keeps_its_epoch(
    store: UnreliableStore, namespace: str
) -> None:
    clock = Clock()
    leader = contender(store, namespace, "one", clock)
    await leader.acquire()
    store.away = True
    clock.now += 30
    with pytest.raises(ClusterUnavailable):
        await leader.renew()
    assert not leader.valid()
    store.away = False
    await leader.renew()
    assert (leader.valid(), leader.epoch) == (True, 1)


async def test_a_lost_reply_to_a_renewal_is_no_loss_of_the_lease(store: UnreliableStore, namespace: str) -> None:
    leader = contender(store, namespace, "one", Clock())
    await leader.acquire()
    store.replies_to_lose = 1
    with pytest.raises(ClusterUnavailable):
        await leader.renew()
    await leader.renew()
    assert (leader.valid(), leader.epoch) == (True, 1)


async def test_a_lost_reply_to_the_acquisition_ends_with_one_leader(store: UnreliableStore, namespace: str) -> None:
    leader = contender(store, namespace, "one", Clock())
    store.replies_to_lose = 1
    epoch = await leader.acquire()
    assert leader.valid()
    taking = asyncio.create_task(contender(store, namespace, "two", Clock()).acquire())
    await until_watching(store)
    assert not taking.done()
    taking.cancel()
    await leader.renew()
    assert leader.epoch == epoch


async def test_a_released_lease_is_taken_at_once_with_a_higher_epoch(
    control_plane: ControlPlane, store: UnreliableStore, namespace: str
) -> None:
    leader, standby = contender(store, namespace, "one", Clock()), contender(store, namespace, "two", Clock())
    await leader.acquire()
    taking = asyncio.create_task(standby.acquire())
    await until_watching(store)
    assert not taking.done()
    await leader.release()
    assert not leader.valid()
    assert await taking == 2
    assert stored_spec(control_plane, namespace)["holderIdentity"] == standby.identity


async def test_of_many_contenders_for_a_free_lease_one_leads(store: UnreliableStore, namespace: str) -> None:
    contenders = [contender(store, namespace, str(number), Clock()) for number in range(6)]
    tasks = [asyncio.create_task(each.acquire()) for each in contenders]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await until_watching(store)
    assert sum(each.valid() for each in contenders) == 1
    for task in tasks:
        task.cancel()


async def test_a_deleted_lease_fences_its_holder(
    control_plane: ControlPlane, store: UnreliableStore, namespace: str
) -> None:
    leader = contender(store, namespace, "one", Clock())
    await leader.acquire()
    control_plane.kubectl("delete", "lease", "trimtab-operator", f"-n={namespace}")
    with pytest.raises(Fenced, match="deleted"):
        await leader.renew()
    assert not leader.valid()


async def test_somebody_editing_the_lease_object_does_not_fence(
    control_plane: ControlPlane, store: UnreliableStore, namespace: str
) -> None:
    leader = contender(store, namespace, "one", Clock())
    await leader.acquire()
    control_plane.kubectl("label", "lease", "trimtab-operator", f"-n={namespace}", "team=training")
    await leader.renew()
    assert leader.valid()
    labels = control_plane.kubectl(
        "get", "lease", "trimtab-operator", f"-n={namespace}", "-o=jsonpath={.metadata.labels}"
    )
    assert json.loads(labels) == {"team": "training"}


async def test_keeping_renews_through_an_outage(store: UnreliableStore, namespace: str) -> None:
    clock = Clock()
    leader = contender(store, namespace, "one", clock)
    await leader.acquire()
    keeping = asyncio.create_task(leader.keep())
    store.away = True
    clock.now += DURATION
    assert not leader.valid()
    store.away = False
    while not leader.valid():
        await asyncio.sleep(0.01)
    assert not keeping.done()
    keeping.cancel()
