"""What holds for the tree as a whole: source roots are no packages, and modules stay small."""

import importlib
import operator
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("contract", "policies", "operator", "trainer_image", "cli", "sandbox")
MOST_LINES, MOST_MEDIAN_LINES = 500, 160


def modules() -> list[Path]:
    """Every module of the product."""
    return [path for root in SOURCE_ROOTS for path in sorted((ROOT / root).glob("trimtab_*/**/*.py"))]


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("root", [*SOURCE_ROOTS, "tests", "benchmarks"])
def test_a_source_root_is_no_package(root: str) -> None:
    """An `operator/__init__.py` would stand in the way of Python's own `operator`."""
    assert not (ROOT / root / "__init__.py").exists()


def test_pythons_own_operator_is_the_one_that_is_imported() -> None:
    assert importlib.import_module("operator") is operator
    assert ROOT not in Path(str(operator.__file__)).parents


def test_no_module_is_long_and_most_are_short() -> None:
    found = modules()
    assert len(found) > 100
    assert {str(path.relative_to(ROOT)): lines(path) for path in found if lines(path) > MOST_LINES} == {}
    assert statistics.median(map(lines, found)) <= MOST_MEDIAN_LINES


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
