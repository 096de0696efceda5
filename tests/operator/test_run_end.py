"""The end of a run whose TrainingJob is gone is one record, whatever becomes of the store's replies."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from played_trainer import RUN, Scenario
from scripted_world import ScriptedRun
from trimtab_operator.adapters.ports import Created, KubernetesObject
from trimtab_operator.errors import NotFound, OperatorError
from trimtab_operator.journal import Identity
from trimtab_operator.reconciler import Ports, RunReconciler
from trimtab_operator.workload import WorkloadDefaults

TRIES = 4


class Emptied:
    """A namespace from which the TrainingJob is gone, with room for the run's anchor."""

    def __init__(self) -> None:
        self.anchors: list[KubernetesObject] = []

    async def training_job(self, _namespace: str, name: str) -> KubernetesObject:
        message = f"TrainingJob {name} does not exist"
        raise NotFound(message)

    async def journal_anchor(self, _namespace: str, _name: str) -> KubernetesObject | None:
        return None

    async def create(self, body: KubernetesObject) -> Created:
        self.anchors.append(body)
        return Created("uid", "1", fresh=True)


@pytest.mark.parametrize("way", ["lost", "denied", "undone"])
async def test_the_end_of_a_deleted_run_is_written_once(way: str) -> None:
    run, cluster = ScriptedRun(Scenario()), Emptied()
    unused: Any = None
    ports = Ports(
        cluster=cast("Any", cluster),
        bus=unused,
        journal=cast("Any", run.store),
        stores=unused,
        lease=cast("Any", SimpleNamespace(epoch=1, duration_seconds=15.0, valid=lambda: True)),
        identity=Identity("operator", "pod", "uid", "image"),
        defaults=WorkloadDefaults("image", "redis://redis:6379"),
        resync_seconds=1.0,
    )
    reconciler = RunReconciler(RUN, ports)
    await reconciler.open()
    run.kills = frozenset({(run.operations, way)})
    for _ in range(TRIES):
        with suppress(OperatorError):
            await reconciler.end("Deleted")
        if reconciler.gone:
            break
    assert reconciler.gone
    assert [record.action for record in run.announced] == ["Takeover", "RunEnded"]
    (anchor,) = cluster.anchors
    assert (anchor["spec"]["seq"], anchor["spec"]["ended"]) == (2, True)
