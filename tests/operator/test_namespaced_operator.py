"""The operator's process with the chart's own rights in one namespace: it leads, keeps a job there, and ends it."""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, run_request, training_job
from redis_fixture import ADMIN_USER, RedisServer
from rendered_chart import render
from server_process import free_ports
from trimtab_contract.keys import RunId, redis_user
from trimtab_operator.adapters.s3 import S3Credentials, S3JournalStore, S3Location

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Scene:
    """One namespace that the operator watches, and what it writes to."""

    api: ControlPlane
    namespace: str
    journal: S3JournalStore
    log: Path
    environment: Mapping[str, str]

    @asynccontextmanager
    async def operator(self) -> AsyncGenerator[None]:
        """The operator's process; told to stop at the end, which it must do in peace."""
        with self.log.open("ab") as output:
            command = (sys.executable, "-m", "trimtab_operator")
            process = await asyncio.create_subprocess_exec(*command, env=self.environment, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            ended = await process.wait()
        assert ended == 0, self.log.read_text()[-3000:]

    def stored(self, kind: str, name: str) -> dict[str, Any]:
        return json.loads(self.api.kubectl("get", kind, name, f"-n={self.namespace}", "-o=json"))

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.environment['TRIMTAB_HEALTH_PORT']}/metrics") as answer:
            return answer.read().decode()

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        for _ in range(300):
            if await asyncio.to_thread(holds):
                return
            await asyncio.sleep(POLL_SECONDS)
        pytest.fail(f"{what} did not happen; {self.log.read_text()[-3000:]}")

    async def until_journaled(self, run: RunId, action: str) -> None:
        for _ in range(300):
            last = await self.journal.read(run)
            if any(f'"action":"{action}"'.encode() in body for _, body in last):
                return
            await asyncio.sleep(POLL_SECONDS)
        pytest.fail(f"{action} was not journaled; {self.log.read_text()[-3000:]}")


def kubeconfig(api: ControlPlane, system: str, path: Path) -> Path:
    """The administrator's, with the token of the chart's service account in place of his."""
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": api.kubectl("create", "token", "trimtab", f"-n={system}").strip()}
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
async def scene(
    api: ControlPlane, object_store: ObjectStoreServer, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[Scene]:
    system, namespace = api.create_namespace("system"), api.create_namespace("team")
    api.apply(*render(f"--set=watchNamespaces={{{namespace}}}", "--set=crds.install=false", namespace=system))
    bucket, log = object_store.new_bucket("audit"), tmp_path / "operator.log"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KUBECONFIG": str(kubeconfig(api, system, tmp_path / "kubeconfig")),
        "TRIMTAB_REDIS_URL": f"redis://{redis_server.host}:{redis_server.port}",
        "TRIMTAB_REDIS_USERNAME": ADMIN_USER,
        "TRIMTAB_REDIS_PASSWORD": redis_server.admin_password,
        "TRIMTAB_AUDIT_BUCKET": bucket,
        "TRIMTAB_AUDIT_ENDPOINT": object_store.endpoint,
        "TRIMTAB_AUDIT_ACCESS_KEY_ID": ADMIN.access_key,
        "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": ADMIN.secret_key,
        "TRIMTAB_NAMESPACE": system,
        "TRIMTAB_POD_NAME": "trimtab-0",
        "TRIMTAB_POD_UID": "u",
        "TRIMTAB_IMAGE": "operator",
        "TRIMTAB_TRAINER_IMAGE": "trainer",
        "TRIMTAB_WATCH_NAMESPACES": namespace,
        "TRIMTAB_RESYNC_SECONDS": "1",
        "TRIMTAB_HEALTH_PORT": str(free_ports(1)[0]),
    }
    journal = S3JournalStore(
        S3Location(bucket, object_store.endpoint), S3Credentials(ADMIN.access_key, ADMIN.secret_key)
    )
    yield Scene(api, namespace, journal, log, environment)
    await journal.close()


async def apply_job(scene: Scene, object_store: ObjectStoreServer, name: str) -> RunId:
    """A job whose Secret does not exist, under one policy."""
    storage = {"uri": f"s3://{object_store.new_bucket('training')}/root", "endpoint": object_store.endpoint}
    job = training_job(name, scene.namespace, checkpoint={**storage, "credentialsSecretRef": {"name": "later"}})
    job["spec"]["guard"] = {"policies": [{"name": "demo"}]}
    await asyncio.to_thread(scene.api.apply, guard_policy(namespace=scene.namespace), job)
    return RunId(scene.namespace, name, scene.stored("tj", name)["metadata"]["uid"])


async def test_rights_in_one_namespace_are_enough_to_keep_a_job_from_its_first_word_to_its_end(
    scene: Scene, object_store: ObjectStoreServer, redis_server: RedisServer
) -> None:
    async with scene.operator():
        run = await apply_job(scene, object_store, "kept")
        await scene.until(
            "the missing Secret in the status", lambda: "later" in str(scene.stored("tj", "kept").get("status"))
        )

        keys = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
        metadata = {"name": "later", "namespace": scene.namespace}
        await asyncio.to_thread(
            scene.api.apply, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys}
        )
        await scene.until_journaled(run, "StartWorld")
        await scene.until(
            "the Job", lambda: "kept-1" in scene.api.kubectl("get", "jobs", f"-n={scene.namespace}", "-o=name")
        )
        with redis_server.client() as admin:
            assert redis_user(run) in admin.acl_users()
        place = f'job_name="kept",job_namespace="{scene.namespace}"'
        await scene.until("the metrics", lambda: f'trimtab_job_phase{{{place},phase="Pending"}} 1.0' in scene.metrics())
        assert "trimtab_breaker_open 0.0" in await asyncio.to_thread(scene.metrics)

        made = ("tj", "gp", "jobs", "services", "configmaps", "secrets")
        listed = json.loads(scene.api.kubectl("get", ",".join(made), f"-n={scene.namespace}", "-o=json"))
        assert [one["metadata"].get("finalizers") for one in listed["items"]] == [None] * len(listed["items"])

        await asyncio.to_thread(scene.api.kubectl, "delete", "tj", "kept", f"-n={scene.namespace}")
        await scene.until_journaled(run, "RunEnded")
        with redis_server.client() as admin:
            await scene.until("the sweep of the user", lambda: redis_user(run) not in admin.acl_users())
    assert "does not allow" not in scene.log.read_text()
    assert "defect" not in scene.log.read_text()


async def test_people_are_answered_with_the_rights_that_the_chart_gives(
    scene: Scene, object_store: ObjectStoreServer
) -> None:
    def shown(name: str) -> str:
        return scene.stored("rr", name).get("status", {}).get("state", "")

    async with scene.operator():
        run = await apply_job(scene, object_store, "asked")
        await scene.until_journaled(run, "PolicyAccepted")
        resume = run_request(scene.namespace, "resume", job="asked", action="Resume")
        await asyncio.to_thread(scene.api.apply, resume)
        await scene.until("the refusal", lambda: shown("resume") == "Refused")
        message = scene.stored("rr", "resume")["status"]["message"]
        assert message == "Resume is refused in phase Pending; what is legal there: Skip and Stop"

        stop = run_request(scene.namespace, "stop", job="asked", action="Stop")
        await asyncio.to_thread(scene.api.apply, stop)
        await scene.until("the end", lambda: shown("stop") == "Done")
        await scene.until("the phase", lambda: scene.stored("tj", "asked")["status"]["phase"] == "Stopped")
    events = json.loads(scene.api.kubectl("get", "events", f"-n={scene.namespace}", "-o=json"))["items"]
    told = {one["reason"]: one["message"] for one in events}
    assert told["RequestRefused"].startswith("admin asks for Resume (the spike is known), which is refused: ")
    assert told["StoppedByRequest"] == "admin asks for it"
    assert "does not allow" not in scene.log.read_text()
    assert "defect" not in scene.log.read_text()


async def test_a_job_deleted_while_no_operator_ran_is_ended_and_a_new_one_of_its_name_is_another_run(
    scene: Scene, object_store: ObjectStoreServer
) -> None:
    async with scene.operator():
        earlier = await apply_job(scene, object_store, "again")
        await scene.until_journaled(earlier, "Takeover")
    await asyncio.to_thread(scene.api.kubectl, "delete", "tj", "again", f"-n={scene.namespace}")
    later = await apply_job(scene, object_store, "again")
    assert later != earlier
    async with scene.operator():
        await scene.until_journaled(earlier, "RunEnded")
        await scene.until_journaled(later, "Takeover")
    (_, first), *others = await scene.journal.read(later)
    assert b'"action":"Takeover"' in first
    assert not any(b"RunEnded" in body for _, body in others)
