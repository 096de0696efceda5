"""What a verification Job says of checkpoints on a real S3 server: no more than it was asked, and no secret."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from checkpoint_corruption import CORRUPTIONS, Kept, kept
from checkpoint_ranks import Ranks, new_state
from object_store_fixture import ADMIN, ObjectStoreServer
from server_process import free_ports
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.read_back import (
    JOB_VARIABLE,
    ORDER_VARIABLE,
    ReadBack,
    ReadBackAnswer,
    ReadBackReport,
    decode_report,
    encode_order,
)
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.read_back import Reader
from trimtab_trainer.verification import Order, read_back

pytestmark = pytest.mark.timeout(300)

SEED = 20261130


@pytest.fixture(scope="module")
def store(object_store: ObjectStoreServer) -> ObjectStore:
    return opened(object_store.endpoint, object_store.new_bucket())


@pytest.fixture(scope="module")
def checkpoints(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> list[Kept]:
    """Two checkpoints of one run, saved by two ranks."""
    ranks = Ranks(store, tmp_path_factory.mktemp("world"))
    try:
        return [kept(store, ranks.saved([new_state(step), new_state(step)], step)) for step in (10, 20)]
    finally:
        ranks.close()


def opened(endpoint: str, bucket: str) -> ObjectStore:
    return ObjectStore(bucket, endpoint=endpoint, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)


def answers(store: ObjectStore, *references: CheckpointReference) -> tuple[ReadBackAnswer, ...]:
    order = Order("demo-verify-7", references, store.bucket, "")
    report = read_back(order, Reader(store, threading.Event()), patience_seconds=0.0)
    assert report.job == "demo-verify-7"
    return report.answers


def test_a_checkpoint_as_it_was_saved_is_verified_whoever_wrote_its_objects(
    store: ObjectStore, checkpoints: list[Kept]
) -> None:
    first, second = (one.reference for one in checkpoints)
    assert answers(store, second, first) == (
        ReadBackAnswer(sha256=second.sha256, found=ReadBack.VERIFIED),
        ReadBackAnswer(sha256=first.sha256, found=ReadBack.VERIFIED),
    )


@pytest.mark.parametrize("kind", list(CORRUPTIONS))
def test_damage_of_every_kind_is_told_and_of_the_damaged_checkpoint_alone(
    store: ObjectStore, checkpoints: list[Kept], kind: str
) -> None:
    whole, other = checkpoints
    damaged = CORRUPTIONS[kind](Random(SEED), whole, other)
    copy = CheckpointReference(
        key=f"{kind.replace(' ', '-')}/manifest.json", sha256=whole.reference.sha256, step=whole.reference.step
    )
    for name, body in damaged.items():
        store.put(copy.key.replace("manifest.json", name), body)
    found, untouched = answers(store, copy, other.reference)
    assert found.found is ReadBack.DAMAGED
    assert found.detail.startswith("object ")
    assert untouched.found is ReadBack.VERIFIED


def test_a_store_that_does_not_answer_says_nothing_of_the_checkpoint(checkpoints: list[Kept]) -> None:
    away = opened(f"http://127.0.0.1:{free_ports(1)[0]}", "training")
    (found,) = answers(away, checkpoints[0].reference)
    assert found.found is ReadBack.UNKNOWN
    assert "GetObject" in found.detail


def process(variables: dict[str, str], message: Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    environment = {**inherited, "PYTHONPATH": ":".join(sys.path), "TRIMTAB_TERMINATION_LOG": str(message), **variables}
    return subprocess.run(
        [sys.executable, "-m", "trimtab_trainer.verification"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_process_leaves_its_report_as_the_termination_message_and_shows_no_secret(
    store: ObjectStore, object_store: ObjectStoreServer, checkpoints: list[Kept], tmp_path: Path
) -> None:
    reference, message = checkpoints[0].reference, tmp_path / "message"
    ended = process(
        {
            JOB_VARIABLE: "demo-verify-7",
            ORDER_VARIABLE: encode_order([reference]),
            "TRIMTAB_CHECKPOINT_URI": f"s3://{store.bucket}/some/root",
            "TRIMTAB_S3_ENDPOINT": object_store.endpoint,
            "AWS_ACCESS_KEY_ID": ADMIN.access_key,
            "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key,
        },
        message,
    )
    assert ended.returncode == 0, ended.stderr
    verified = ReadBackAnswer(sha256=reference.sha256, found=ReadBack.VERIFIED)
    assert decode_report(message.read_text()) == ReadBackReport(job="demo-verify-7", answers=(verified,))
    assert ADMIN.secret_key not in ended.stdout + ended.stderr + message.read_text()


def test_what_is_missing_is_one_sentence_that_names_all_of_it(tmp_path: Path) -> None:
    message = tmp_path / "message"
    ended = process({ORDER_VARIABLE: "[", "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}, message)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "nothing was read back" in line
    assert all(name in line for name in (JOB_VARIABLE, ORDER_VARIABLE, "TRIMTAB_S3_ENDPOINT", "AWS_ACCESS_KEY_ID"))
    assert ADMIN.secret_key not in line
    assert not message.exists()


def test_the_process_needs_no_torch() -> None:
    """So that it starts within a second and fits beside a trainer on a full node."""
    loaded = "import sys, trimtab_trainer.verification; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", loaded], env=environment, check=True, timeout=120)
