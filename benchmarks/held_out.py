"""Logs on which nobody tuned anything: their labels, and whether a folder's files are the ones that were labelled.

`held_out_logs.json` is a list of objects like those of the known logs' `index.json`, with `records`, `sha256` and where
they exist `damage` (steps at which a person sees it), `metrics` (default: the loss) and `why` (a goal is missed). Of a
log the first `records` points that have one of the metrics are judged, and nothing else of it; `sha256` is of them. So
the repository's own file and one made from its text are told by what they say and not by how they say it.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from trimtab_cli.errors import CliError
from trimtab_cli.log_files import open_log
from trimtab_policies.log_readers.points import LogPoint

from benchmarks.judgement_table import file_of

INDEX = Path(__file__).with_name("held_out_logs.json")


def held_out_points(folder: Path, label: dict[str, Any]) -> list[LogPoint]:
    """The points of a labelled log; raises CliError when they are others than those that were labelled."""
    points = list(islice(_judged(folder, label), label["records"]))
    found = digest(points)
    if found != label["sha256"]:
        message = (
            f"{label['name']}: its {len(points)} points have the hash {found}, the labelled {label['records']} had "
            f"{label['sha256']}: this is another log or another version of it."
        )
        raise CliError(message)
    return points


def _judged(folder: Path, label: dict[str, Any]) -> Iterator[LogPoint]:
    metrics = label.get("metrics", ["loss"])
    for point in open_log(file_of(folder, label["name"])):
        scalars = {name: point.scalars[name] for name in metrics if name in point.scalars}
        if scalars:
            yield msgspec.structs.replace(point, scalars=scalars, vectors={}, time=None)


def digest(points: Sequence[LogPoint]) -> str:
    """SHA-256 of `step metric=value ...` lines, values as Python's shortest decimal."""
    lines = (
        " ".join([str(point.step), *(f"{name}={value!r}" for name, value in sorted(point.scalars.items()))])
        for point in points
    )
    return sha256("\n".join(lines).encode()).hexdigest()
