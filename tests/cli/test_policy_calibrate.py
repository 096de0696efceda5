"""`trimtab policy calibrate` on logs as people have them."""

import json
import random
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from click.testing import Result
from trimtab_cli.__main__ import app, main
from trimtab_cli.policy_loading import load_policies, shipped_default
from typer.testing import CliRunner

Calibrate = Callable[..., Result]


@pytest.fixture
def calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibrate:
    """The command, in a folder with a healthy log."""
    monkeypatch.chdir(tmp_path)
    write_log("healthy.jsonl", 1_400)
    return lambda *arguments: CliRunner().invoke(app, ["policy", "calibrate", *map(str, arguments)])


def write_log(name: str, count: int, **changed: float) -> None:
    noise = random.Random(0)
    rows = [{"step": step, "loss": 2.0 + noise.gauss(0, 0.01)} for step in range(1, count + 1)]
    rows[-1] |= changed
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def refused(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """The exit code of the program itself, which prints errors as sentences."""
    monkeypatch.setattr("sys.argv", ["trimtab", "policy", "calibrate", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


def test_the_policy_that_is_written_is_valid_and_carries_its_evidence(calibrate: Calibrate) -> None:
    result = calibrate("healthy.jsonl", "--write", "policy.yaml")
    assert result.exit_code == 0
    (policy,) = load_policies([Path("policy.yaml")])
    assert [rule.name for rule in policy.spec.rules] == ["loss-spike-calibrated"]
    comments = " ".join(line.strip(" #") for line in Path("policy.yaml").read_text().splitlines() if "#" in line)
    assert "0 firings in 1,200 healthy records" in comments
    assert "cannot show the target of 0.1" in comments
    assert "healthy.jsonl" in comments


def test_text_shows_the_grid_the_choice_and_what_is_missing(calibrate: Calibrate) -> None:
    lines = calibrate("healthy.jsonl").stdout.splitlines()
    assert lines[0].startswith("1,400 records of 1 log(s); target: at most 0.1 firings")
    assert sum(line.lstrip("→ ").startswith("loss ") for line in lines) == 10
    assert any("more steps without a firing" in line for line in lines)
    assert lines[-1] == "--write FILE writes the policy"


def test_json_has_the_numbers_apart(calibrate: Calibrate) -> None:
    answer = json.loads(calibrate("healthy.jsonl", "-o", "json", "--target-false-alarms", 100).stdout)
    (spike,) = answer["spikes"]
    assert spike["supported"]
    assert spike["firings"] == 0 or spike["atMostPer10000Steps"] <= 100
    assert spike["byLog"] == [{"events": spike["firings"], "records": 1_200, "steps": 1_200}]
    assert answer["policy"].startswith("# Proposed by")


def test_the_policy_that_judges_health_ships_with_the_command() -> None:
    """Mend with: make chart."""
    shipped = resources.files("trimtab_cli").joinpath("policies", "default.yaml").read_text(encoding="utf-8")
    assert shipped == (Path(__file__).parents[2] / "policies" / "library" / "default.yaml").read_text(encoding="utf-8")
    assert [policy.name for policy in shipped_default()] == ["default"]


def test_a_log_that_is_named_twice_counts_once(calibrate: Calibrate) -> None:
    answer = json.loads(calibrate("healthy.jsonl", "./healthy.jsonl", "-o", "json").stdout)
    assert answer["records"] == 1_400


def test_a_column_can_be_mapped(calibrate: Calibrate) -> None:
    rows = [json.loads(line) for line in Path("healthy.jsonl").read_text().splitlines()]
    Path("own.jsonl").write_text("".join(f'{{"step": {row["step"]}, "ce": {row["loss"]}}}\n' for row in rows))
    assert calibrate("own.jsonl", "--map", "loss=ce").exit_code == 0
    assert calibrate("own.jsonl").exit_code == 1


@pytest.mark.usefixtures("calibrate")
def test_an_unhealthy_log_ends_with_one_sentence_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log("broken.jsonl", 1_400, loss=float("nan"))
    assert refused(monkeypatch, "healthy.jsonl", "broken.jsonl", "--write", "policy.yaml") == 1
    assert "broken.jsonl is not healthy: loss is nan at step 1400 (line 1400)." in capsys.readouterr().err
    assert not Path("policy.yaml").exists()


@pytest.mark.usefixtures("calibrate")
def test_a_short_log_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_log("short.jsonl", 300)
    assert refused(monkeypatch, "short.jsonl") == 1
    assert "loss: 100 records could be judged and at least 1,000 are needed" in capsys.readouterr().err


@pytest.mark.usefixtures("calibrate")
@pytest.mark.parametrize("target", ["0", "nan", "-1", "10001"])
def test_a_target_that_cannot_be_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    assert refused(monkeypatch, "healthy.jsonl", "--target-false-alarms", target) == 2


@pytest.mark.usefixtures("calibrate")
def test_a_log_that_does_not_exist_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(monkeypatch, "absent.jsonl") == 1
    assert "absent.jsonl does not exist" in capsys.readouterr().err
