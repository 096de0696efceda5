"""`trimtab policy test` runs test files as a test runner does: output for people, JSON and JUnit for programs."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trimtab_cli.__main__ import app
from trimtab_cli.policy_test_files import read_test_file
from typer.testing import CliRunner, Result

POLICY = """\
apiVersion: trimtab.dev/v1alpha1
kind: ClusterGuardPolicy
metadata: {name: guard}
spec:
  rules:
  - {name: high-loss, metric: loss, range: {max: 5}, forRecords: 2, action: Rollback}
  - {name: not-finite, metric: nonfinite, range: {max: 0}, action: Stop}
  remediation: {margin: 10}
"""
TESTS = """\
cases:
- name: one high value is nothing
  series: {loss: 2x20 9 2x3, nonfinite: 0x24}
- name: two roll back
  checkpointEvery: 5
  series:
    loss: 2x20 9x2 2
    nonfinite: 0
  decisions:
  - {step: 22, rule: high-loss, action: Rollback, target: 10}
"""


TOLD = "high-loss of guard decides action Rollback"


DOCUMENTED = Path(__file__).parents[2] / "docs" / "policy-tests.md"
DOCUMENTED_POLICY = """\
apiVersion: trimtab.dev/v1alpha1
kind: GuardPolicy
metadata: {name: guard}
spec:
  rules:
  - {name: loss-spike, metric: loss, spike: {sigma: 4}, forRecords: 3, afterSteps: 200, action: Rollback}
  - {name: loss-lone-spike, metric: loss, spike: {sigma: 4}, afterSteps: 200, action: Record}
  - {name: non-finite, metric: nonfinite, range: {max: 0}, action: Rollback}
  - name: qk-clip-sustained
    metric: qk_clip_gamma
    reduce: {longestStreakBelow: 1}
    range: {max: 19}
    action: Notify
"""


def written(directory: Path, *, policy: str = POLICY, tests: str = TESTS) -> Path:
    (directory / "guard.yaml").write_text(policy)
    (directory / "guard.test.yaml").write_text(tests)
    return directory / "guard.test.yaml"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["policy", "test", *map(str, arguments)])


def test_a_file_whose_cases_all_pass_answers_yes(tmp_path: Path) -> None:
    file = written(tmp_path)
    for named in (file, tmp_path):
        result = run(named)
        assert result.exit_code == 0
        assert result.stdout.splitlines() == [
            f"{file} (guard)",
            "  PASS  one high value is nothing",
            "  PASS  two roll back",
            "2 cases in 1 file: 2 passed",
        ]


def test_the_documented_example_passes(tmp_path: Path) -> None:
    example = DOCUMENTED.read_text().split("```yaml\n")[1].split("```")[0]
    assert example.startswith("# guard.test.yaml")
    result = run(written(tmp_path, policy=DOCUMENTED_POLICY, tests=example))
    assert result.exit_code == 0, result.stdout


def test_a_failing_case_says_what_was_expected_what_came_and_why(tmp_path: Path) -> None:
    file = written(tmp_path, tests=TESTS.replace("target: 10", "target: 5"))
    result = run(file)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2:] == [
        "  FAIL  two roll back",
        f"        {file}:10: cases[1].decisions[0]",
        "          expected  step 22: high-loss decides action Rollback, target 5",
        f"          came      step 22: {TOLD}, firstBadStep 21, notAfter 11, target 10",
        "          because   loss 9 > 5, 2 records in a row since step 21",
        "2 cases in 1 file: 1 passed, 1 failed",
    ]


def test_every_error_of_a_test_file_is_named_with_its_line(tmp_path: Path) -> None:
    wrong = TESTS.replace("loss: 2x20 9x2 2", "los: 2x20").replace("rule: high-loss", "rule: high-los")
    file = written(tmp_path, tests=wrong)
    result = run(file)
    assert result.exit_code == 1
    assert f"  {file}:7: cases[1].series.los: no rule under test reads los" in result.stdout
    assert (
        f"  {file}:10: cases[1].decisions[0].rule: high-los is no rule of guard; did you mean high-loss?"
        in result.stdout
    )
    assert result.stdout.endswith("0 cases in 1 file: 0 passed; 1 file could not be run\n")


def test_errors_of_the_policy_are_named_at_their_place(tmp_path: Path) -> None:
    file = written(tmp_path, policy=POLICY.replace("max: 5", "mix: 5"))
    result = run(file)
    assert result.exit_code == 1
    assert f"{tmp_path / 'guard.yaml'}:6: spec.rules[0].range.mix: is not a field" in result.stdout


def test_other_policy_files_may_be_named(tmp_path: Path) -> None:
    file = written(tmp_path, tests=f"policies: [other.yaml, guard.yaml]\n{TESTS}")
    result = run(file)
    assert f"{file}:1: policies[0]: there is no policy file {tmp_path / 'other.yaml'}" in result.stdout
    (tmp_path / "other.yaml").write_text(POLICY.replace("name: guard", "name: other"))
    assert "(other, guard)" in run(file).stdout


def test_two_policies_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    file = written(tmp_path, tests=f"policies: [guard.yaml, guard.yaml]\n{TESTS}")
    assert f"{file}:1: policies: two policies are called guard" in run(file).stdout


def test_a_test_file_without_its_policy_says_where_it_was_looked_for(tmp_path: Path) -> None:
    file = written(tmp_path)
    (tmp_path / "guard.yaml").unlink()
    result = run(file)
    assert result.exit_code == 1
    assert f"there is no policy file {tmp_path / 'guard.yaml'}" in result.stdout


def test_digits_with_an_x_are_a_repetition_and_no_hexadecimal_number(tmp_path: Path) -> None:
    file = written(tmp_path, tests="cases:\n- {name: zeros, series: {nonfinite: 0x10}}\n")
    [case] = read_test_file(file).cases
    assert case.attempts[0].records == 10


@pytest.mark.parametrize(
    ("name", "says"),
    [("nowhere.test.yaml", "does not exist"), ("guard.yaml", "is no test file"), ("empty", "holds no *.test.yaml")],
)
def test_what_was_typed_wrongly_is_no_answer(tmp_path: Path, name: str, says: str) -> None:
    written(tmp_path)
    (tmp_path / "empty").mkdir()
    result = run(tmp_path / name)
    assert result.exit_code != 0
    assert says in str(result.exception)
    assert run().exit_code == 2


def test_json_carries_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, tests=TESTS.replace("target: 10", "target: 5"))
    answer = json.loads(run(file, "-o", "json").stdout)
    assert answer["passed"] is False
    [one] = answer["files"]
    assert (one["file"], one["policies"], one["errors"]) == (str(file), ["guard"], [])
    assert [case["passed"] for case in one["cases"]] == [True, False]
    [failure] = one["cases"][1]["failures"]
    assert (failure["line"], failure["path"]) == (10, "cases[1].decisions[0]")
    assert failure["sentence"] == "loss 9 > 5, 2 records in a row since step 21"


def test_junit_counts_failures_and_files_that_could_not_be_run(tmp_path: Path) -> None:
    written(tmp_path, tests=TESTS.replace("target: 10", "target: 5"))
    (tmp_path / "broken.test.yaml").write_text("cases: [\n")
    report = tmp_path / "report.xml"
    assert run(tmp_path, "--junit", report).exit_code == 1
    root = ET.fromstring(report.read_text())
    assert {name: root.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    broken, guard = root.findall("testsuite")
    assert "is not YAML" in str(broken.findtext("testcase/error"))
    failed = guard.find("testcase[@name='two roll back']/failure")
    assert failed is not None
    assert "expected  step 22" in str(failed.text)
    assert guard.find("testcase[@name='one high value is nothing']/failure") is None


def test_a_report_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    result = run(written(tmp_path), "--junit", tmp_path / "nowhere" / "report.xml")
    assert "cannot be written: No such file or directory" in str(result.exception)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "must hold one document with `cases`; it holds 0"),
        (b"a: 1\n---\nb: 2\n", "it holds 2"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"a\x00b", "is not YAML"),
        (b"[" * 5_000, "guard.test.yaml:1: is nested too deeply"),
        (b"cases: " + b"[" * 100 + b"]" * 100, "guard.test.yaml:1: is nested too deeply"),
        (b"&a [*a]", "must be an object with `cases`"),
        (b"cases: 2020-99-99", "cannot be read"),
        (b"cases: " + b"9" * 5_000, "cannot be read"),
        (b"? [1, 2]\n: 3\n", "is not YAML"),
        (b"cases:\n- {name: a, name: b, series: {loss: 2x3}}", "is given twice"),
    ],
)
def test_what_is_no_test_file_is_said_in_one_sentence(tmp_path: Path, text: bytes, says: str) -> None:
    file = written(tmp_path)
    file.write_bytes(text)
    assert any(says in str(finding) for finding in read_test_file(file).findings), read_test_file(file).findings


YAML_WORDS = st.sampled_from(
    [
        "cases:",
        "- ",
        "name: a",
        "series:",
        "{",
        "}",
        "[",
        "]",
        "loss: 2x3",
        "&a ",
        "*a",
        "? ",
        ": ",
        "\n",
        "  ",
        "!!int x",
        "decisions:",
        "0x1f",
        "2020-01-01",
        "|",
        ">",
        "'",
        '"',
        "#",
        "<<: *a",
        "\t",
        "9" * 30,
        ".nan",
        "é",
        "\x07",
    ]
)


@given(st.lists(YAML_WORDS, max_size=25).map("".join))
@settings(deadline=None, max_examples=150)
def test_a_text_of_any_kind_is_run_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = written(tmp_path_factory.getbasetemp(), tests=text)
    suite = read_test_file(file)
    assert bool(suite.cases) != bool(suite.findings)
