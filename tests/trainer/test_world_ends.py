"""How a world that ends as it was told looks to people: in its exit statuses, which are the pods', and in its logs."""

from pathlib import Path

import pytest
from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import RANKS, Run
from trimtab_contract.directives import AckState, Action, Reason
from trimtab_trainer.termination import exit_status

pytestmark = pytest.mark.timeout(600)


def test_a_stopped_world_completes_and_its_logs_show_no_traceback(
    redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    run = Run(redis_server, object_store, tmp_path, object_store.new_bucket(), {"steps": 100_000})
    with run.world(torchrun=True) as world:
        run.direct(Action.RUN)
        run.record(3)
        stop = run.direct(Action.STOP)
        assert world.ended() == [0] * RANKS
    run.ack(AckState.STOPPED, stop)
    for node in range(RANKS):
        log = run.log(node)
        assert run.message(node).reason is Reason.STOPPED
        assert "Traceback" not in log, log
        assert log.count("the run is stopped for good, as it was told") == 1


@pytest.mark.parametrize("reason", sorted(Reason))
def test_an_index_is_completed_only_where_no_world_follows(reason: Reason) -> None:
    """A drained world goes on in another one, whose index must not have been completed."""
    assert (exit_status(reason) == 0) is (reason in {Reason.FINISHED, Reason.STOPPED})
