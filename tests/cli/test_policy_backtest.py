"""`trimtab policy backtest` on logs as people have them."""

import gzip
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from trimtab_cli.__main__ import app, main
from typer.testing import CliRunner

POLICY = """\
apiVersion: trimtab.dev/v1alpha1
kind: GuardPolicy
metadata: {name: guard}
spec:
  mode: MODE
  rules:
  - name: sustained
    metric: loss
    spike: {baseline: {records: 20, minRecords: 10, maxFreeze: 15}, sigma: 4}
    forRecords: 3
    action: Rollback
  - name: lone
    metric: loss
    spike: {baseline: {records: 20, minRecords: 10, maxFreeze: 15}, sigma: 4}
    action: Record
  - {name: steep, metric: grad_norm, range: {max: 10}, action: Notify}
"""
HEALTHY = [2.0 + 0.1 * (1, -1, 0.5, -0.5, 1.3, -1.3)[index % 6] for index in range(150)]

Backtest = Callable[..., Result]


@pytest.fixture
def backtest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backtest:
    """The command, in a folder that has `guard.yaml`."""
    monkeypatch.chdir(tmp_path)
    Path("guard.yaml").write_text(POLICY.replace("MODE", "Enforce"))
    return lambda *arguments: CliRunner().invoke(app, ["policy", "backtest", *map(str, arguments)])


def write_log(name: str, losses: Iterable[float], **columns: float) -> Path:
    path = Path(name)
    lines = [json.dumps({"step": step, "loss": loss, **columns}) for step, loss in enumerate(losses, 1)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def answer(result: Result) -> list[dict[str, Any]]:
    return json.loads(result.stdout)


def refused(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the program itself, which prints errors as sentences."""
    monkeypatch.setattr("sys.argv", ["trimtab", "policy", "backtest", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_it_says_what_would_have_been_done_with_steps_and_numbers(backtest: Backtest) -> None:
    log = write_log("run.jsonl", [*HEALTHY, 9.0, 9.0, 9.0, 9.0, *HEALTHY[:30]])
    result = backtest("guard.yaml", log)
    assert result.exit_code == 0
    assert "run.jsonl: read as jsonl; 184 records, steps 1 to 184" in result.stdout
    assert "would have: 1 Record, 1 Rollback" in result.stdout
    assert "would have rolled back at step 153, to a checkpoint at or before step 51: sustained: loss 9 >" in (
        result.stdout
    )
    assert "the run went on for 31 records and recovered by itself at step 155" in result.stdout


def test_a_rule_whose_metric_is_not_in_the_log_is_told(backtest: Backtest) -> None:
    log = write_log("run.jsonl", HEALTHY, gradnorm2=1.0)
    assert "steep (no grad_norm in the log; the nearest name is gradnorm2)" in backtest("guard.yaml", log).stdout


def test_several_logs_are_summed_up_in_a_table(backtest: Backtest) -> None:
    logs = [write_log("good.jsonl", HEALTHY), write_log("bad.jsonl", [*HEALTHY, 9.0])]
    lines = backtest("guard.yaml", *logs).stdout.splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [["good.jsonl", "150", "0"], ["bad.jsonl", "151", "1"]]


def test_where_several_policies_judge_each_rule_is_told_with_its_own(backtest: Backtest) -> None:
    Path("other.yml").write_text(POLICY.replace("MODE", "Enforce").replace("{name: guard}", "{name: other}"))
    log = write_log("run.jsonl", [*HEALTHY, 9.0, *HEALTHY[:30]])
    result = backtest("guard.yaml", "other.yml", log)
    assert "guard/lone" in result.stdout
    assert "other/lone" in result.stdout
    assert "guard/lone" not in backtest("guard.yaml", log).stdout


def test_a_compressed_log_of_another_program_is_read_with_the_columns_that_were_mapped(backtest: Backtest) -> None:
    rows = "".join(f"{step},{loss}\n" for step, loss in enumerate([*HEALTHY, 9.0], 1))
    Path("run.csv.gz").write_bytes(gzip.compress(f"n,objective\n{rows}".encode()))
    result = backtest("guard.yaml", "run.csv.gz", "--map", "step=n", "--map", "loss=objective", "-o", "json")
    (found,) = answer(result)
    assert found["reader"] == "csv"
    assert found["report"]["counts"]["record"] == 1


def test_json_carries_everything_and_stays_json_where_numbers_are_not(backtest: Backtest) -> None:
    log = write_log("run.jsonl", [*HEALTHY, *[float("nan")] * 3])
    (found,) = json.loads(backtest("guard.yaml", log, "-o", "json").stdout, parse_constant=pytest.fail)
    report = found["report"]
    assert report["events"][0]["observed"] == "nan"
    assert report["incidents"][0]["restoreAtMost"] == 51
    assert report["alarmsPer10000Records"] == pytest.approx(10_000 / 153)
    assert [rule["blind"] for rule in report["rules"]] == [False, False, True]
    assert found["reading"]["unreadable"] == 0


def test_what_could_not_be_read_is_said(backtest: Backtest) -> None:
    log = write_log("run.jsonl", HEALTHY)
    log.write_text(log.read_text() + '{"step": 151, "loss": "much"}\n{"step": 152, "loss"\n')
    result = backtest("guard.yaml", log)
    assert result.exit_code == 0
    assert "could not read 2 lines: line 151: loss is 'much', not a number; line 152: is not JSON" in result.stdout


@pytest.mark.parametrize(("content", "says"), [(b"\x00\x01\x02" * 99, "no log that any reader knows"), (b"", "empty")])
def test_a_log_of_which_nothing_can_be_read_is_an_error_and_the_others_are_judged(
    backtest: Backtest, content: bytes, says: str
) -> None:
    Path("broken.log").write_bytes(content)
    result = backtest("guard.yaml", "broken.log", write_log("run.jsonl", HEALTHY))
    assert result.exit_code == 1
    assert "run.jsonl: read as jsonl" in result.stdout
    assert says in result.stderr


def test_a_log_in_which_no_rule_finds_its_metric_is_an_error_and_not_a_clean_bill(backtest: Backtest) -> None:
    Path("run.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n{"step": 2, "accuracy": 0.6}\n')
    result = backtest("guard.yaml", "run.jsonl")
    assert result.exit_code == 1
    assert "no rule had anything to judge: they look at grad_norm, loss, and the log (read as jsonl) has accuracy" in (
        result.stderr
    )


def test_every_error_of_every_policy_is_named(
    backtest: Backtest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert backtest is not None
    Path("bad.yaml").write_text(POLICY.replace("MODE", "Maybe").replace("sigma: 4}", "sigma: -4}", 1))
    write_log("run.jsonl", HEALTHY)
    assert refused(monkeypatch, "bad.yaml", "run.jsonl") == 1
    message = capsys.readouterr().err
    assert "bad.yaml:5: spec.mode" in message
    assert "bad.yaml:9: spec.rules[0].spike.sigma" in message


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run.jsonl"], "at least one policy"),
        (["guard.yaml"], "at least one log"),
        (["guard.yaml", "run.jsonl", "--map", "loss"], "must be METRIC=COLUMN"),
        (["guard.yaml", "run.jsonl", "--map", "loss=a", "--map", "loss=b"], "gives loss two columns"),
        (["guard.yaml", "run.jsonl", "--map", "loss=nowhere"], "no column is called 'nowhere'"),
        (["guard.yaml", "run.jsonl", "--format", "papyrus"], "no log format 'papyrus'"),
    ],
)
def test_a_command_that_cannot_be_followed_is_a_usage_error(
    backtest: Backtest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    assert backtest is not None
    write_log("run.jsonl", HEALTHY)
    assert refused(monkeypatch, *arguments) == 2
    assert says in capsys.readouterr().err


def test_a_log_whose_name_ends_like_a_policys_is_read_when_named_as_a_log(backtest: Backtest) -> None:
    assert backtest("guard.yaml", "--log", write_log("run.yaml", HEALTHY)).exit_code == 0


@pytest.mark.parametrize(("action", "code"), [("Stop", 0), ("Rollback", 1), ("pause", 1), ("Notify", 1)])
def test_fail_on_answers_no_when_such_an_action_or_a_stronger_one_was_called_for(
    backtest: Backtest, action: str, code: int
) -> None:
    log = write_log("run.jsonl", [*HEALTHY, 9.0, 9.0, 9.0])
    assert backtest("guard.yaml", log, "--fail-on", action).exit_code == code


def test_a_policy_that_only_observes_is_told_apart_and_still_fails_the_check(backtest: Backtest) -> None:
    Path("watch.yaml").write_text(POLICY.replace("MODE", "Observe"))
    result = backtest("watch.yaml", write_log("run.jsonl", [*HEALTHY, 9.0, 9.0, 9.0]), "--fail-on", "Rollback")
    assert result.exit_code == 1
    assert "policy guard is in mode Observe" in result.stdout


def test_two_policies_are_compared_on_the_same_log(backtest: Backtest) -> None:
    Path("slower.yaml").write_text(POLICY.replace("MODE", "Enforce").replace("forRecords: 3", "forRecords: 5"))
    Path("same.yaml").write_text(POLICY.replace("MODE", "Enforce"))
    log = write_log("run.jsonl", [*HEALTHY, *[9.0] * 3, *HEALTHY, *[9.0] * 6])
    slower = backtest("guard.yaml", log, "--compare", "slower.yaml").stdout
    assert "only here: Rollback by sustained at step 153" in slower
    assert "at another step: Rollback by sustained at step 306, the other at step 308" in slower
    assert "would have: 2 Record, 2 Rollback; the other: 2 Record, 1 Rollback" in slower
    assert "no difference" in backtest("guard.yaml", log, "--compare", "same.yaml").stdout


def test_the_page_is_whole_by_itself_and_escapes_what_logs_and_policies_say(backtest: Backtest) -> None:
    log = write_log("<script>alert(1)</script>.jsonl".replace("/", "_"), [*HEALTHY, 9.0, 9.0, 9.0, *HEALTHY])
    assert backtest("guard.yaml", log, "--html", "page.html").exit_code == 0
    page = Path("page.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"(src|href)=|https?://", page)
    assert page.count("<svg") == 1
    assert 'class="mark rollback"' in page
    assert "would have rolled back at step 153" in page


def test_the_page_of_a_long_log_stays_small(backtest: Backtest) -> None:
    log = write_log("run.jsonl", [HEALTHY[index % 150] for index in range(20_000)], grad_norm=1.0)
    assert backtest("guard.yaml", log, "--html", "page.html").exit_code == 0
    assert len(Path("page.html").read_bytes()) < 400_000


def test_a_page_that_cannot_be_written_is_one_sentence(
    backtest: Backtest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert backtest is not None
    write_log("run.jsonl", HEALTHY)
    assert refused(monkeypatch, "guard.yaml", "run.jsonl", "--html", "nowhere/page.html") == 1
    assert "nowhere/page.html cannot be written: No such file or directory." in capsys.readouterr().err
