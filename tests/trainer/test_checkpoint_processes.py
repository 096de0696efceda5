"""Checkpoints of two real processes over gloo, of a model of the demo's size."""

import json
import socket
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from checkpoint_process import save_and_restore
from object_store_fixture import ADMIN, ObjectStoreServer


def start(server: ObjectStoreServer, folder: Path, kill_before: str) -> dict[str, str]:
    place = {
        "endpoint": server.endpoint,
        "bucket": server.new_bucket(),
        "access_key": ADMIN.access_key,
        "secret_key": ADMIN.secret_key,
        "root": uuid.uuid4().hex,
        "folder": str(folder),
    }
    try:
        mp.spawn(save_and_restore, (two_ports(), place, kill_before), nprocs=2)
    except mp.ProcessExitedException:
        assert kill_before
    return place


def two_ports() -> tuple[int, int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        first, second = (each.getsockname()[1] for each in sockets)
        return first, second


def stored(server: ObjectStoreServer, place: dict[str, str]) -> list[str]:
    answer: dict[str, Any] = server.client().list_objects_v2(Bucket=place["bucket"])
    return sorted(entry["Key"].rsplit("/", 1)[1] for entry in answer.get("Contents", []))


def test_two_processes_restore_bit_for_bit_what_they_saved(object_store: ObjectStoreServer, tmp_path: Path) -> None:
    start(object_store, tmp_path, "")
    for rank in range(2):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert report["flushed"] == [True, True, True]
        assert report["steps"] == [30, 60, 90]
        assert report["identical"]


@pytest.mark.parametrize("name", [".metadata", "manifest.json"])
def test_a_kill_before_the_manifest_leaves_nothing_that_could_be_chosen(
    object_store: ObjectStoreServer, tmp_path: Path, name: str
) -> None:
    names = stored(object_store, start(object_store, tmp_path, name))
    assert {"__0_0.distcp", "__1_0.distcp"} <= set(names)
    assert "manifest.json" not in names
