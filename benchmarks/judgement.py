"""Judge labelled public logs by a shipped policy and write docs/judgement.md.

`python -m benchmarks.judgement --logs DIRECTORY` (or TRIMTAB_TRAINING_LOGS): the directory has the logs, in any format
that `trimtab policy backtest` reads, and `index.json`, a list of objects with `name` (a file's name up to its first
dot), `kind`, and where they exist `spikes` (steps), `note`, `source`, `path`, `commit`, `licence`. Nothing in the
policies knows the logs.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from trimtab_cli.errors import CliError
from trimtab_cli.log_files import open_log
from trimtab_cli.policy_loading import load_policies
from trimtab_policies.backtest import Backtest
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy

from benchmarks.figures import ROOT
from benchmarks.judgement_table import RISEN, Judgement, Rise, Stretch, document

DEFAULT_POLICY = ROOT / "policies" / "library" / "default.yaml"
PAGE = ROOT / "docs" / "judgement.md"


def main() -> int:
    """Judge every labelled log; the number of those that could not be."""
    options = _options()
    try:
        policies = load_policies([options.policy])
        labels: list[dict[str, Any]] = json.loads((options.logs / "index.json").read_text())
        judgements = [_judge(policies, options.logs, label) for label in labels]
    except (CliError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options.page.write_text(document(judgements, options.policy.stem, [policy.hash for policy in policies]))
    print(f"written: {options.page}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = os.environ.get("TRIMTAB_TRAINING_LOGS")
    parser.add_argument("--logs", type=Path, default=given, required=given is None, help="the labelled logs")
    parser.add_argument("--policy", type=Path, default=DEFAULT_POLICY, help="the policy; default: the shipped one")
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write; default: docs/judgement.md")
    return parser.parse_args()


def _judge(policies: tuple[AcceptedPolicy, ...], folder: Path, label: dict[str, Any]) -> Judgement:
    backtest = Backtest(policies)
    marks = _Marks()
    for point in open_log(_file(folder, label["name"])):
        judged = backtest.take(point)
        if judged is not None:
            marks.take(point, judged.entry.run)
    return Judgement(label, backtest.report(), tuple(marks.stretches), marks.rise())


def _file(folder: Path, name: str) -> Path:
    for path in sorted(folder.iterdir()):
        if path.name.partition(".")[0] == name:
            return path
    message = f"{folder} has no log called {name}"
    raise FileNotFoundError(message)


class _Marks:
    """What the losses themselves say: where they are not finite, and where they rise for good."""

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self._losses: list[tuple[int, float]] = []

    def take(self, point: LogPoint, run: int) -> None:
        loss = point.scalars.get("loss", math.nan)
        self._losses.append((point.step, loss))
        if math.isfinite(loss) or "loss" not in point.scalars:
            return
        position = len(self._losses)
        last = self.stretches[-1] if self.stretches else None
        if last and last.last_position == position - 1 and last.run == run:
            self.stretches[-1] = Stretch(run, last.step, last.position, position)
        else:
            self.stretches.append(Stretch(run, point.step, position, position))

    def rise(self) -> Rise | None:
        """From the lowest loss on: the first record from which all lie above it by RISEN."""
        finite = [(loss, index) for index, (_, loss) in enumerate(self._losses) if math.isfinite(loss)]
        lowest, start = min(finite, default=(0.0, 0))
        below = [index for loss, index in finite if index >= start and loss <= lowest * (1 + RISEN)]
        first = max(below, default=start) + 1
        if first >= len(self._losses):
            return None
        return Rise(self._losses[start][0], lowest, self._losses[first][0], first + 1)


if __name__ == "__main__":
    sys.exit(main())
