"""What an operator reaches, all of it real: an API server, Redis, S3, and a Lease that it holds."""

from collections.abc import AsyncIterator

import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from redis_fixture import RedisServer
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.lease import LeaderLease
from trimtab_operator.adapters.redis import RedisBus
from trimtab_operator.adapters.s3 import S3CheckpointStores, S3Credentials, S3JournalStore, S3Location
from trimtab_operator.journal import Identity
from trimtab_operator.reconciler import Ports
from trimtab_operator.workload import WorkloadDefaults

IDENTITY = Identity("operator", "pod", "uid", "image")


@pytest.fixture
def audit_bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("audit")


@pytest.fixture
async def ports(
    api: ControlPlane, redis_server: RedisServer, object_store: ObjectStoreServer, audit_bucket: str
) -> AsyncIterator[Ports]:
    ours = api.create_namespace("ours")
    cluster = await KubernetesCluster.connect(api.kubeconfig, namespaces=(ours,))
    bus = RedisBus(redis_server.url, timeout_seconds=2.0)
    location = S3Location(audit_bucket, object_store.endpoint)
    journal = S3JournalStore(location, S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    stores = S3CheckpointStores()
    lease = LeaderLease(cluster, ours, "operator", "pod", duration_seconds=300)
    await lease.acquire()
    yield Ports(
        cluster=cluster,
        bus=bus,
        journal=journal,
        stores=stores,
        lease=lease,
        identity=IDENTITY,
        defaults=WorkloadDefaults("image", "redis://redis:6379"),
        resync_seconds=0.1,
        namespaces=(ours,),
    )
    for port in (bus, journal, stores, cluster):
        await port.close()
