"""The pages name every field, metric and reason there is, and the examples they tell people to apply are accepted."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS
from trimtab_operator.reasons import ConditionType
from trimtab_operator.resources import parse_training_job_spec
from trimtab_operator.resources.training_job import TrainingJobSpec
from trimtab_operator.run_state import CheckpointState, RunPhase
from trimtab_operator.satisfiability import unsatisfiable
from trimtab_policies.policy import parse_policy
from trimtab_trainer.config import TrainerConfig, read_config
from trimtab_trainer.mapping import camel

ROOT = Path(__file__).parents[2]
OWN_JOB = ROOT / "examples" / "own-job"
JOB_PAGE = (ROOT / "docs" / "training-jobs.md").read_text()
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")})
METRICS_PAGE = (ROOT / "docs" / "metrics.md").read_text()


def rows(page: str) -> dict[str, list[str]]:
    """The cells behind the first one of each table row, under each name in backticks that the first one has."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("| `"):
            first, *rest = (cell.strip() for cell in line.strip("| ").split(" | "))
            found.update(dict.fromkeys(re.findall(r"`([^`]+)`", first), rest))
    return found


def config_fields(kind: Any = TrainerConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of the trainer's configuration as YAML spells it, with its default."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = f"{prefix}{camel(field.name)}"
        if dataclasses.is_dataclass(hints[field.name]):
            yield from config_fields(hints[field.name], f"{name}.")
        else:
            yield name, field.default


def spoken(default: Any) -> str:
    """A default as YAML has it."""
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default in ((), None) else str(default)


@pytest.mark.parametrize(("name", "default"), list(config_fields()))
def test_the_trainers_configuration_is_listed_with_its_defaults(name: str, default: Any) -> None:
    told = rows(JOB_PAGE)[name][0]
    expected = "required" if default is dataclasses.MISSING else spoken(default)
    assert expected in told.replace("`", "").split(", ")


@pytest.mark.parametrize("part", ["", "trainer", "checkpoint", "guard", "budget"])
def test_every_field_of_a_training_job_is_listed_with_its_default(part: str) -> None:
    kind: Any = TrainingJobSpec.model_fields[part].annotation if part else TrainingJobSpec
    listed = rows(JOB_PAGE)
    for name, field in kind.model_fields.items():
        path = f"{part}.{field.alias or name}".lstrip(".")
        if path in {"trainer", "checkpoint", "guard", "budget"}:
            continue
        known = next(cells for given, cells in listed.items() if given == path or given.startswith(f"{path}."))
        if isinstance(field.default, bool | int | str):
            assert known[0] == f"`{spoken(field.default)}`"


def test_every_field_of_the_pod_template_is_named() -> None:
    template: Any = TrainingJobSpec.model_fields["pod_template"].annotation
    for name, field in template.model_fields.items():
        assert f"{field.alias or name}`" in JOB_PAGE


@pytest.mark.parametrize("phase", [*RunPhase, *CheckpointState])
def test_every_phase_and_checkpoint_state_is_explained(phase: str) -> None:
    assert phase in rows(JOB_PAGE)


def test_every_condition_is_explained() -> None:
    of_jobs = set(ConditionType) - {ConditionType.ACCEPTED}
    assert of_jobs <= rows(JOB_PAGE).keys()


def test_every_known_metric_is_explained_and_no_other() -> None:
    assert rows(METRICS_PAGE).keys() == {*KNOWN_SCALARS, *KNOWN_VECTORS}


def test_the_own_job_is_accepted_by_operator_and_trainer_and_fits_its_policy() -> None:
    job = yaml.safe_load((OWN_JOB / "trainingjob.yaml").read_text())
    policy = yaml.safe_load((OWN_JOB / "guardpolicy.yaml").read_text())
    spec = parse_training_job_spec(job["spec"])
    read_config(json.dumps(spec.trainer.config))
    assert [one.name for one in spec.guard.policies] == [policy["metadata"]["name"]]
    assert unsatisfiable(parse_policy(policy["spec"]), spec.trainer.config) == ()


def test_the_readme_shows_the_policy_that_lies_in_the_examples() -> None:
    assert (OWN_JOB / "guardpolicy.yaml").read_text() in (ROOT / "README.md").read_text()


def test_every_value_of_the_chart_is_named() -> None:
    page = (ROOT / "docs" / "installing.md").read_text()
    values: dict[str, Any] = yaml.safe_load((ROOT / "helm" / "trimtab" / "values.yaml").read_text())
    listed = {name.partition(".")[0] for name in rows(page)}
    assert values.keys() <= listed


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_places_that_are_there(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"
