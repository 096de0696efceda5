"""The logs that nobody tuned on are judged only where they say what was labelled."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from trimtab_cli.errors import CliError
from trimtab_policies.log_readers.points import LogPoint

from benchmarks.held_out import INDEX, digest, held_out_points

ROOT = Path(__file__).resolve().parents[2]
STEADY = [2.0 + 0.1 * (1, -1, 0.5, -0.5, 1.3, -1.3)[index % 6] for index in range(120)]
RISEN = [*STEADY, *[6.0] * 30]


def label(name: str, losses: Sequence[float], **more: Any) -> dict[str, Any]:
    points = [LogPoint(step=step, scalars={"loss": loss}, line=step) for step, loss in enumerate(losses, 1)]
    return {"name": name, "records": len(losses), "sha256": digest(points), **more}


def write(folder: Path, name: str, losses: Sequence[float]) -> None:
    rows = [f"{step},{loss},0.1" for step, loss in enumerate(losses, 1)]
    (folder / name).write_text("\n".join(["step,train loss,lr", *rows]))


def test_a_log_is_known_by_what_it_says_and_not_by_its_bytes(tmp_path: Path) -> None:
    write(tmp_path, "steady.csv", [*STEADY, 9.0])
    points = held_out_points(tmp_path, label("steady", STEADY))
    assert [point.scalars for point in points] == [{"loss": loss} for loss in STEADY]


def test_a_log_that_says_anything_else_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "steady.csv", [*STEADY[:-1], 2.5])
    with pytest.raises(CliError, match="steady: its 120 points have the hash"):
        held_out_points(tmp_path, label("steady", STEADY))


def test_a_log_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text(json.dumps([label("steady", STEADY, kind="clean")]))
    result = judge(tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "has no log called steady" in result.stderr


def test_damage_is_where_a_person_saw_it_and_a_reason_stands_with_its_log(tmp_path: Path) -> None:
    write(tmp_path, "risen.csv", RISEN)
    marked = [("risen", [122]), ("earlier", [135]), ("elsewhere", [10])]
    labels = [label(name, RISEN, kind="divergence", damage=damage, why=f"About {name}.") for name, damage in marked]
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    for name in ("earlier", "elsewhere"):
        write(tmp_path, f"{name}.csv", RISEN)
    assert judge(tmp_path).returncode == 0
    page = (tmp_path / "page.md").read_text()
    rows = {
        cells[0]: cells[7:9] for cells in (line.strip("| ").split(" | ") for line in page.splitlines()) if cells[8:]
    }
    fired = int(rows["risen"][1].partition(" ")[0])
    assert rows["risen"] == ["122", f"{fired} ({fired - 122:+d})"]
    assert rows["earlier"] == ["135", f"{fired} ({fired - 135:+d})"]
    assert "About risen." in page
    assert "Divergences: 3; not acted on within 5 records: elsewhere at step 10." in page


def test_the_labels_that_ship_name_each_log_once_with_its_source() -> None:
    labels: list[dict[str, Any]] = json.loads(INDEX.read_text())
    assert len({one["name"] for one in labels}) == len(labels) >= 20
    for one in labels:
        assert one["records"] > 0
        assert len(one["sha256"]) == 64
        assert all(one[field] for field in ("kind", "note", "source", "path", "licence", "extent", "form"))


def judge(folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = [f"--logs={folder}", f"--page={folder / 'page.md'}", f"--held-out={folder / 'labels.json'}"]
    command = [sys.executable, "-m", "benchmarks.judgement", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
