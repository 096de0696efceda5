"""`trimtab policy explain` on a log and on a job's archive."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from trimtab_cli.__main__ import app, main
from typer.testing import CliRunner

POLICY = """\
apiVersion: trimtab.dev/v1alpha1
kind: GuardPolicy
metadata: {name: guard}
spec:
  rules:
  - name: sustained
    metric: loss
    spike: {baseline: {records: 20, minRecords: 10, maxFreeze: 15}, sigma: 4}
    forRecords: 3
    action: Rollback
  - {name: high, metric: loss, range: {max: 5}, action: Notify}
  - {name: steep, metric: grad_norm, range: {max: 10}, action: Notify}
"""

Explain = Callable[..., Result]


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explain:
    """The command, in a folder with a policy and a log whose loss is high from step 31 on."""
    monkeypatch.chdir(tmp_path)
    Path("guard.yaml").write_text(POLICY)
    write_log([(step, 2.0 + step % 3 / 10 if step <= 30 else 9.0) for step in range(1, 36)])
    return lambda *arguments: CliRunner().invoke(app, ["policy", "explain", *map(str, arguments)])


def write_log(rows: list[tuple[int, float]]) -> None:
    Path("run.jsonl").write_text("".join(f"{json.dumps({'step': step, 'loss': loss})}\n" for step, loss in rows))


def test_each_rule_says_what_it_saw_what_it_compared_it_with_and_its_verdict(explain: Explain) -> None:
    lines = explain("guard.yaml", "run.jsonl", "--step", 32).stdout.splitlines()
    assert lines[0] == "run.jsonl: step 32 of attempt 1, line 32"
    assert lines[1].startswith("sustained: Pending (Breaching): loss 9 > 2.4")
    assert "(mean 2.1 + 4 std 0.0858 over 20 records), 2 records in a row of 3 since step 31" in lines[1]
    assert lines[2] == "high: Firing (OutOfRange): loss 9 > 5, 2 records in a row since step 31"
    assert lines[3] == "steep: NoData (MetricAbsent): grad_norm is absent from the record"
    assert lines[4] == "would have: Notify, asked for by high; the first bad step is 31"


def test_a_quiet_step_is_explained_too(explain: Explain) -> None:
    result = explain("guard.yaml", "run.jsonl", "--step", 20)
    assert result.exit_code == 0
    assert "nothing fires" in result.stdout


def test_json_has_the_numbers_apart(explain: Explain) -> None:
    answer = json.loads(explain("guard.yaml", "run.jsonl", "--step", 33, "-o", "json").stdout)
    assert (answer["action"], answer["rule"]) == ("Rollback", "sustained")
    first = answer["verdicts"][0]
    assert (first["observed"], first["streak"], first["firstBadStep"]) == (9.0, 3, 31)
    assert first["baseline"].startswith("mean 2.1 + 4 std")


def test_where_several_attempts_have_the_step_the_last_one_counts_unless_another_is_asked_for(
    explain: Explain,
) -> None:
    first = [(step, 2.0 + step % 3 / 10) for step in range(1, 41)]
    write_log([*first, *((step, 7.0) for step in range(35, 41))])
    last = explain("guard.yaml", "run.jsonl", "--step", 36).stdout
    assert "step 36 of attempt 2, line 42; attempt 1 has this step too" in last
    assert "high: Firing" in last
    assert "high: Healthy" in explain("guard.yaml", "run.jsonl", "--step", 36, "--attempt", 1).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["guard.yaml", "run.jsonl", "--step", "99"], 1, "run.jsonl has no step 99; the nearest are 35."),
        (["guard.yaml", "run.jsonl", "--step", "9", "--attempt", "4"], 1, "step 9 in attempt 1, not in attempt 4"),
        (["guard.yaml", "run.jsonl", "run.jsonl", "--step", "9"], 2, "Name one log"),
        (["run.jsonl", "--step", "9"], 2, "at least one policy"),
        (["--job", "demo", "--step", "9", "--map", "loss=x"], 2, "leave out"),
    ],
)
def test_what_cannot_be_explained_is_said_in_one_sentence(
    explain: Explain,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    assert explain is not None
    monkeypatch.setattr("sys.argv", ["trimtab", "policy", "explain", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code
    assert says in capsys.readouterr().err
