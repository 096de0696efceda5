"""`trimtab policy check` names every error with file, line and path."""

import json
from pathlib import Path

import pytest
import yaml
from trimtab_cli.__main__ import app
from trimtab_cli.policy_files import check_policies, line_of
from typer.testing import CliRunner

EXAMPLE = Path(__file__).parents[2] / "examples" / "demo" / "guardpolicy.yaml"

BROKEN = """\
apiVersion: trimtab.dev/v1alpha1
kind: GuardPolicy
metadata:
  name: broken
spec:
  rules:
    - name: loss-spike
      metric: loss
      spike: {sigma: -4}
      forRecords: 3
      action: Rollback
    - name: two-detectors
      metric: grad_norm
      spike: {sigma: 4}
      range: {max: 1}
      action: Notfy
    - name: typo
      metric: Loss
      range: {max: 1}
      action: Notify
  remediation:
    margin: 0
    skipBatches:
      probes: 3
"""


def places(text: str) -> set[tuple[int, str]]:
    return {(one.line, one.path) for one in check_policies("p.yaml", text)[1]}


def test_every_error_has_its_line_and_path() -> None:
    assert places(BROKEN) == {
        (9, "spec.rules[0].spike.sigma"),
        (12, "spec.rules[1]"),
        (16, "spec.rules[1].action"),
        (18, "spec.rules[2].metric"),
        (22, "spec.remediation.margin"),
        (24, "spec.remediation.skipBatches.probes"),
    }


def test_a_misspelt_metric_is_answered_with_the_nearest_known_name() -> None:
    (message,) = [str(one) for one in check_policies("p.yaml", BROKEN)[1] if one.path == "spec.rules[2].metric"]
    assert message.endswith("did you mean loss?")


def test_lines_count_through_the_documents_of_one_file() -> None:
    count, findings = check_policies("p.yaml", EXAMPLE.read_text() + "---\n" + BROKEN)
    assert count == 2
    assert min(one.line for one in findings) == EXAMPLE.read_text().count("\n") + 1 + 9


def test_a_missing_field_points_at_its_parent() -> None:
    text = BROKEN.replace("      metric: grad_norm\n", "")
    assert (12, "spec.rules[1].metric") in places(text)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: [", 1, "is not YAML"),
        ("", 1, "holds no GuardPolicy"),
        ("- 1", 1, "is no manifest"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}", 2, "must be GuardPolicy"),
        (BROKEN.replace("name: broken", "name: Bad_Name"), 4, "must be a Kubernetes name"),
        (BROKEN.replace("  remediation:", "  rules: []\n  remediation:"), 21, "is given twice"),
        ("kind: *nowhere", 1, "undefined alias"),
        ("apiVersion: trimtab.dev/v1alpha1\nkind: GuardPolicy\nmetadata: {name: a}\n", 1, "must be an object with"),
        ("x: !!python/object:os.system {}", 1, "is not YAML"),
    ],
)
def test_what_is_no_policy_is_said_so(text: str, line: int, says: str) -> None:
    findings = check_policies("p.yaml", text)[1]
    assert any(one.line == line and says in str(one) for one in findings), findings


def test_the_command_answers_yes_with_0_and_no_with_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(BROKEN)
    runner = CliRunner()
    assert runner.invoke(app, ["policy", "check", str(EXAMPLE)]).exit_code == 0
    result = runner.invoke(app, ["policy", "check", str(EXAMPLE), str(broken)])
    assert result.exit_code == 1
    assert f"{broken}:9: spec.rules[0].spike.sigma: must be greater than 0" in result.stdout
    assert runner.invoke(app, ["policy", "check"]).exit_code == 2


def test_json_carries_the_same(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(BROKEN)
    answer = json.loads(CliRunner().invoke(app, ["policy", "check", "-o", "json", str(broken)]).stdout)
    assert answer["valid"] is False
    message = "must be at least 1; it is 0"
    assert {"file": str(broken), "line": 22, "path": "spec.remediation.margin", "message": message} in answer["errors"]


def test_a_file_that_is_not_there_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["policy", "check", "/nonexistent.yaml"])
    assert result.exit_code == 1
    assert "/nonexistent.yaml: cannot be read: No such file or directory" in result.stdout


def test_a_path_beyond_the_node_stops_at_the_nearest_parent() -> None:
    node = yaml.compose("a:\n  b: 1\n", Loader=yaml.SafeLoader)
    assert node is not None
    assert [line_of(node, path) for path in ("a", "a.b", "a.c", "a.b.x", "a[3]")] == [1, 2, 1, 2, 1]


def test_a_metric_that_nothing_publishes_is_doubted_with_the_nearest_name_and_is_no_error(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    file = tmp_path / "p.yaml"
    file.write_text(text.replace("metric: loss\n", "metric: los\n", 1))
    done = CliRunner().invoke(app, ["policy", "check", str(file)])
    assert done.exit_code == 0
    assert ": the reference trainer publishes no los; did you mean loss?\n" in done.output
    assert done.output.endswith("1 policy in 1 file: valid\n")
    file.write_text(text.replace("metric: loss\n", "metric: zz_of_mine\n", 1))
    assert CliRunner().invoke(app, ["policy", "check", str(file)]).output == "1 policy in 1 file: valid\n"


def test_numbers_are_read_as_kubectl_reads_them() -> None:
    text = EXAMPLE.read_text()
    for number in ("1e3", "-1.5E-4", ".5e2", "2.e+1"):
        content = text.replace("sigma: 4", f"sigma: {number.strip('-')}", 1)
        assert content != text
        assert check_policies("p.yaml", content)[1] == (), number
    assert check_policies("p.yaml", text.replace("sigma: 4", "sigma: 1e", 1))[1] != ()


def test_two_policies_of_one_name_are_told_apart_by_their_namespace_alone() -> None:
    text = EXAMPLE.read_text()
    (finding,) = check_policies("p.yaml", f"{text}---\n{text}")[1]
    assert finding.path == "metadata.name"
    assert finding.message == "is that of another GuardPolicy in this file, which this one would replace"
    named = text.replace("metadata:\n", "metadata:\n  namespace: other\n", 1)
    assert check_policies("p.yaml", f"{text}---\n{named}")[1] == ()
