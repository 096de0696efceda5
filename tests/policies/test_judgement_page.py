"""The page of judgements is written by one command from labelled logs alone."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = [2.0 + 0.1 * (1, -1, 0.5, -0.5, 1.3, -1.3)[index % 6] for index in range(400)]


def write_logs(folder: Path, logs: dict[str, tuple[str, Sequence[float]]], **labels: Any) -> None:
    for name, (_, losses) in logs.items():
        lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    index = [{"name": name, "kind": kind, **labels.get(name, {})} for name, (kind, _) in logs.items()]
    (folder / "index.json").write_text(json.dumps(index))


def page(folder: Path) -> dict[str, list[str]]:
    """The first table of the page written for the logs of a folder: log -> cells."""
    target = folder / "page.md"
    command = [sys.executable, "-m", "benchmarks.judgement", f"--logs={folder}", f"--page={target}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    rows = [line.strip("| ").split(" | ") for line in target.read_text().splitlines() if line.startswith("|")]
    return {cells[0]: cells for cells in reversed(rows)}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("labelled")
    logs = {
        "calm": ("clean", HEALTHY),
        "broken": ("nan", [*HEALTHY[:300], *[math.nan] * 20]),
        "spiky": ("spikes-recovering", [*HEALTHY[:300], 9.0, *HEALTHY[:50]]),
        "climbing": ("slow-divergence", [*HEALTHY, *(2.0 + index / 50 for index in range(300))]),
        "padded": ("clean", [*HEALTHY, *[math.nan] * 20]),
    }
    write_logs(folder, logs, spiky={"spikes": [301]})
    return page(folder)


def test_a_clean_log_has_nothing_done_about_it(table: dict[str, list[str]]) -> None:
    assert table["calm"][1:6] == ["clean", "400", "0", "0", "0"]


def test_damage_is_told_with_its_step_and_how_long_it_took(table: dict[str, list[str]]) -> None:
    damaged_at, acted_at = table["broken"][7:9]
    assert damaged_at == "301"
    step, _, later = acted_at.partition(" ")
    assert later == f"(+{int(step) - 301})"


def test_a_climb_is_damage_from_where_it_never_comes_back(table: dict[str, list[str]]) -> None:
    damaged_at, acted_at = table["climbing"][7:9]
    assert 400 < int(damaged_at) < 500
    assert "never" not in acted_at


def test_a_labelled_spike_is_recorded_and_not_acted_on(table: dict[str, list[str]]) -> None:
    assert [cell.strip() for cell in table["spiky"][9:11]] == ["1 of 1", "0 of 1"]


def test_what_a_label_does_not_count_is_shown_all_the_same(table: dict[str, list[str]]) -> None:
    assert table["padded"][3] == "1*"


def test_a_folder_without_labels_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.judgement", f"--logs={tmp_path}", f"--page={tmp_path / 'page.md'}"]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "index.json" in result.stderr
