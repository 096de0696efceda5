"""The demo's data and configuration, for benchmarks of its size."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from trimtab_trainer.config import TrainerConfig, read_config

from benchmarks.figures import ROOT

EXAMPLE = ROOT / "examples" / "demo"
Json = dict[str, Any]


def demo_job() -> Json:
    """The demo's TrainingJob as it lies in the examples."""
    return yaml.safe_load((EXAMPLE / "trainingjob.yaml").read_text())


def demo_policy() -> Json:
    """The demo's GuardPolicy."""
    return yaml.safe_load((EXAMPLE / "guardpolicy.yaml").read_text())


def demo_settings(corpus: Path, **changes: Any) -> Json:
    """The trainer's configuration in the demo's job, on a corpus of the benchmark's own."""
    settings: Json = demo_job()["spec"]["trainer"]["config"]
    return {**settings, "data": {**settings["data"], "path": str(corpus)}, **changes}


def demo_config(corpus: Path) -> TrainerConfig:
    """The same, as the trainer reads it."""
    return read_config(json.dumps(demo_settings(corpus)))


def write_corpus(target: Path) -> None:
    """The demo's text, undamaged."""
    _prepare("corpus", str(target))


def damage_corpus(target: Path) -> None:
    """The demo's stretch of noise."""
    _prepare("damage", str(target))


def _prepare(*arguments: str) -> None:
    subprocess.run([sys.executable, str(EXAMPLE / "prepare.py"), *arguments], check=True, capture_output=True)
