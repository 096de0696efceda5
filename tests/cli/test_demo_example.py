"""The example can be copied as it is: every part of it is accepted by the program it is meant for."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from trimtab_cli.commands.demo import hints
from trimtab_cli.demo.stage import DAMAGED_WINDOWS, GLOBAL_BATCH, JOB
from trimtab_operator.resources import parse_training_job_spec
from trimtab_policies.policy import parse_policy
from trimtab_trainer.config import read_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "demo"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLE / "trainingjob.yaml").read_text())


@pytest.fixture(scope="module")
def policy() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLE / "guardpolicy.yaml").read_text())


def prepare(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "prepare.py"), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_job_is_one_that_operator_and_trainer_accept(job: dict[str, Any]) -> None:
    spec = parse_training_job_spec(job["spec"])
    config = read_config(yaml.safe_dump(spec.trainer.config))
    assert job["metadata"]["name"] == JOB
    assert config.global_batch == GLOBAL_BATCH
    assert config.steps > DAMAGED_WINDOWS[1] + 100


def test_policy_and_job_fit_together(job: dict[str, Any], policy: dict[str, Any]) -> None:
    spec = parse_policy(policy["spec"])
    assert {"kind": "GuardPolicy", "name": policy["metadata"]["name"]} in job["spec"]["guard"]["policies"]
    assert job["spec"]["trainer"]["config"]["replicaCheckEvery"] <= spec.remediation.margin
    spike = next(rule for rule in spec.rules if rule.action == "Rollback" and rule.spike)
    assert spike.after_steps + spike.for_records < DAMAGED_WINDOWS[0]
    probe_end = DAMAGED_WINDOWS[0] + spike.for_records + spec.remediation.skip_batches.probe
    assert probe_end > DAMAGED_WINDOWS[1] + 8


def test_the_corpus_is_whole_windows_of_real_text_and_the_same_every_time(tmp_path: Path) -> None:
    first, second = tmp_path / "first.bin", tmp_path / "second.bin"
    prepare("corpus", str(first))
    prepare("corpus", str(second))
    body = first.read_bytes()
    assert body == second.read_bytes()
    assert len(body) % 128 == 0
    assert len(body) > 700 * GLOBAL_BATCH * 128
    assert body.count(b"def ") > 10_000


def test_the_damage_is_noise_in_exactly_the_chosen_windows(tmp_path: Path) -> None:
    file = tmp_path / "corpus.bin"
    clean = bytes(1024) * 200
    file.write_bytes(clean)
    prepare("damage", str(file), "--first=3", "--count=2", "--global-batch=4")
    damaged = file.read_bytes()
    begin, end = 3 * 512, 5 * 512
    assert len(damaged) == len(clean)
    assert damaged[:begin] == clean[:begin]
    assert damaged[end:] == clean[end:]
    assert len(set(damaged[begin:end])) > 200


def test_damage_beyond_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "corpus.bin"
    file.write_bytes(b"short")
    with pytest.raises(subprocess.CalledProcessError):
        prepare("damage", str(file))
    assert file.read_bytes() == b"short"


def test_the_hints_work_in_a_shell_that_does_not_know_the_command_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    first, *others = hints()
    script = f"{first}\ncommand -v trimtab kubectl-trimtab"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].endswith(".venv/bin/trimtab")
    assert others[0] == 'eval "$(trimtab sandbox env)"'
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/local/bin/trimtab")
    assert list(hints()) == others
