"""Judge labelled public logs by a shipped policy and write docs/judgement.md.

`python -m benchmarks.judgement --logs DIRECTORY` (or TRIMTAB_TRAINING_LOGS): the directory has the logs, in any format
that `trimtab policy backtest` reads, and `index.json`, a list of objects with `name` (a file's name up to its first
dot), `kind`, and where they exist `spikes` (steps), `note`, `source`, `path`, `commit`, `licence`. Nothing in the
policies knows the logs.

With `--held-out` the directory has the logs of benchmarks/held_out_logs.json, which nobody tuned anything on, and
docs/judgement-held-out.md is written, which says where they come from. A file that is not the one that was labelled is
refused.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trimtab_cli.errors import CliError
from trimtab_cli.log_files import open_log
from trimtab_cli.policy_loading import load_policies
from trimtab_policies.backtest import Backtest
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy

from benchmarks.figures import ROOT
from benchmarks.held_out import INDEX, held_out_points
from benchmarks.judgement_table import HELD_OUT, KNOWN, RISEN, Judgement, Rise, Stretch, document, file_of

DEFAULT_POLICY = ROOT / "policies" / "library" / "default.yaml"
PAGE = ROOT / "docs" / "judgement.md"
HELD_OUT_PAGE = ROOT / "docs" / "judgement-held-out.md"


def main() -> int:
    """Judge every labelled log; the number of those that could not be."""
    options = _options()
    try:
        policies = load_policies([options.policy])
        judgements = _judgements(policies, options)
    except (CliError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    page: Path = options.page or (HELD_OUT_PAGE if options.held_out else PAGE)
    hashes = [policy.hash for policy in policies]
    page.write_text(document(judgements, options.policy.stem, hashes, HELD_OUT if options.held_out else KNOWN))
    print(f"written: {page}")
    return 0


def _judgements(policies: tuple[AcceptedPolicy, ...], options: argparse.Namespace) -> list[Judgement]:
    folder: Path = options.logs
    labels: list[dict[str, Any]] = json.loads((options.held_out or folder / "index.json").read_text())
    if options.held_out:
        return [_judge(policies, held_out_points(folder, label), label) for label in labels]
    return [_judge(policies, open_log(file_of(folder, label["name"])), label) for label in labels]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = os.environ.get("TRIMTAB_TRAINING_LOGS")
    parser.add_argument("--logs", type=Path, default=given, required=given is None, help="the labelled logs")
    parser.add_argument("--policy", type=Path, default=DEFAULT_POLICY, help="the policy; default: the shipped one")
    parser.add_argument(
        "--held-out", type=Path, nargs="?", const=INDEX, metavar="LABELS", help="judge the logs that nobody tuned on"
    )
    parser.add_argument("--page", type=Path, help="where to write; default: a page of docs/")
    return parser.parse_args()


def _judge(policies: tuple[AcceptedPolicy, ...], points: Iterable[LogPoint], label: dict[str, Any]) -> Judgement:
    backtest = Backtest(policies)
    marks = _Marks(label.get("damage", ()))
    for point in points:
        judged = backtest.take(point)
        if judged is not None:
            marks.take(point, judged.entry.run)
    return Judgement(label, backtest.report(), tuple(marks.stretches), marks.rise(), tuple(marks.seen))


class _Marks:
    """What the losses themselves say: where they are not finite, and where they rise for good.

    `damage` are the steps at which a person sees it; `seen` are the records.
    """

    def __init__(self, damage: Sequence[int]) -> None:
        self._damage = damage
        self.seen: list[Stretch] = []
        self.stretches: list[Stretch] = []
        self._losses: list[tuple[int, float]] = []

    def take(self, point: LogPoint, run: int) -> None:
        loss = point.scalars.get("loss", math.nan)
        self._losses.append((point.step, loss))
        if point.step in self._damage:
            self.seen.append(Stretch(run, point.step, len(self._losses), len(self._losses)))
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
