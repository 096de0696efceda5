"""Logs on disk judged by policies: what was read, what was not, and what came of it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from trimtab_operator.story import printable
from trimtab_policies.backtest import Backtest, LogReport
from trimtab_policies.backtest.comparison import Difference, compare
from trimtab_policies.log_readers.reading import ReadingSummary
from trimtab_policies.policy import AcceptedPolicy

from trimtab_cli.errors import CliError, UsageError
from trimtab_cli.log_files import open_log
from trimtab_cli.policy_loading import POLICY_SUFFIXES


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of every log. `other` are the policies to compare with, empty where there is no comparison."""

    policies: tuple[AcceptedPolicy, ...]
    other: tuple[AcceptedPolicy, ...] = ()
    format: str | None = None
    mapping: Mapping[str, str] | None = None
    curves: bool = False


@dataclass(frozen=True, slots=True)
class LogResult:
    """One log's result; `problem` says why it says nothing, and then there is no report."""

    path: Path
    reader: str = ""
    reading: ReadingSummary | None = None
    report: LogReport | None = None
    difference: Difference | None = None
    problem: str = ""


def told_apart(files: Sequence[Path], logs: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Positional files -> policies (by their suffix) and logs; raises UsageError where one of them is missing."""
    policies = tuple(file for file in files if file.suffix.lower() in POLICY_SUFFIXES)
    others = (*(file for file in files if file.suffix.lower() not in POLICY_SUFFIXES), *logs)
    if not policies:
        raise UsageError("Name at least one policy: a file that ends with .yaml or .yml.")
    if not others:
        raise UsageError("Name at least one log; one that ends with .yaml or .yml needs --log before it.")
    return policies, others


def judge_file(path: Path, question: Question, console: Console) -> LogResult:
    """Judge one log; a problem with the log is a result, one with the question raises UsageError."""
    try:
        return _judged(path, question, console)
    except UsageError:
        raise
    except CliError as error:
        return LogResult(path, problem=str(error))


def _judged(path: Path, question: Question, console: Console) -> LogResult:
    bar = ReadingBar(path, console)
    backtest = Backtest(question.policies, curves=question.curves)
    other = Backtest(question.other) if question.other else None
    log = open_log(path, format=question.format, mapping=question.mapping, progress=bar.advance)
    with bar.shown:
        for point in log:
            backtest.take(point)
            if other is not None:
                other.take(point)
    report = backtest.report()
    if report.is_blind:
        metrics = ", ".join(sorted({rule.metric for rule in report.rules if rule.metric})) or "time"
        seen = ", ".join(sorted(set(log.unreadable.columns.values())))
        problem = (
            f"{path}: no rule had anything to judge: they look at {metrics}, and the log (read as {log.reader_name}) "
            f"has {seen}; give a column the metric's name with --map METRIC=COLUMN."
        )
        return LogResult(path, log.reader_name, log.unreadable, problem=problem)
    difference = compare(report, other.report()) if other is not None else None
    return LogResult(path, log.reader_name, log.unreadable, report, difference)


class ReadingBar:
    """A bar over a file's bytes on a terminal, and nothing elsewhere."""

    def __init__(self, path: Path, console: Console) -> None:
        self.shown: AbstractContextManager[object] = nullcontext()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                DownloadColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task(escape(printable(path.name, 60)), total=None)
            self.shown = self._progress

    def advance(self, done: int, size: int) -> None:
        """So many bytes of so many have been read."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=size)
