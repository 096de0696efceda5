"""Loops of other frameworks in bfloat16 and with several micro-batches in a step: as exact as without."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judged_runs import accepted, judged, states
from object_store_fixture import ObjectStoreServer
from own_loop_world import LoopRun, LoopRuns, windows_between
from redis_fixture import RedisServer
from trimtab_contract.directives import AckState, Action

pytestmark = pytest.mark.timeout(1500)

PROGRAMS = Path(__file__).parents[1]
SKIP = ((10, 12),)
STEPS, GLOBAL_BATCH = 24, 8


@pytest.fixture(params=["hugging_face", "lightning"])
def loop(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_run(
    loop: str, redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> Iterator[LoopRuns]:
    runs = LoopRuns(
        redis_server,
        object_store,
        tmp_path,
        PROGRAMS / f"bfloat16_{loop}.py",
        {"steps": STEPS, "globalBatch": GLOBAL_BATCH},
    )
    yield runs
    runs.show_logs()


def finish(run: LoopRun, **directive: Any) -> None:
    run.ack(AckState.FINISHED, attempt=directive.get("attempt", 1))
    run.direct(Action.FINISH, **directive)


def test_micro_batches_in_bfloat16_go_back_exactly_and_count_windows_not_batches(loop: str, make_run: LoopRuns) -> None:
    # AdamW looks at no logits. Which steps are exact changes no bit, so that both runs end with the same state.
    often, always = ({"every": 3}, {"exactMaxLogits": True}) if loop == "lightning" else ({}, {})
    run = make_run("run", gradientAccumulationSteps=2, telemetry=often)
    undisturbed = make_run("even", gradientAccumulationSteps=2, telemetry=always)
    whole = make_run("whole", gradientAccumulationSteps=1)
    with run.world() as world:
        run.waiting()
        run.direct(Action.RUN)
        run.record(13)
        run.ack(AckState.HOLDING, run.direct(Action.HOLD))
        rest = {"attempt": 2, "restore": run.saved(10), "skip": SKIP}
        run.ack(AckState.RESTORED, run.direct(Action.HOLD, **rest))
        run.direct(Action.RUN, **rest)
        finish(run, **rest)
        assert world.ended() == [0, 0]
    for other, skip in ((undisturbed, SKIP), (whole, ())):
        with other.world() as world:
            other.waiting()
            other.direct(Action.RUN, skip=skip)
            finish(other, skip=skip)
            assert world.ended() == [0, 0]

    assert run.losses(2) == {step: loss for step, loss in undisturbed.losses(1).items() if step > 10}
    assert run.manifests()[-1].replica_checksum == undisturbed.manifests()[-1].replica_checksum
    for rank in (0, 1):
        # One window for each step, however many micro-batches it is cut into, and each of them once.
        assert run.windows(2, rank) == windows_between(11, STEPS, SKIP)
    records = run.records(2)
    assert [record.window for record in records.values()] == windows_between(11, STEPS, SKIP)
    assert all(record.samples_seen == step * GLOBAL_BATCH for step, record in records.items())
    assert {record.scalars["replica_mismatch"] for record in records.values() if record.step % 5 == 0} == {0.0}

    # The mean over micro-batches, not their sum: the gradient is as large as that of the window in one piece.
    first, one_piece = undisturbed.records()[1].scalars, whole.records()[1].scalars
    assert first["loss"] == pytest.approx(one_piece["loss"], rel=0.02)
    assert first["grad_norm"] == pytest.approx(one_piece["grad_norm"], rel=0.3)
    if loop == "lightning":
        clipped = [record.scalars["qk_clip_share"] for record in records.values()]
        assert max(clipped) > 0
        for record in records.values():
            (name,) = record.vectors.keys() & {"qk_max_logit", "qk_max_logit_bound"}
            logits, gamma = record.vectors[name], record.vectors["qk_clip_gamma"]
            assert logits.shape == gamma.shape == (2, 4)
            assert [factor < 1 for factor in gamma.values()] == [logit > 0.3 for logit in logits.values()]
            exactly = undisturbed.records()[record.step].vectors["qk_max_logit"].values()
            for told, largest, factor in zip(logits.values(), exactly, gamma.values(), strict=True):
                assert told == largest if factor < 1 or name == "qk_max_logit" else largest <= told <= 0.3
            # Those from a new attempt on, and every third.
            exact = record.step < 14 or record.step % 3 == 0
            assert name == "qk_max_logit" or not exact
        # Every twenty steps the state of weights and moments, as of the reference trainer.
        assert [step for step, record in records.items() if "weight_norm" in record.scalars] == [20]
        looked = undisturbed.records()[20]
        assert looked.scalars["nonfinite_weights"] == looked.scalars["nonfinite_state"] == 0
        assert min(looked.scalars["momentum_norm"], looked.scalars["spectral_norm"]) > 0
        assert looked.vectors["layer_weight_norm"].shape == (2,)
        assert looked.vectors["qk_clip_rate"].shape == (2, 4)
        assert records[20].scalars["weight_norm"] == looked.scalars["weight_norm"]
        # Rules on either metric see the same head two updates in a row, as those of the policy library do.
        for metric, streak in (("qk_max_logit", "longestStreakAbove"), ("qk_clip_gamma", "longestStreakBelow")):
            bound = 0.3 if metric == "qk_max_logit" else 1
            rule = accepted({"metric": metric, "reduce": {streak: bound}, "range": {"max": 1}})
            assert "F" in states(judged(rule, undisturbed.records().values()))
