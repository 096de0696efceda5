"""Worlds of two real processes with real Redis and S3, steered by directives written by hand.

We test what the operator relies on: that both ranks act at the same boundary, that what was trained on can be proved,
that a damaged state never spreads, and that the outside may fail at any time. Worlds are slow to start, so a test
tells one long story.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import ROOT, TINY, Run, until
from trimtab_contract import keys
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import (
    AckState,
    Action,
    CheckpointReference,
    Diagnose,
    EvidenceReference,
    OnNonFinite,
    Reason,
    encode,
)
from trimtab_contract.evidence import decode_probe

pytestmark = pytest.mark.timeout(600)

MakeRun = Callable[..., Run]
QUERY = "blocks.0.attention.query.weight"
MLP = "blocks.1.down.weight"


@pytest.fixture
def make_run(redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[MakeRun]:
    """Make a run; the end of every pod's log is printed, for pytest to show when a test fails."""

    def make(config: dict[str, Any], **settings: Any) -> Run:
        return Run(redis_server, object_store, tmp_path, object_store.new_bucket(), config, **settings)

    yield make
    for log in sorted(tmp_path.glob("log-*")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def fault(step: int, kind: str, *, attempt: int = 1, rank: int = 1, **rest: Any) -> dict[str, Any]:
    return {"attempt": attempt, "step": step, "rank": rank, "kind": kind, **rest}


def windows_of(run: Run, attempt: int, rank: int) -> list[int]:
    return [entry.window for logged, entry in run.batches() if logged == rank and entry.attempt == attempt]


def test_a_damaged_run_is_held_diagnosed_restored_and_finished_by_directives(make_run: MakeRun) -> None:
    run = make_run(
        {
            "steps": 40,
            "faults": [
                fault(12, "poisonGradient", tensor=QUERY),
                fault(18, "flipBit", tensor=QUERY, index=3),
                fault(23, "flipBit", attempt=3, tensor=MLP, index=7),
                fault(12, "slow", rank=0, seconds=1.0),
            ],
        }
    )
    with run.world() as world:
        run.ack(AckState.WAITING)
        run.direct(Action.RUN, world=0, epoch=9)
        reference = CheckpointReference(key="none", sha256="0" * 64, step=1)
        early = run.direct(Action.RUN, restore=reference)
        assert run.ack(AckState.REFUSED, early).reason == Reason.RESTORE_REQUIRED
        assert {ack.state for ack in run.acks()} <= {AckState.WAITING, AckState.REFUSED}

        # Both ranks hold at the same boundary, say so with agreeing replicas, and what was trained is archived.
        running = run.direct(Action.RUN, on_nonfinite=OnNonFinite.HOLD)
        run.ack(AckState.RUNNING, running)
        run.record(3)
        held = run.ack(AckState.HOLDING, run.direct(Action.HOLD, on_nonfinite=OnNonFinite.HOLD))
        assert held.replicas is not None
        assert held.replicas.agree
        assert held.hosts == ("pod-0", "pod-1")
        until("the archive", lambda: held.step in run.archived() or None)
        until("both batch logs", lambda: all(len(windows_of(run, 1, rank)) == held.step for rank in (0, 1)) or None)
        assert run.archived() == run.records()
        assert set(run.records()) == set(range(1, held.step + 1))

        # A directive that says nothing new is echoed and changes nothing; a lower one is not obeyed.
        again = run.direct(Action.HOLD, on_nonfinite=OnNonFinite.HOLD)
        assert run.ack(AckState.HOLDING, again).step == held.step
        run.direct(Action.RUN, epoch=0)

        # Trained windows cannot be skipped, coming ones can.
        late = run.direct(Action.RUN, skip=((0, 1),), on_nonfinite=OnNonFinite.HOLD)
        assert run.ack(AckState.REFUSED, late).reason == Reason.RANGE_ALREADY_TRAINED
        skip = ((20, 21),)
        run.ack(AckState.RUNNING, run.direct(Action.RUN, skip=skip, on_nonfinite=OnNonFinite.HOLD))

        # A poisoned gradient is withheld on every rank before the update; the same Run does not free the world, not
        # even one that arrives during the very step.
        run.record(11)
        run.direct(Action.RUN, skip=skip, on_nonfinite=OnNonFinite.HOLD)
        self_held = run.ack(AckState.HOLDING, reason=Reason.NON_FINITE)
        assert self_held.step == 12
        assert f"rank 1: gradient of {QUERY}" in self_held.detail
        assert run.record(12).scalars["skipped_update"] == 1
        assert run.record(12).scalars["nonfinite"] > 0
        run.direct(Action.RUN, epoch=2, skip=skip, on_nonfinite=OnNonFinite.HOLD)
        run.ack(AckState.HOLDING, epoch=2)
        run.direct(Action.RUN, epoch=2, skip=skip, on_nonfinite=OnNonFinite.HOLD, release=12)
        after = run.record(13).scalars
        assert after["skipped_update"] == 0
        assert after["nonfinite"] == 0
        assert after["update_rms"] > 0

        # A flipped query bit: the record comes before the Holding, and the replicas name rank and tensor.
        flipped = run.ack(AckState.HOLDING, step=18)
        assert 18 in run.records()
        assert flipped.replicas is not None
        assert flipped.replicas.differing == (f"rank 1: {QUERY}",)
        assert flipped.nonfinite == ()

        # The probe measures without changing anything; its object is what the ack says it is.
        diagnose = Diagnose(windows=(17, 19), control=(1, 2))
        incident = {"epoch": 2, "incident": "i-1", "on_nonfinite": OnNonFinite.HOLD}
        suspect = run.ack(AckState.DIAGNOSED, run.direct(Action.HOLD, skip=skip, diagnose=diagnose, **incident))
        assert suspect.checkpoint is None
        assert decode_probe(object_of(run, suspect.evidence)).state is None

        # A target that is not what the journal says is refused, and that attempt never runs.
        target = run.saved(15) if any(m.step == 15 for m in run.manifests()) else run.saved(10)
        wrong = msgspec.structs.replace(target, sha256="0" * 64)
        failed = run.ack(AckState.FAILED, run.direct(Action.HOLD, attempt=2, restore=wrong, skip=skip, **incident))
        assert failed.reason == Reason.RESTORE_FAILED
        refused = run.direct(Action.RUN, attempt=2, restore=wrong, skip=skip, **incident)
        assert run.ack(AckState.REFUSED, refused).reason == Reason.RESTORE_REQUIRED

        # The next attempt restores in place, is measured, skips, and trains every other window exactly once.
        skip = ((17, 18), (20, 21))
        restored = run.direct(Action.HOLD, attempt=3, restore=target, skip=skip, **incident)
        assert run.ack(AckState.RESTORED, restored).step == target.step
        probed = run.direct(Action.HOLD, attempt=3, restore=target, skip=skip, diagnose=diagnose, **incident)
        measured = run.ack(AckState.DIAGNOSED, probed)
        assert measured.checkpoint == target
        evidence = decode_probe(object_of(run, measured.evidence))
        assert evidence.state == target
        assert [window for window, _ in evidence.windows] == [17, 18, 19]
        assert all(loss is not None and 1 < loss < 7 for _, loss in (*evidence.windows, *evidence.control))
        run.direct(Action.RUN, attempt=3, restore=target, skip=skip, **incident)

        # A flipped MLP bit stays finite; the next comparison of the replicas finds it and nothing is saved any more.
        assert run.record(24, 3).scalars["nonfinite"] == 0
        mismatch = until(
            "a mismatch", lambda: next((r for r in run.records(3).values() if r.scalars.get("replica_mismatch")), None)
        )
        assert mismatch.step in {23, 24, 25}
        mixed = run.ack(AckState.HOLDING, run.direct(Action.HOLD, attempt=3, restore=target, skip=skip, **incident))
        assert mixed.replicas is not None
        assert f"rank 1: {MLP}" in mixed.replicas.differing
        assert not [m for m in run.manifests() if m.attempt == 3 and m.step >= 23]

        run.ack(AckState.RESTORED, run.direct(Action.HOLD, attempt=4, restore=target, skip=skip, **incident))
        run.direct(Action.RUN, attempt=4, restore=target, skip=skip, epoch=2)
        expected = [window for window in range(target.step, 44) if window not in {17, 18, 20, 21}]
        finished = run.ack(AckState.FINISHED)
        assert finished.step == 40
        until("the batch logs", lambda: all(len(windows_of(run, 4, r)) >= len(expected) for r in (0, 1)) or None)
        assert windows_of(run, 4, 0) == windows_of(run, 4, 1) == expected
        assert run.saved(40, 4) in finished.recent

        # A finished world waits, reads its last checkpoint back on other hosts meanwhile, can go back to training, and
        # ends when it is told.
        verified = run.ack(AckState.VERIFIED, checkpoint=run.saved(40, 4))
        assert verified.by not in {"", "self"}
        assert all(pod.poll() is None for pod in world.pods)
        back = run.direct(Action.HOLD, attempt=5, restore=run.saved(target.step), skip=skip, epoch=2, incident="i-2")
        run.ack(AckState.RESTORED, back)
        run.direct(Action.RUN, attempt=5, restore=run.saved(target.step), skip=skip, epoch=2)
        run.ack(AckState.FINISHED, attempt=5)
        # One that a person holds and nobody restores over is held, and no more.
        held = run.direct(Action.HOLD, attempt=5, restore=run.saved(target.step), skip=skip, epoch=2, incident="i-3")
        run.ack(AckState.HOLDING, held)
        until("evidence", lambda: [m for m in run.manifests() if m.trigger == "Suspect"] or None)
        run.direct(Action.FINISH, attempt=5, restore=run.saved(target.step), skip=skip, epoch=2)
        assert world.ended() == [0, 0]
    assert {run.message(node).reason for node in (0, 1)} == {Reason.FINISHED}
    # A state that an incident puts another one in place of is kept as evidence; one whose replicas differ never is.
    assert [(one.attempt, one.step) for one in run.manifests() if one.trigger == "Suspect"] == [(4, 40)]
    assert {step: r.scalars["loss"] for step, r in run.records(5).items()} == {
        step: r.scalars["loss"] for step, r in run.records(4).items()
    }


def object_of(run: Run, evidence: EvidenceReference | None) -> bytes:
    assert evidence is not None
    body = run.objects(evidence.key)[evidence.key]
    assert sha256_hex(body) == evidence.sha256
    return body


def test_a_killed_rank_ends_the_world_and_the_next_one_resumes_bit_for_bit(make_run: MakeRun) -> None:
    faults = [
        fault(12, "slow", seconds=1.0),
        fault(19, "kill"),
        fault(24, "slow", attempt=2, rank=0, seconds=1.0),
    ]
    # Which steps measure every head exactly depends on where an attempt began: here all do, and all can be compared.
    telemetry = {**TINY["telemetry"], "exactMaxLogits": True}
    run = make_run({"steps": 100_000, "faults": faults, "telemetry": telemetry}, checkpoint_every=10)
    with run.world(torchrun=True) as world:
        run.direct(Action.RUN)
        assert all(status != 0 for status in world.ended())
    assert run.message(0).reason is Reason.PEER_LOST
    assert not run.message_path(1, 1).exists()
    assert run.log(0).splitlines()[-1].startswith("trimtab: failed at step 18 (PeerLost): ")
    assert all("ChildFailedError" in run.log(node) for node in (0, 1))
    lost = run.records(1)
    assert set(lost) == set(range(1, 19))
    assert run.archived(1) == lost

    target = run.message(0).saved
    assert target == run.saved(10)
    with run.world(2, torchrun=True) as world:
        run.ack(AckState.WAITING, world=2)
        assert run.ack(AckState.RESTORED, run.direct(Action.HOLD, world=2, attempt=2, restore=target)).step == 10
        run.direct(Action.RUN, world=2, attempt=2, restore=target)
        run.record(18, 2)
        for step in range(11, 19):
            before, now = lost[step], run.records(2)[step]
            assert now.vectors == before.vectors
            for name in ("loss", "loss_max", "grad_norm", "clip_ratio", "lr", "update_rms"):
                assert now.scalars[name] == before.scalars[name], (step, name)

        # Redis hangs, then comes back empty, without this run's user: training goes on, the archive holds everything.
        run.redis.freeze()
        until("progress without Redis", lambda: max(run.archived(2), default=0) > 24 or None)
        run.redis.thaw()
        run.record(25, 2)
        run.redis.restart()
        seen = max(run.archived(2))
        until("progress without a user", lambda: max(run.archived(2)) > seen + 5 or None)
        run.make_user()
        run.ack(AckState.RUNNING, world=2, attempt=2)
        until("records again", lambda: run.records(2) or None)

        # SIGTERM for one pod: both ranks save at the same boundary, and say where.
        world.signal_pod(1, signal.SIGTERM)
        assert all(status != 0 for status in world.ended())
    said = run.ack(AckState.TERMINATED)
    messages = [run.message(node, 2) for node in (0, 1)]
    assert [m.reason for m in messages] == [Reason.TERMINATED] * 2
    drained = f"trimtab: drained: all ranks saved at step {said.step}, and the next world goes on from there"
    assert [run.log(node, 2).splitlines()[-1] for node in (0, 1)] == [drained] * 2
    assert messages[0].saved == messages[1].saved == said.checkpoint
    assert messages[0].saved is not None
    assert messages[0].saved.step == messages[0].step == messages[1].step == said.step
    archived = run.archived(2)
    assert set(archived) == set(range(11, said.step + 1))
    assert run.records(2).items() <= archived.items()
    assert [m.trigger for m in run.manifests() if m.step == said.step][-1] == "Terminated"


def test_a_fault_that_does_not_repeat_costs_nothing_and_one_that_stays_ends_the_world(make_run: MakeRun) -> None:
    run = make_run(
        {
            "steps": 100,
            "maxWithheldSteps": 3,
            "faults": [fault(4, "poisonGradient", tensor=MLP), fault(8, "flipBit", tensor=QUERY)],
        }
    )
    with run.world() as world:
        run.direct(Action.RUN, on_nonfinite=OnNonFinite.CONTINUE)
        assert all(status != 0 for status in world.ended())
    records = run.records()
    assert records[4].scalars["skipped_update"] == 0
    assert records[4].scalars["nonfinite"] == 0
    assert sorted(step for step, record in records.items() if record.scalars["skipped_update"]) == [8, 9, 10]
    assert [run.message(node).reason for node in (0, 1)] == [Reason.STUCK_NON_FINITE] * 2
    assert run.ack(AckState.FAILED).reason == Reason.STUCK_NON_FINITE


def test_a_run_that_is_configured_otherwise_says_so_and_blames_no_checkpoint(make_run: MakeRun) -> None:
    run = make_run({"steps": 12}, checkpoint_every=10)
    with run.world(torchrun=True):
        run.direct(Action.RUN)
        run.ack(AckState.FINISHED)
        target = run.saved(10)
    saved_under = run.config
    wider, slower = {"model": {**saved_under["model"], "width": 64}}, {"schedule": {"warmupSteps": 9}}
    edits = ((2, wider, "model.width: was 32, is 64"), (3, slower, "schedule.warmupSteps: was 5, is 9"))
    for attempt, edit, named in edits:
        run.config = {**saved_under, **edit}
        with run.world(attempt, torchrun=True):
            hold = run.direct(Action.HOLD, world=attempt, attempt=attempt, restore=target)
            failed = run.ack(AckState.FAILED, hold)
            assert failed.reason == Reason.CONFIG_MISMATCH
            assert named in failed.detail
    run.config = {**saved_under, "telemetry": {**saved_under["telemetry"], "pollSeconds": 0.03}}
    with run.world(4, torchrun=True):
        assert run.ack(AckState.RESTORED, run.direct(Action.HOLD, world=4, attempt=4, restore=target)).step == 10
    with Path(run.config["data"]["path"]).open("ab") as data:
        data.write(b"more")
    with run.world(5, torchrun=True):
        failed = run.ack(AckState.FAILED, run.direct(Action.HOLD, world=5, attempt=5, restore=target))
        assert failed.reason == Reason.CONFIG_MISMATCH
        assert "data: size of" in failed.detail


def test_a_hung_rank_leaves_its_stacks_and_a_superseded_world_falls_silent(make_run: MakeRun) -> None:
    run = make_run({"steps": 10_000, "faults": [fault(6, "hang", seconds=4.0)]}, progress_deadline=2.0)
    with run.world() as world:
        run.direct(Action.RUN)
        prefix = f"{ROOT}/{run.id}/stacks/a000001-r000001-"
        # A machine that is slow enough may be taken for hung before it is: stacks of another moment are no fault.
        until(
            "the stacks in which it hangs",
            lambda: any(b"before_forward" in it for it in run.objects(prefix).values()) or None,
        )
        run.record(8)
        with run.redis.client() as client:
            client.set(keys.directive_key(run.id), encode(run.direct(Action.RUN, world=2, attempt=2)))
        world.ended()
    assert [run.message(node).reason for node in (0, 1)] == [Reason.SUPERSEDED] * 2
    assert run.message(0).saved is None
    assert not {ack.state for ack in run.acks()} & {AckState.STOPPED, AckState.TERMINATED, AckState.FAILED}


def test_without_a_store_training_goes_on_and_a_suspect_state_is_never_saved_at_the_end(make_run: MakeRun) -> None:
    run = make_run({"steps": 100_000}, checkpoint_every=10)
    with run.world() as world:
        run.direct(Action.RUN)
        run.record(12)
        run.store.stop()
        try:
            run.record(max(run.records()) + 30)
            until("word of checkpoints left out", lambda: any(ack.checkpoints_behind for ack in run.acks()) or None)
            diagnose = Diagnose(windows=(3, 4), control=(0,))
            hold = run.direct(Action.HOLD, incident="i-1", diagnose=diagnose)
            held = run.ack(AckState.HOLDING, hold)
            # What cannot be stored keeps nobody from the next directive; asked again, the same losses are stored.
            run.ack(AckState.HOLDING, run.direct(Action.HOLD, incident="i-2"))
            hold = run.direct(Action.HOLD, incident="i-1", diagnose=diagnose)
            run.ack(AckState.HOLDING, hold)
            assert AckState.DIAGNOSED not in {ack.state for ack in run.acks()}
        finally:
            run.store.start()
        evidence = decode_probe(object_of(run, run.ack(AckState.DIAGNOSED, hold).evidence))
        assert [window for window, _ in evidence.windows] == [3, 4]
        until("the whole archive", lambda: len(run.archived()) == held.step or None)

        world.signal_pod(1, signal.SIGTERM)
        assert all(status != 0 for status in world.ended())
    assert [run.message(node).reason for node in (0, 1)] == [Reason.TERMINATED] * 2
    assert run.ack(AckState.TERMINATED).checkpoint is None
    assert "Terminated" not in {manifest.trigger for manifest in run.manifests()}
    assert len(run.batches()) == 2 * held.step


def test_every_wrong_setting_is_named_at_once_in_the_termination_message(make_run: MakeRun) -> None:
    run = make_run({"steps": 0, "globalBatch": "eight", "modle": {}, "data": {"order": "random"}})
    run.progress_deadline = -1
    with run.world() as world:
        world.ended()
    message = run.message(0)
    assert message.reason is Reason.BAD_CONFIG
    for name in ("globalBatch", "modle", "data.order", "TRIMTAB_PROGRESS_DEADLINE"):
        assert f"{name}: " in message.detail
