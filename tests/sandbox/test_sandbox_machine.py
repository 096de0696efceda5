"""What the sandbox says to a machine that cannot hold one, and to a command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from trimtab_sandbox.__main__ import main
from trimtab_sandbox.errors import MissingToolError, UnsupportedMachineError
from trimtab_sandbox.packages import check_machine, ensure_packages, find
from trimtab_sandbox.settings import CACHE_VARIABLE, HOME_VARIABLE, Options


def test_whoever_is_not_root_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedMachineError, match=r"sudo.*--context NAME"):
        check_machine()


def test_another_system_than_linux_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedMachineError, match=r"darwin.*--context NAME"):
        check_machine()


def test_missing_packages_are_named_at_once_where_there_is_no_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = {"no-such-program": "package-one", "/no/such/file": "package-two", "sh": "dash"}
    with pytest.raises(MissingToolError, match=r"package-one, package-two .*not Debian"):
        ensure_packages(print, wanted)


def test_programs_in_system_directories_are_found_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find("sh") is not None


def test_home_and_cache_follow_their_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    assert Options().home == tmp_path / "home"
    assert Options().cache == tmp_path / "cache"


def test_status_of_no_sandbox_answers_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    assert main(["status"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["running"] is False
    assert {process["pid"] for process in printed["processes"]} == {None}


def test_env_of_no_sandbox_is_one_sentence_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    assert main(["env"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: The sandbox is not up: run `trimtab sandbox up` first.\n"
