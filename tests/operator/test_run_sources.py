"""Which checkpoint of another run can be continued, and what is said of every other one."""

from dataclasses import replace

import msgspec
import pytest
from run_states import attempts, checkpoint, reference, run_state
from trimtab_contract.checkpoints import CheckpointManifest, EvaluationProbe, FiniteScan
from trimtab_contract.config_record import ConfigRecord
from trimtab_contract.directives import Action, Directive
from trimtab_contract.keys import RunId, checkpoint_prefix
from trimtab_operator.errors import SourceRefused
from trimtab_operator.run_state import CheckpointState, Source
from trimtab_operator.sources import (
    Wanted,
    check_config,
    check_wanted,
    continued_skip,
    journaled_checkpoint,
    named_reference,
)

OLDER, NEWER = RunId("lab", "older", "u-0"), RunId("lab", "newer", "u-1")
STATE = run_state(
    attempts=attempts((None, 0), (1, 200)),
    checkpoints=(
        checkpoint(100, state="Certified"),
        checkpoint(200),
        checkpoint(250, 1),
        checkpoint(250, 2, "Committed"),
        checkpoint(300, 1),
        checkpoint(300, 2, "Quarantined", "the control was bad"),
        checkpoint(350, 1),
        checkpoint(400, 2, "Deleting"),
    ),
    deleted=("team/lab/older/u-0/checkpoints/000000000150-a000001-ab/manifest.json",),
)


def wanted(step: int, sha256: str | None = None) -> Wanted:
    return Wanted(OLDER, step, sha256)


@pytest.mark.parametrize(("step", "attempt"), [(100, 1), (200, 1), (250, 2)])
def test_of_a_step_the_checkpoint_of_the_surviving_history_is_continued(step: int, attempt: int) -> None:
    assert journaled_checkpoint(wanted(step), STATE).reference == reference(step, attempt)
    assert journaled_checkpoint(wanted(step, "0" * 64), STATE).reference == reference(step, attempt)


@pytest.mark.parametrize(
    ("step", "sha256", "why"),
    [
        (120, None, "run lab/older/u-0 has no checkpoint of step 120; name one of those it has: 100, 200, 250"),
        (150, None, "the checkpoint of step 150 of run lab/older/u-0 was deleted; name one of those it has"),
        (300, None, "spec.resumeFrom.step: the checkpoint of step 300 .* quarantined: the control was bad"),
        (350, None, "taken in attempt 1, which is no part of the surviving history"),
        (400, None, "being deleted: nothing needed it any more"),
        (200, "1" * 64, "spec.resumeFrom.manifestSHA256: that run's journal knows .* by another hash"),
    ],
)
def test_any_other_is_refused_by_the_field_and_with_what_to_do(step: int, sha256: str | None, why: str) -> None:
    with pytest.raises(SourceRefused, match=why):
        journaled_checkpoint(wanted(step, sha256), STATE)


def test_of_a_run_that_has_saved_nothing_there_is_nothing_to_name() -> None:
    with pytest.raises(SourceRefused, match="has no checkpoint of step 100; it has none that can be continued"):
        journaled_checkpoint(wanted(100), run_state())


def test_the_checkpoint_that_the_other_run_itself_continues_is_named_as_its_owners() -> None:
    source = Source(run="lab/oldest/u", checkpoint=reference(50), state=CheckpointState.CERTIFIED, why="w")
    state = replace(STATE, attempts=attempts((None, 50), (1, 200))).continuing(source)
    with pytest.raises(SourceRefused, match=r"of step 50 .* belongs to run lab/oldest/u: name that one"):
        journaled_checkpoint(wanted(50), state)


def test_a_run_cannot_continue_itself_and_must_have_something_left_to_train() -> None:
    with pytest.raises(SourceRefused, match=r"spec.resumeFrom.run: a run cannot continue itself"):
        check_wanted(wanted(100), OLDER, 1000)
    with pytest.raises(SourceRefused, match=r"spec.resumeFrom.step: behind step 100 nothing is left to train"):
        check_wanted(wanted(100), NEWER, 100)
    check_wanted(wanted(99), NEWER, 100)
    check_wanted(wanted(99), NEWER, None)


def test_without_a_journal_the_hash_tells_which_manifest_of_the_step_is_meant() -> None:
    keys = [checkpoint_prefix("team", OLDER, 100, attempt, "ab") + "manifest.json" for attempt in (1, 3)]
    found = list(zip(keys, ("1" * 64, "3" * 64), strict=True))
    chosen, attempt = named_reference(wanted(100, "3" * 64), "team", found)
    assert (chosen.key, chosen.sha256, chosen.step, attempt) == (keys[1], "3" * 64, 100, 3)
    with pytest.raises(SourceRefused, match=r"spec.resumeFrom.manifestSHA256: no manifest .* has this hash"):
        named_reference(wanted(100, "2" * 64), "team", found)
    with pytest.raises(SourceRefused, match=r"spec.resumeFrom.step: there is no checkpoint of step 100"):
        named_reference(wanted(100, "3" * 64), "team", [])


SAVED = ConfigRecord(
    fields={"model.width": 64, "model.heads": 4, "model.dropout": 0.0, "seed": 0, "steps": 100},
    chosen=("model.width", "steps"),
)


def of_config(config: dict[str, object] | None) -> Wanted:
    return Wanted(OLDER, 100, None, config)


def test_a_job_that_makes_another_model_is_refused_with_every_field_that_differs() -> None:
    saved = msgspec.structs.replace(manifest(100), config=SAVED)
    other = {"model": {"heads": 8}, "seed": 3, "steps": 200, "globalBatch": 4}
    with pytest.raises(SourceRefused) as refused:
        check_config(of_config(other), saved)
    assert str(refused.value) == (
        "spec.trainer.config: the checkpoint of step 100 of run lab/older/u-0 was saved under another one: "
        "model.width: was 64, is left out; model.heads: was 4, is 8; seed: was 0, is 3; "
        "set these fields back, or name another checkpoint"
    )


@pytest.mark.parametrize(
    ("config", "recorded"),
    [
        ({"model": {"width": 64, "dropout": 0.1}, "steps": 200, "telemetry": {"every": 2}}, SAVED),
        ({"model": {"width": 32}}, None),
        (None, SAVED),
    ],
    ids=["what may differ", "an older checkpoint does not tell", "a trainer of its own"],
)
def test_any_other_may_try(config: dict[str, object] | None, recorded: ConfigRecord | None) -> None:
    check_config(of_config(config), msgspec.structs.replace(manifest(100), config=recorded))


def manifest(step: int, *skip: tuple[int, int]) -> CheckpointManifest:
    return CheckpointManifest(
        run=str(OLDER),
        attempt=1,
        step=step,
        world_size=1,
        next_window=step,
        skip=skip,
        lr=None,
        learning_rate=0.1,
        optimizer_steps=step,
        objects={},
        tensors={},
        replica_checksum="0",
        replicas_agree=True,
        finite=FiniteScan(nonfinite=0),
        evaluation=EvaluationProbe(window=step, window_sha256="0", losses=(1.0,)),
        config_sha256="0",
        code_sha256="0",
        versions={},
        trigger="Periodic",
        saved_at=1.0,
    )


def test_what_the_other_run_has_found_bad_since_is_skipped_too() -> None:
    saved = manifest(100, (10, 12))
    told = Directive(epoch=1, seq=9, world=1, attempt=2, action=Action.RUN, skip=((10, 12), (140, 150)))
    assert continued_skip(saved, None) == ((10, 12),)
    assert continued_skip(saved, run_state(directive=None)) == ((10, 12),)
    assert continued_skip(saved, run_state(directive=told)) == ((10, 12), (140, 150))
    early = msgspec.structs.replace(told, skip=((10, 12), (40, 50)))
    with pytest.raises(SourceRefused, match=r"up to step 100 the checkpoint skipped \[\(10, 12\)\]"):
        continued_skip(saved, run_state(directive=early))
