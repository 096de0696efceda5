"""The Job that reads checkpoints back on a real API server: made once, whoever leads, and its words are taken up."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from control_plane_fixture import ControlPlane
from ended_jobs import JOBS, PODS, end_job, make_pod, set_status
from operator_objects import training_job
from operator_ports import IDENTITY
from run_states import reference, run_state
from trimtab_contract.read_back import ReadBack, ReadBackAnswer, ReadBackReport, encode_report
from trimtab_operator.adapters.api_server import ApiServer
from trimtab_operator.adapters.lease import LeaderLease
from trimtab_operator.journal import RunJournal
from trimtab_operator.observation import ReadBackOutcome
from trimtab_operator.read_back import START_SECONDS
from trimtab_operator.read_back_keeper import ReadBackKeeper
from trimtab_operator.read_back_workload import MAKING_SECONDS, read_back_name
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import ReadBackOrder, RunState
from trimtab_operator.workload import TrainingJobView, WorkloadDefaults

DEFAULTS = WorkloadDefaults("trainer", "redis://redis:6379")
SINCE = 1_767_225_600.0
SAID = (ReadBackAnswer(sha256="0" * 64, found=ReadBack.VERIFIED),)


@dataclass
class Scene:
    """A TrainingJob whose journal has ordered a Job, and the operators that come and go."""

    ports: Ports
    server: ApiServer
    job: TrainingJobView
    state: RunState
    now: float = SINCE
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def order(self) -> ReadBackOrder:
        assert self.state.read_back is not None
        return self.state.read_back

    @property
    def name(self) -> str:
        return read_back_name(self.job, self.order)

    def keeper(self) -> ReadBackKeeper:
        ports = self.ports
        clock = lambda: datetime.fromtimestamp(self.now, UTC)  # noqa: E731 - read anew at each call
        return ReadBackKeeper(self.job.run, ports.cluster, ports.journal, ports.lease, self.woken.set, clock)

    async def look(self, keeper: ReadBackKeeper, job: TrainingJobView | None = None) -> ReadBackOutcome | None:
        """What the keeper knows after one more look."""
        keeper.attend(0.0, self.state, job or self.job, DEFAULTS)
        assert keeper._task is not None  # pyright: ignore[reportPrivateUsage] what goes on beside the turns
        await keeper._task  # pyright: ignore[reportPrivateUsage] likewise
        return keeper.outcome(self.state)

    async def jobs(self) -> list[str]:
        return [one["metadata"]["name"] for one in await self.server.list(JOBS, self.job.namespace)]

    async def ends(self, message: str) -> None:
        await end_job(self.server, self.job.namespace, self.name, message)


@pytest.fixture
async def scene(api: ControlPlane, ports: Ports) -> AsyncIterator[Scene]:
    (ours,) = ports.namespaces
    api.apply(training_job("demo", ours))
    job = TrainingJobView.of(await ports.cluster.training_job(ours, "demo"))
    journal = RunJournal(ports.journal, job.run, IDENTITY)
    await journal.take_over(0)
    order = ReadBackOrder(
        id="run/ReadBack/31", number=31, checkpoints=(reference(60),), seconds=1800, avoid=("node-1",), since=SINCE
    )
    server = await ApiServer.connect(api.kubeconfig)
    state = replace(run_state(read_back=order), seq=journal.state.seq, epoch=journal.state.epoch)
    yield Scene(ports, server, job, state)
    await server.close()


async def test_one_job_is_made_and_what_it_says_is_known_to_whoever_leads_then(scene: Scene) -> None:
    first = scene.keeper()
    assert await scene.look(first) is None
    assert await scene.jobs() == [scene.name]
    assert first.status(scene.state) == "the checkpoint of step 60 is read back and hashed by a Job"
    killed, second = first, scene.keeper()
    for keeper in (killed, second):
        assert await scene.look(keeper) is None
    assert await scene.jobs() == [scene.name]
    await scene.ends(encode_report(ReadBackReport(job=scene.name, answers=SAID)))
    expected = ReadBackOutcome(number=31, job=scene.name, answers=SAID, node="node-2")
    assert await scene.look(second) == expected
    assert scene.woken.is_set()
    assert await scene.look(scene.keeper()) == expected
    assert second.outcome(replace(scene.state, read_back=None)) is None


async def test_an_operator_that_leads_no_more_makes_no_job(scene: Scene) -> None:
    await RunJournal(scene.ports.journal, scene.job.run, IDENTITY).take_over(scene.state.epoch + 5)
    assert await scene.look(scene.keeper()) is None
    assert await scene.jobs() == []
    scene.state = replace(scene.state, epoch=scene.state.epoch + 6)
    assert isinstance(scene.ports.lease, LeaderLease)
    await scene.ports.lease.release()
    assert await scene.look(scene.keeper()) is None
    assert await scene.jobs() == []


async def test_a_job_that_cannot_be_made_is_over_and_says_why(scene: Scene) -> None:
    elsewhere = replace(scene.job, namespace="nowhere")
    outcome = await scene.look(scene.keeper(), elsewhere)
    assert outcome is not None
    assert outcome.answers == ()
    assert f"Job {scene.name} cannot be made: " in outcome.error


async def test_an_order_that_is_too_old_makes_no_job(scene: Scene) -> None:
    """The Job may have been there, and have gone by its own time."""
    scene.now = SINCE + MAKING_SECONDS + 1
    outcome = await scene.look(scene.keeper())
    assert outcome is not None
    assert outcome.error == f"Job {scene.name} is gone, or never was there"
    assert await scene.jobs() == []


async def test_a_job_of_an_earlier_training_job_is_none_of_ours(scene: Scene) -> None:
    other = replace(scene.job, uid="0b7c12ab-0000-4000-8000-000000000000")
    assert await scene.look(scene.keeper(), other) is None
    first_name = read_back_name(other, scene.order)
    same_name = replace(scene.job, uid=f"{other.uid[:8]}-1111-4000-8000-000000000000")
    assert read_back_name(same_name, scene.order) == first_name
    assert await scene.look(scene.keeper(), same_name) is None, "it waits until the earlier one is gone"
    assert await scene.jobs() == [first_name]


async def test_a_job_that_does_not_begin_to_read_is_known_as_one_until_it_does(scene: Scene) -> None:
    keeper = scene.keeper()
    await scene.look(keeper)
    job = await scene.server.get(JOBS, scene.job.namespace, scene.name)
    pod = await make_pod(scene.server, job)
    assert keeper.stalled == 0, "it may take its time"
    scene.now = SINCE + START_SECONDS + 1
    await scene.look(keeper)
    assert keeper.stalled == scene.order.number
    await set_status(scene.server, PODS, pod, {"phase": "Running"})
    await scene.look(keeper)
    assert keeper.stalled == 0
