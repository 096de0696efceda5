"""`trimtab job` on a real API server: what it shows of jobs, and what it says where there is nothing to show."""

import os
import subprocess
from pathlib import Path

import pytest
from control_plane_fixture import ControlPlane
from job_laboratory import AGE, Laboratory
from operator_objects import guard_incident
from trimtab_cli.__main__ import app
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_shows_what_people_look_for(laboratory: Laboratory) -> None:
    header, row = laboratory.trimtab("job", "list").stdout.splitlines()
    assert header.split() == ["Name", "Namespace", "Phase", "Step", "Loss", "Attempt", "Rollbacks", "Checkpoint", "Age"]
    assert row.split()[:-1] == ["demo", laboratory.namespace, "Completed", "600", "1.42", "2", "1", "600", "Committed"]
    (job,) = laboratory.json("job", "list")
    assert (job["phase"], job["step"], job["steps"]) == ("Completed", 600, 600)


def test_describe_reads_like_a_story(laboratory: Laboratory) -> None:
    body = guard_incident(laboratory.namespace, "demo-a1-s321", job={"name": "demo", "uid": laboratory.run.uid})
    laboratory.plane.apply(body)
    laboratory.status(
        "gi",
        "demo-a1-s321",
        {"phase": "Closed", "heldStep": 323, "finding": "Undecided", "outcome": "Recovered",
         "skipped": {"first": 319, "last": 333, "bad": 12}},
    )  # fmt: skip
    involved = {"kind": "TrainingJob", "name": "demo", "namespace": laboratory.namespace, "uid": laboratory.run.uid}
    metadata = {"name": "demo.1", "namespace": laboratory.namespace}
    event = {"type": "Normal", "reason": "Restored", "message": "step 300 is restored", "count": 1}
    times = {"firstTimestamp": AGE, "lastTimestamp": AGE}
    laboratory.plane.apply(
        {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": involved, **event, **times}
    )
    told = laboratory.trimtab("job", "describe", "demo").stdout
    for part in (
        "Completed, step 600 of 600, loss 1.42",
        "Incident demo-a1-s321: Recovered",
        "rule loss-spike fired at step 322",
        "every rank held after step 323",
        "plan 1: restore step 200",
        "windows 319 to 333 are skipped, 12 of them measured as bad",
        "00:00:00  Restored: step 300 is restored",
    ):
        assert part in told
    assert laboratory.json("job", "describe", "demo")["incidents"][0]["name"] == "demo-a1-s321"


def test_watching_ends_with_the_job_and_says_how(laboratory: Laboratory) -> None:
    assert laboratory.trimtab("job", "watch", "demo").exit_code == 0
    laboratory.status("tj", "demo", {"phase": "Failed", "message": "config.steps: must be at least 1"})
    result = laboratory.trimtab("job", "watch", "demo")
    assert result.exit_code == 1
    assert "config.steps: must be at least 1" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("job", "describe", "nobody"), "There is no trainingjob nobody in namespace jobs-"),
        (("checkpoint", "list", "nobody"), "There is no trainingjob nobody in namespace jobs-"),
        (("checkpoint", "verify", "demo", "7"), "no checkpoint of step 7"),
        (("audit", "show", "nobody"), "There is no TrainingJob nobody"),
    ],
)
def test_what_is_not_there_is_named(laboratory: Laboratory, arguments: tuple[str, ...], says: str) -> None:
    result = laboratory.trimtab(*arguments)
    assert says in str(result.exception)
    assert result.exit_code != 0


def test_kubectl_finds_the_program_as_its_plugin(crds: ControlPlane) -> None:
    path = {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    command = [str(crds.kube), "kubectl", "trimtab", "job", "--help"]
    done = subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, check=True)
    assert "approve" in done.stdout


def test_no_cluster_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["job", "list", f"--kubeconfig={tmp_path / 'none'}"])
    assert "does not lead to a cluster" in str(result.exception)
