"""Each kind of error of a policy has a file in `bad/`, and beside it the lines that `policy check` prints."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trimtab_cli.policy_files import KINDS, PolicyFinding, check_policies, read_policies
from trimtab_policies.checks import DETECTOR_FIELDS, REDUCTION_FIELDS
from trimtab_policies.errors import InvalidPolicy
from trimtab_policies.policy import GuardPolicySpec, parse_policy

BAD = Path(__file__).with_name("bad")
FILES = sorted(BAD.glob("*.yaml"))


def line(finding: PolicyFinding) -> str:
    return (
        f"{finding.line}: {finding.path}: {finding.message}" if finding.path else f"{finding.line}: {finding.message}"
    )


def found(file: Path) -> list[str]:
    return [line(finding) for finding in check_policies(file.name, file.read_text())[1]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_bad_policy_is_refused_with_line_path_what_was_found_and_what_is_allowed(file: Path) -> None:
    expected = file.with_suffix(".errors").read_text().splitlines()
    assert expected
    assert found(file) == expected


def test_every_bad_policy_has_its_errors_beside_it_and_no_errors_stand_alone() -> None:
    assert len(FILES) > 100
    assert {file.stem for file in FILES} == {file.stem for file in BAD.glob("*.errors")}


def test_all_errors_of_a_file_come_at_once() -> None:
    file = BAD / "several-errors-at-once.yaml"
    assert len(found(file)) == 9
    twice = check_policies("two.yaml", f"{file.read_text()}---\n{file.read_text()}")
    assert (twice[0], len(twice[1])) == (2, 18)


def test_errors_before_a_place_that_is_not_yaml_are_named_too() -> None:
    text = f"{(BAD / 'mode.yaml').read_text()}---\nspec: [\n"
    paths = [finding.path for finding in check_policies("two.yaml", text)[1]]
    assert paths == ["", "spec.mode"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_kinds_of_policy_are_taken(kind: str) -> None:
    text = f"apiVersion: trimtab.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: good}}\nspec:\n  rules:\n"
    rule = "  - {name: one, metric: loss, range: {max: 5}, action: Notify}\n"
    policies, findings = read_policies("good.yaml", text + rule)
    assert [(policy.kind, policy.name, policy.namespace) for policy in policies] == [(kind, "good", None)]
    assert findings == ()


def test_a_test_file_is_no_policy_and_the_answer_says_what_to_run() -> None:
    [finding] = check_policies("guard.test.yaml", "cases: []\n")[1]
    assert finding.message == "holds tests of policies and no policy; run `trimtab policy test guard.test.yaml`"


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["loss", "qk_max_logit", "Rollback", "Breach", "one", "5m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
SETTINGS = st.dictionaries(
    st.sampled_from(["min", "max", "sigma", "ratio", "floor", "baseline", "after", "relative", "absolute", "records"])
    | st.sampled_from(REDUCTION_FIELDS),
    ANYTHING,
    max_size=3,
)
RULE = st.dictionaries(
    st.sampled_from([*DETECTOR_FIELDS, "name", "metric", "reduce", "forRecords", "onNoData", "noDataFor", "action"]),
    ANYTHING | SETTINGS,
    max_size=7,
)
SPEC = st.dictionaries(
    st.sampled_from(["mode", "rules", "remediation", "x"]), ANYTHING | st.lists(RULE | ANYTHING, max_size=4), max_size=4
)


def outcome(spec: object) -> GuardPolicySpec | InvalidPolicy:
    try:
        return parse_policy(spec)
    except InvalidPolicy as error:
        return error


@given(ANYTHING | SPEC)
@settings(deadline=None, max_examples=200)
def test_a_spec_of_any_shape_is_a_policy_or_is_refused_with_paths(spec: object) -> None:
    result = outcome(spec)
    if isinstance(result, InvalidPolicy):
        assert result.errors
        assert all(error.path.startswith("spec") and error.message for error in result.errors)


GOOD = (Path(__file__).parents[2] / "policies" / "library" / "default.yaml").read_text()


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_policy_damaged_anywhere_is_refused_or_still_a_policy(data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(begin, min(len(GOOD), begin + 40)))
    inserted = data.draw(st.text(alphabet="{}[]:,-&*!|>'\"#%@`\n\t 09aé\x00\x85", max_size=8))
    policies, findings = read_policies("damaged.yaml", GOOD[:begin] + inserted + GOOD[end:])
    assert policies or findings


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "{a: " * 20_000,
        "- " * 20_000,
        "&a [*a]",
        "&a {spec: *a}",
        "9" * 10_000,
        "\x00",
        "\ufeff",
        "%YAML 9.9\n--- a",
    ],
    ids=["lists", "objects", "bullets", "itself", "itself-again", "digits", "nul", "mark", "version"],
)
def test_hostile_yaml_is_refused_in_a_sentence(text: str) -> None:
    policies, findings = read_policies("hostile.yaml", text)
    assert not policies
    assert findings
