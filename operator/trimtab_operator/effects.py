"""Carries out an effect whose intent is in the journal; every one may be repeated without doing more."""

import secrets
from dataclasses import dataclass

from trimtab_contract.directives import Directive
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.ports import Bus, Cluster, Publication
from trimtab_operator.errors import Conflict, Fenced, NotFound
from trimtab_operator.run_state import JournalAction, PendingEffect, RunState
from trimtab_operator.workload import (
    PASSWORD_KEY,
    TrainingJobView,
    WorkloadDefaults,
    redis_secret,
    redis_secret_name,
    world_objects,
    world_selector,
)

END_GRACE_SECONDS = 5
"""What a hung world gets to die; a suspended one gets its own grace period."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an effect needs besides the journal: the job as it is now and the adapters."""

    job: TrainingJobView
    defaults: WorkloadDefaults
    cluster: Cluster
    bus: Bus


async def perform(effect: PendingEffect, state: RunState, around: Surroundings) -> str:
    """Do it and say what was done. Temporary errors mean: not known to be done, repeat; Fenced means: stop."""
    if effect.action is JournalAction.START_WORLD:
        return await _start_world(state, around)
    if effect.action is JournalAction.END_WORLD:
        return await _end_world(effect, around)
    return await publish(around.bus, around.job.run, _in_force(state))


async def publish(bus: Bus, run: RunId, directive: Directive) -> str:
    """Put the directive in force; raises Fenced when a higher one is stored."""
    published = await bus.publish(run, directive)
    if published.outcome is Publication.REFUSED:
        message = f"directive {directive.order} of run {run} is below the stored {published.stored}"
        raise Fenced(message)
    return f"directive {directive.epoch}.{directive.seq} {published.outcome.value.lower()}"


async def ensure_user(around: Surroundings) -> str:
    """Give the run's Redis user the password of its Secret, which is made when it is absent; the password."""
    namespace, name = around.job.namespace, redis_secret_name(around.job)
    try:
        password = (await around.cluster.secret(namespace, name))[PASSWORD_KEY]
    except (NotFound, KeyError):
        await around.cluster.create(redis_secret(around.job, secrets.token_urlsafe(32)))
        password = (await around.cluster.secret(namespace, name))[PASSWORD_KEY]
    await around.bus.ensure_user(around.job.run, password)
    return password


async def _start_world(state: RunState, around: Surroundings) -> str:
    directive = _in_force(state)
    password = await ensure_user(around)
    source = state.source.run if state.source is not None else ""
    objects = world_objects(around.job, around.defaults, directive.world, password, state.suspect_nodes, source)
    await around.cluster.create(objects.config_map)
    await around.cluster.create(objects.service)
    await publish(around.bus, around.job.run, directive)
    created = await around.cluster.create(objects.job)
    return f"Job {objects.job['metadata']['name']} {'created' if created.fresh else 'found'}"


async def _end_world(effect: PendingEffect, around: Surroundings) -> str:
    spec = around.job.spec
    grace = spec.pod_template.termination_grace_period_seconds if spec.suspend else END_GRACE_SECONDS
    selector = world_selector(around.job, int(effect.after["world"]))
    ended: list[str] = []
    for pod in await around.cluster.pods(around.job.namespace, selector):
        if not pod.deleted and pod.phase in {"Pending", "Running"}:
            await around.cluster.delete_pod(around.job.namespace, pod.name, pod.uid, grace)
            ended.append(pod.name)
    return f"pods told to end: {', '.join(ended) or 'none left'}"


def _in_force(state: RunState) -> Directive:
    if state.directive is None:
        message = "an effect needs a directive, and the journal holds none"
        raise Conflict(message)
    return state.directive
