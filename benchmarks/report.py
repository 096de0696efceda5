"""RESULTS.md: every measurement that is kept, as tables."""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import FOLDER, ROOT, Figure, Measurement, read

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
DEMO_SUMMARY = ROOT / "build" / "demo" / "summary.json"

_HEAD = """# What it costs

Written by `make bench`; a part measured alone replaces its own section. A figure without a unit is a ratio of two
things measured side by side in one run: it carries over to other machines better than a time does. Times stand beside
the ratios to say what scale they are on. *Spread* is the range between the lower and the upper quartile, *p99* the
sample that one in a hundred exceeds. A goal is held against the median.
"""
_TABLE = "| figure | median | spread | p99 | samples | goal |\n|---|---|---|---|---|---|"


def write_report(names: tuple[str, ...], path: Path = RESULTS) -> Path:
    """Write RESULTS.md from the measurements kept under `names`; of what was not measured here, what it says stays."""
    files = [FOLDER / f"{name}.json" for name in names]
    measured = [_section(read(file)) for file in files if file.exists()]
    sections = _by_title(path.read_text().split("\n## ")[1:]) if path.exists() else {}
    sections |= _by_title([section.removeprefix("## ") for section in [*measured, *_demo()]])
    path.write_text("\n".join([_HEAD, *(f"## {section}" for section in sections.values())]))
    return path


def _by_title(sections: Sequence[str]) -> dict[str, str]:
    return {section.partition("\n")[0]: f"{section.rstrip()}\n" for section in sections}


def _section(measurement: Measurement) -> str:
    rows = "\n".join(_row(figure) for figure in measurement.figures if figure.samples)
    notes = "".join(f"\n* {note}" for note in measurement.notes)
    return (
        f"## {measurement.title}\n\n{measurement.about}\n\n{_TABLE}\n{rows}\n"
        f"{notes}\n\nMachine: {measurement.machine}.\n"
    )


def _row(figure: Figure) -> str:
    unit = figure.unit
    spread = f"{_number(figure.quantile(0.25), unit)} to {_number(figure.quantile(0.75), unit)}"
    last = _number(figure.quantile(0.99), unit) if len(figure.samples) >= 100 else ""
    goal = ""
    if figure.goal is not None:
        kept = "kept" if figure.median <= figure.goal else "**missed**"
        goal = f"≤ {_number(figure.goal, unit)}, {kept}"
    return f"| {figure.name} | {_number(figure.median, unit)} | {spread} | {last} | {len(figure.samples)} | {goal} |"


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.2f} %"
    if unit == "MB":
        return f"{value:.0f} MB"
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{text} {unit}".strip()


def _demo() -> list[str]:
    if not DEMO_SUMMARY.exists():
        return []
    seconds = json.loads(DEMO_SUMMARY.read_text())["seconds"]
    return [f"## `make demo`\n\nThe last run on this machine took {seconds:.0f} s from its start to the told story.\n"]
