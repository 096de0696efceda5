"""Setting the demo up: the data and its damage, the policy and the job."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab_cli.access import Access
from trimtab_cli.adapters.programs import run_program
from trimtab_cli.errors import CliError, NotFound
from trimtab_cli.output import Output
from trimtab_cli.sandbox_link import repository

JOB = "stdlib-lm"
NAMESPACE = "default"
GLOBAL_BATCH = 16
DAMAGED_WINDOWS = (320, 331)
"""Absolute windows (inclusive) that are overwritten on disk; known here and to nobody else."""

_EXAMPLE_DATA = "/var/lib/trimtab-sandbox/data"
_GONE_SECONDS = 120.0
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo runs: the sandbox's state directory and the variables that lead to its parts."""

    home: Path
    environment: Mapping[str, str]

    @property
    def data(self) -> Path:
        """The directory that the pods see as `/data`."""
        return self.home / "data"


def prepare_data(output: Output, stage: Stage) -> None:
    """Write the corpus and damage a stretch of it."""
    script, target = str(repository() / "examples" / "demo" / "prepare.py"), str(stage.data / "corpus.bin")
    first, last = DAMAGED_WINDOWS
    with output.busy("preparing the data"):
        stage.data.mkdir(parents=True, exist_ok=True)
        stage.data.chmod(0o755)
        output.say(run_program([sys.executable, script, "corpus", target]).strip())
        extent = [f"--first={first}", f"--count={last - first + 1}", f"--global-batch={GLOBAL_BATCH}"]
        output.say(run_program([sys.executable, script, "damage", target, *extent]).strip())


def remove_old_job(output: Output, access: Access) -> None:
    """Delete the job of an earlier demo and wait until nothing of it is left."""
    path = f"/apis/trimtab.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs/{JOB}"
    try:
        access.cluster.delete(path)
    except NotFound:
        return
    with output.busy(f"removing the job {JOB} of an earlier demo"):
        deadline = time.monotonic() + _GONE_SECONDS
        while _left(access):
            if time.monotonic() > deadline:
                raise CliError(f"What belongs to the old job {JOB} is still there after {_GONE_SECONDS:g} seconds.")
            time.sleep(_POLL_SECONDS)


def apply_example(output: Output, stage: Stage) -> None:
    """Apply the policy and the job as they lie in the examples, with this sandbox's data directory."""
    for name in ("guardpolicy.yaml", "trainingjob.yaml"):
        text = (repository() / "examples" / "demo" / name).read_text()
        text = text.replace(_EXAMPLE_DATA, str(stage.data))
        arguments = ["kubectl", "apply", f"--namespace={NAMESPACE}", "-f", "-"]
        output.say(run_program(arguments, environment=stage.environment, text=text).strip())


def _left(access: Access) -> int:
    selector = f"trimtab.dev/job={JOB}"
    collections = (
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        f"/api/v1/namespaces/{NAMESPACE}/services",
        f"/api/v1/namespaces/{NAMESPACE}/secrets",
        f"/api/v1/namespaces/{NAMESPACE}/configmaps",
        f"/apis/trimtab.dev/v1alpha1/namespaces/{NAMESPACE}/guardincidents",
    )
    return sum(len(access.cluster.get(path, labelSelector=selector)["items"]) for path in collections)
