"""The API server and Redis of a scripted run, for the operator's own effects: each write is an act of its own."""

from collections.abc import Mapping
from typing import Any, cast

from operator_objects import training_job
from played_trainer import RUN
from scripted_world import ScriptedRun
from trimtab_contract.directives import Directive
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.ports import (
    Bus,
    Cluster,
    Created,
    KubernetesObject,
    Lease,
    PodView,
    Publication,
    Published,
)
from trimtab_operator.effects import Surroundings
from trimtab_operator.errors import BusUnavailable, ClusterUnavailable, Conflict, Fenced, NotFound
from trimtab_operator.run_state import RunState
from trimtab_operator.workload import PASSWORD_KEY, TrainingJobView, WorkloadDefaults

_BODY = training_job(RUN.name, RUN.namespace)
JOB = TrainingJobView.of({**_BODY, "metadata": {**_BODY["metadata"], "uid": RUN.uid, "generation": 1}})
DEFAULTS = WorkloadDefaults("image", "redis://redis:6379")


def surroundings(run: ScriptedRun, state: RunState, lease: Lease) -> Surroundings:
    """What an effect needs besides the journal."""
    bus = ScriptedBus(run, lease)
    return Surroundings(JOB, DEFAULTS, cast("Cluster", ScriptedCluster(run, state)), cast("Bus", bus))


class ScriptedCluster:
    """The objects that effects write and read; pods are those of the run."""

    def __init__(self, run: ScriptedRun, state: RunState) -> None:
        self._run, self._state = run, state

    async def secret(self, _namespace: str, name: str) -> Mapping[str, str]:
        if ("Secret", name) not in self._run.made:
            message = f"Secret {name} does not exist"
            raise NotFound(message)
        return {PASSWORD_KEY: "password"}

    async def create(self, body: KubernetesObject) -> Created:
        run, kind, name = self._run, str(body["kind"]), str(body["metadata"]["name"])
        fresh = (kind, name) not in run.made
        if kind == "Job":
            world = int(name.rsplit("-", 1)[1])
            missing = {"Secret", "ConfigMap", "Service", "user"} - {made for made, _ in run.made}
            if missing or ("Service", name) not in run.made:
                run.violations.append(f"world {world} was created without {missing or 'its Service'}")
            run.create_job(world, world)
        else:
            run.operation(lambda: run.made.add((kind, name)), away=ClusterUnavailable, denied=Conflict)
        return Created("uid", "1", fresh)

    async def pods(self, _namespace: str, _selector: str) -> tuple[PodView, ...]:
        return tuple(_running(name) for name in self._run.pods(self._state).names)

    async def delete_pod(self, _namespace: str, name: str, _uid: str, _grace_seconds: int) -> None:
        self._run.end_pods(int(name.split("-")[1]))


class ScriptedBus:
    """The directive, and whether the run has its user."""

    def __init__(self, run: ScriptedRun, lease: Lease) -> None:
        self._run, self._lease = run, lease

    async def publish(self, _run: RunId, directive: Directive) -> Published:
        if not self._lease.valid():
            self._run.violations.append(f"directive {directive.order} came from an operator whose Lease had run out")
        stored = self._run.publish(directive)
        written = stored == directive.order
        return Published(Publication.WRITTEN if written else Publication.REFUSED, stored)

    async def ensure_user(self, _run: RunId, _password: str) -> None:
        self._run.operation(lambda: self._run.made.add(("user", "")), away=BusUnavailable, denied=Fenced)


def _running(name: str) -> PodView:
    about: dict[str, Any] = dict.fromkeys(
        ("node", "waiting", "waiting_message", "unschedulable", "image_id", "reason", "message"), ""
    )
    return PodView(
        name=name,
        uid=name,
        index=0,
        phase="Running",
        deleted=False,
        ready=True,
        exit_codes=(),
        termination_messages=(),
        **about,
    )
