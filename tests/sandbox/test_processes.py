from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from trimtab_sandbox.commands import wait_until
from trimtab_sandbox.errors import NotReadyError
from trimtab_sandbox.processes import (
    Component,
    ManagedProcess,
    identify,
    is_alive,
    read_record,
    read_records,
    send,
    spawn,
)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ManagedProcess]:
    component = Component("sleeper", ("/bin/sleep", "600"))
    managed = spawn(component, record=tmp_path / "processes" / "sleeper.json", log=tmp_path / "log" / "sleeper.log")
    yield managed
    managed.kill()


def test_this_process_is_alive_under_its_identity() -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert is_alive(identity)


def test_a_later_process_with_the_same_id_is_not_taken_for_the_recorded_one(sleeper: ManagedProcess) -> None:
    assert sleeper.identity is not None
    earlier = replace(sleeper.identity, start_ticks=sleeper.identity.start_ticks - 1)
    other_boot = replace(sleeper.identity, boot="another boot")
    for stale in (earlier, other_boot):
        assert not is_alive(stale)
        assert not send(stale, signal.SIGKILL)
    assert sleeper.is_running()


def test_a_zombie_counts_as_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        wait_until("the end", lambda: identify(child.pid) is None)
        assert Path(f"/proc/{child.pid}").exists()
    finally:
        child.wait()


def test_a_process_whose_name_holds_a_parenthesis_is_identified(tmp_path: Path) -> None:
    program = tmp_path / "odd) S 1 2 ("
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "600"])
    try:
        identity = identify(child.pid)
        assert identity is not None
        assert identity.start_ticks > 1000
    finally:
        child.kill()
        child.wait()


def test_a_record_read_back_is_the_process(sleeper: ManagedProcess) -> None:
    assert read_record(sleeper.record) == sleeper
    assert read_records(sleeper.record.parent) == {"sleeper": sleeper}


def test_a_frozen_process_lives_and_goes_on_when_thawed(sleeper: ManagedProcess) -> None:
    sleeper.freeze()
    wait_until("the freeze", sleeper.is_frozen, seconds=10)
    assert sleeper.is_running()
    sleeper.thaw()
    wait_until("the thaw", lambda: not sleeper.is_frozen(), seconds=10)


def test_stop_ends_even_a_frozen_process(sleeper: ManagedProcess) -> None:
    sleeper.freeze()
    sleeper.stop()
    assert not sleeper.is_running()


def test_start_after_a_kill_gives_a_new_process_under_the_same_name(sleeper: ManagedProcess) -> None:
    sleeper.kill()
    again = read_record(sleeper.record).start()
    try:
        assert again.is_running()
        assert again.identity != sleeper.identity
        assert read_record(sleeper.record) == again
    finally:
        again.kill()


def test_a_process_that_ends_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    component = Component("broken", ("/bin/sh", "-c", "echo it is broken >&2; exit 3"), address=("127.0.0.1", 1))
    managed = spawn(component, record=tmp_path / "processes" / "broken.json", log=tmp_path / "broken.log")
    with pytest.raises(NotReadyError, match=r"broken ended while starting(.|\n)*it is broken"):
        managed.wait_listening(seconds=20)


def test_a_started_process_sees_none_of_the_callers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "leaked")
    log = tmp_path / "env.log"
    managed = spawn(Component("env", ("/usr/bin/env",)), record=tmp_path / "processes" / "env.json", log=log)
    wait_until("the end", lambda: not managed.is_running())
    assert "PATH=" in log.read_text()
    assert "leaked" not in log.read_text()
