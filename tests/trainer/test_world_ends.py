"""How a world that ends as it was told looks to people: in its exit statuses, which are the pods', and in its logs."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import RANKS, Run, until
from trimtab_contract.checkpoints import decode_manifest, sha256_hex
from trimtab_contract.directives import AckState, Action, Reason
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_trainer.termination import exit_status

pytestmark = pytest.mark.timeout(600)


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path) -> MakeRun:
    def make(**config: Any) -> Run:
        return Run(redis_server, object_store, tmp_path, object_store.new_bucket(), {"steps": 100_000, **config})

    return make


def last_line(run: Run, node: int, world: int = 1) -> str:
    """What a reader of the end of a pod's log sees."""
    return run.log(node, world).splitlines()[-1]


def test_a_stopped_world_completes_and_its_logs_end_with_one_sentence(make_run: MakeRun) -> None:
    run = make_run()
    with run.world(torchrun=True) as world:
        run.direct(Action.RUN)
        run.record(3)
        stop = run.direct(Action.STOP)
        assert world.ended() == [0] * RANKS
    stopped = run.ack(AckState.STOPPED, stop)
    for node in range(RANKS):
        log = run.log(node)
        assert run.message(node).reason is Reason.STOPPED
        assert "Traceback" not in log, log
        said = f"trimtab: ended at step {stopped.step}: the run is stopped for good, as it was told"
        assert last_line(run, node).startswith(said), log


def test_a_drained_world_fails_no_pod_in_its_logs_and_does_in_its_exit_statuses(make_run: MakeRun) -> None:
    """torchrun is told of the drain in one pod; in the other it only sees a process that ended with 1."""
    run = make_run()
    with run.world(torchrun=True) as world:
        run.direct(Action.RUN)
        run.record(3)
        world.signal_pod(1, signal.SIGTERM)
        assert world.ended() == [1] * RANKS
    drained = run.ack(AckState.TERMINATED)
    for node in range(RANKS):
        log = run.log(node)
        assert run.message(node).reason is Reason.TERMINATED
        assert "Traceback" not in log, log
        assert "failed" not in log, log
        said = f"trimtab: drained: all ranks saved at step {drained.step}, and the next world goes on from there"
        assert last_line(run, node) == said, log


def test_a_rank_that_does_not_answer_ends_the_world_by_name_and_harms_no_checkpoint(make_run: MakeRun) -> None:
    """A machine that is cut off closes no connection: only the time-out of an exchange tells."""
    run = make_run(collectiveTimeoutSeconds=20)
    with run.world() as world:
        run.direct(Action.RUN)
        run.saved(5)
        world.signal_pod(1, signal.SIGSTOP)
        until("the end of the other rank", lambda: True if world.pods[0].poll() is not None else None)
        assert world.pods[0].returncode == 1
    left = run.message(0)
    assert left.reason is Reason.PEER_LOST
    assert left.saved is not None
    prefix = left.saved.key.removesuffix(MANIFEST_NAME)
    stored = run.objects(prefix)
    manifest = decode_manifest(stored[left.saved.key])
    assert {name: sha256_hex(stored[f"{prefix}{name}"]) for name in manifest.objects} == {
        name: one.sha256 for name, one in manifest.objects.items()
    }


@pytest.mark.parametrize("reason", sorted(Reason))
def test_an_index_is_completed_only_where_no_world_follows(reason: Reason) -> None:
    """A drained world goes on in another one, whose index must not have been completed."""
    assert (exit_status(reason) == 0) is (reason in {Reason.FINISHED, Reason.STOPPED})
