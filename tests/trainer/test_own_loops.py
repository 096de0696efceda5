"""Training loops of other frameworks in real worlds, steered by directives written by hand.

They must hold, go back, skip, withhold, drain and continue exactly as the reference loop does, and what they trained on
must be provable. Such worlds are slow to start, so each test tells a long story.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store_fixture import ObjectStoreServer
from own_loop_world import EXAMPLES, LoopRuns, windows_between
from redis_fixture import RedisServer
from trimtab_contract.directives import AckState, Action, OnNonFinite, Reason

pytestmark = pytest.mark.timeout(1500)

SKIP = ((10, 12),)
STEPS = 24
LOOPS = {
    "hugging-face": "model.layers.1.mlp.down_proj.weight",
    "lightning": "layers.layers.1.linear2.weight",
}
"""The folder of each example, and a parameter of its model."""


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_run(
    loop: str, redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> Iterator[LoopRuns]:
    runs = LoopRuns(redis_server, object_store, tmp_path, EXAMPLES / loop / "train.py", {"steps": STEPS})
    yield runs
    runs.show_logs()


def test_two_ranks_repeat_withhold_go_back_and_drain_at_the_same_steps(loop: str, make_run: LoopRuns) -> None:
    poison = {"kind": "poisonGradient", "tensor": LOOPS[loop]}
    run = make_run(
        "run",
        gradientAccumulationSteps=2,
        faults=[{**poison, "attempt": 1, "step": 8, "rank": 1}, {**poison, "attempt": 2, "step": 14, "rank": 0}],
    )
    with run.world() as world:
        run.waiting()
        run.direct(Action.RUN, on_nonfinite=OnNonFinite.CONTINUE)
        run.record(13)
        held = run.ack(AckState.HOLDING, run.direct(Action.HOLD))
        assert held.replicas is not None
        assert held.replicas.agree

        # Back to step 5, without the windows that the held attempt had trained on.
        rest = {"attempt": 2, "restore": run.saved(5), "skip": SKIP}
        run.ack(AckState.RESTORED, run.direct(Action.HOLD, **rest))
        run.direct(Action.RUN, on_nonfinite=OnNonFinite.HOLD, **rest)
        stopped = run.ack(AckState.HOLDING, reason=Reason.NON_FINITE)
        assert stopped.step == 14
        assert LOOPS[loop] in stopped.detail
        assert stopped.nonfinite == ()

        rest = {"attempt": 3, "restore": run.saved(10, attempt=2), "skip": SKIP}
        run.ack(AckState.RESTORED, run.direct(Action.HOLD, **rest))
        run.direct(Action.RUN, **rest)
        run.record(17, attempt=3)
        world.signal_pod(1, signal.SIGTERM)
        assert world.ended() == [1, 1]

    first, second, third = (run.losses(attempt) for attempt in (1, 2, 3))
    # A step that was computed twice left no trace, nor did the attempts that were given up.
    assert run.records()[8].scalars["skipped_update"] == 0
    assert {step: second[step] for step in range(6, 11)} == {step: first[step] for step in range(6, 11)}
    assert {step: third[step] for step in (11, 12, 13)} == {step: second[step] for step in (11, 12, 13)}
    assert run.records(2)[14].scalars["skipped_update"] == 1
    assert run.records(2)[14].scalars["nonfinite"] > 0
    assert run.records(2)[14].vectors.keys() == {"qk_max_logit"}
    assert run.records(3)[14].vectors.keys() == {"qk_max_logit", "qk_clip_gamma"}
    assert third[15] != third[14]
    for rank in (0, 1):
        assert run.windows(2, rank) == windows_between(6, 14, SKIP)
        assert run.windows(3, rank)[:6] == windows_between(11, 16, SKIP)
    # Rank 1 may miss the end of the save: without torchrun it is rank 0 that keeps the store of the ranks.
    drained = run.message(0)
    assert drained.reason is Reason.TERMINATED
    assert drained.saved is not None
    assert drained.saved.step == drained.step == run.message(1).step


def test_a_run_that_went_back_and_changed_its_world_has_the_losses_of_one_that_never_did(make_run: LoopRuns) -> None:
    # Nor do largest logits that are exact at other steps change a bit.
    run, undisturbed = make_run("run"), make_run("undisturbed", telemetry={"every": 4})
    with run.world(ranks=1) as world:
        run.waiting()
        run.direct(Action.RUN)
        run.record(13)
        run.ack(AckState.HOLDING, run.direct(Action.HOLD))
        rest = {"attempt": 2, "restore": run.saved(10), "skip": SKIP}
        run.ack(AckState.RESTORED, run.direct(Action.HOLD, **rest))
        run.direct(Action.RUN, **rest)
        run.record(16, attempt=2)
        world.signal_pod(0, signal.SIGTERM)
        assert world.ended() == [1]
    saved = run.message(0).saved
    assert saved is not None

    with run.world(3, ranks=1) as world:
        run.waiting(3)
        rest = {"world": 3, "attempt": 3, "restore": saved, "skip": SKIP, "epoch": 2}
        run.ack(AckState.RESTORED, run.direct(Action.HOLD, **rest))
        run.direct(Action.RUN, **rest)
        run.ack(AckState.FINISHED, attempt=3)
        run.direct(Action.FINISH, **rest)
        assert world.ended() == [0]

    with undisturbed.world(ranks=1) as world:
        undisturbed.waiting()
        undisturbed.direct(Action.RUN, skip=SKIP)
        undisturbed.ack(AckState.FINISHED)
        undisturbed.direct(Action.FINISH, skip=SKIP)
        assert world.ended() == [0]

    known = {step: "qk_max_logit" in record.vectors for step, record in undisturbed.records().items()}
    assert known == {step: step <= 4 or step % 4 == 0 for step in range(1, STEPS + 1)}
    assert all(("qk_max_logit_bound" in one.vectors) != known[step] for step, one in undisturbed.records().items())
    assert run.losses(2) | run.losses(3) == {s: x for s, x in undisturbed.losses(1).items() if s > 10}
    assert run.windows(2, 0)[: saved.step - 10] + run.windows(3, 0) == windows_between(11, STEPS, SKIP)
    assert run.manifests()[-1].replica_checksum == undisturbed.manifests()[-1].replica_checksum
