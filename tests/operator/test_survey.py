"""One look at a run's surroundings: what does not depend on each other is read at once, on a real API server and S3."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, training_job
from run_states import run_state
from server_process import free_ports
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.ports import KubernetesObject
from trimtab_operator.adapters.s3 import S3CheckpointStores, S3Credentials, S3JournalStore, S3Location
from trimtab_operator.errors import ClusterUnavailable
from trimtab_operator.judge import Judge
from trimtab_operator.observation import PodsState
from trimtab_operator.observer import Observer
from trimtab_operator.reasons import Reason
from trimtab_operator.run_state import RunPhase
from trimtab_operator.workload import TrainingJobView

PATIENCE_SECONDS = 30.0


class Meeting:
    """The cluster behind a door that opens when Secret, policy and Job are all asked for."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster, self._door = cluster, asyncio.Barrier(3)

    async def secret(self, namespace: str, name: str) -> Mapping[str, str]:
        await self._door.wait()
        return await self._cluster.secret(namespace, name)

    async def guard_policy(self, *which: Any) -> KubernetesObject:
        await self._door.wait()
        return await self._cluster.guard_policy(*which)

    async def get_job(self, namespace: str, name: str) -> KubernetesObject | None:
        await self._door.wait()
        return await self._cluster.get_job(namespace, name)

    def __getattr__(self, name: str) -> object:
        return getattr(self._cluster, name)


@pytest.fixture
async def stores(object_store: ObjectStoreServer) -> AsyncIterator[tuple[S3JournalStore, S3CheckpointStores]]:
    location = S3Location(object_store.new_bucket("audit"), object_store.endpoint)
    journal = S3JournalStore(location, S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    opener = S3CheckpointStores()
    yield journal, opener
    await journal.close()
    await opener.close()


def job_of(namespace: str, object_store: ObjectStoreServer) -> dict[str, Any]:
    job = training_job("demo", namespace, guard={"policies": [{"name": "demo"}]})
    place = {"uri": f"s3://{object_store.new_bucket('training')}/prefix", "endpoint": object_store.endpoint}
    job["spec"]["checkpoint"] |= place
    return job


async def test_secret_policies_and_pods_are_read_at_once(
    api: ControlPlane, object_store: ObjectStoreServer, stores: tuple[S3JournalStore, S3CheckpointStores]
) -> None:
    namespace = api.create_namespace("survey")
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    metadata = {"name": "s3", "namespace": namespace}
    api.apply(
        job_of(namespace, object_store),
        guard_policy("demo", namespace),
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret},
    )
    cluster = await KubernetesCluster.connect(api.kubeconfig)
    job = TrainingJobView.of(await cluster.training_job(namespace, "demo"))
    observer = Observer(job.run, Meeting(cluster), *stores)  # pyright: ignore[reportArgumentType] it passes calls on
    async with asyncio.timeout(PATIENCE_SECONDS):
        surveyed = await observer.survey(job, run_state(), Judge())
    await cluster.close()
    assert surveyed.blockers == ()
    assert [policy.name for policy in surveyed.guard.policies] == ["demo"]
    assert (surveyed.pods.world, surveyed.pods.state) == (1, PodsState.ABSENT)


async def test_the_policies_of_a_run_that_has_ended_are_not_read_any_more(
    api: ControlPlane, object_store: ObjectStoreServer, stores: tuple[S3JournalStore, S3CheckpointStores]
) -> None:
    namespace = api.create_namespace("ended")
    api.apply(job_of(namespace, object_store))
    cluster = await KubernetesCluster.connect(api.kubeconfig)
    job = TrainingJobView.of(await cluster.training_job(namespace, "demo"))
    observer = Observer(job.run, cluster, *stores)
    going = await observer.survey(job, run_state(), Judge())
    ended = await observer.survey(job, run_state(phase=RunPhase.COMPLETED), Judge())
    await cluster.close()
    assert [problem.reason for problem in going.guard.blocking] == [Reason.POLICY_MISSING]
    assert (ended.guard.blocking, ended.guard.outdated) == ((), ())


async def test_a_cluster_that_is_away_is_one_temporary_error(
    api: ControlPlane,
    object_store: ObjectStoreServer,
    stores: tuple[S3JournalStore, S3CheckpointStores],
    tmp_path: Path,
) -> None:
    (closed,) = free_ports(1)
    away = tmp_path / "kubeconfig"
    away.write_text(api.kubeconfig.read_text().replace(api.server, f"https://127.0.0.1:{closed}"))
    cluster = await KubernetesCluster.connect(away)
    body = job_of("lab", object_store)
    body["metadata"] |= {"uid": str(uuid.uuid4()), "generation": 1}
    job = TrainingJobView.of(body)
    observer = Observer(RunId("lab", "demo", job.uid), cluster, *stores)
    with pytest.raises(ClusterUnavailable):
        await observer.survey(job, run_state(), Judge())
    await cluster.close()
