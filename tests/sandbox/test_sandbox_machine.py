"""What the sandbox says to a machine that cannot hold one, and to a command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from trimtab_sandbox import packages
from trimtab_sandbox.__main__ import main
from trimtab_sandbox.build import ensure_binaries
from trimtab_sandbox.cluster import _refuse_hidden_python
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


def test_a_python_that_pods_could_not_see_is_told_where_to_go() -> None:
    with pytest.raises(UnsupportedMachineError, match=r"in /tmp/cache/env: set TRIMTAB_CACHE to a directory elsewhere"):
        _refuse_hidden_python((Path("/opt/python"), Path("/tmp/cache/env")))
    _refuse_hidden_python((Path("/opt/python"), Path("/tmpfs/env")))


def test_missing_packages_are_named_at_once_where_there_is_no_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = {"no-such-program": "package-one", "/no/such/file": "package-two", "sh": "dash"}
    with pytest.raises(MissingToolError, match=r"package-one, package-two .*not Debian"):
        ensure_packages(print, wanted)


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_absent_packages_are_installed_at_once_without_questions_and_without_starting_daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, policy = tmp_path / "said", tmp_path / "policy-rc.d"
    policy_and_words = f'echo "$DEBIAN_FRONTEND" "$*" "$({policy}; echo $?)" >> {said}'
    _program(tmp_path / "apt-get", policy_and_words)
    monkeypatch.setattr(packages, "_START_POLICY", policy)
    monkeypatch.setenv("PATH", str(tmp_path))
    ensure_packages(print, {"no-such-program": "package-one", "/no/such/file": "package-two", "sh": "dash"})
    assert said.read_text().splitlines() == [
        "noninteractive update -q 101",
        "noninteractive install -y -q --no-install-recommends package-one package-two 101",
    ]
    assert not policy.exists()


def test_a_daemon_policy_of_the_machines_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")
    _program(tmp_path / "apt-get", "true")
    monkeypatch.setattr(packages, "_START_POLICY", policy)
    monkeypatch.setenv("PATH", str(tmp_path))
    ensure_packages(print, {"no-such-program": "package-one"})
    assert policy.read_text() == "theirs"


def test_a_machine_without_go_or_with_an_old_one_is_told_which_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Options().repository
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(MissingToolError, match=r"Go is missing.*install Go 1\.25 or later"):
        ensure_binaries(repository, tmp_path, print)
    _program(tmp_path / "go", "echo go1.19.8")
    monkeypatch.setattr("shutil.which", lambda program: str(tmp_path / "go"))
    with pytest.raises(MissingToolError, match=r"is go1\.19\.8, which is too old.*install Go 1\.25 or later"):
        ensure_binaries(repository, tmp_path, print)


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
