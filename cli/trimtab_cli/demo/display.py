"""The demo's live display: a bar on a terminal, sparse lines elsewhere."""

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text
from trimtab_operator.story import printable

from trimtab_cli.cluster_choice import KubernetesObject
from trimtab_cli.job_view import job_summary, status_line
from trimtab_cli.output import Output

STEPS_BETWEEN_LINES = 50


class Display:
    """Shows one job: what it says of itself, and each Event as it comes."""

    def __init__(self, output: Output, progress: Progress | None, task: TaskID | None) -> None:
        """Made by `display`."""
        self._output = output
        self._progress = progress
        self._task = task
        self._begun = time.monotonic()
        self._phase = ""
        self._next_step = 0

    def event(self, line: str) -> None:
        """Something happened."""
        moment = f"{time.monotonic() - self._begun:6.1f} s  "
        if self._progress is not None:
            self._progress.console.print(Text(moment + printable(line)), soft_wrap=True)
        else:
            self._output.say(moment + line, style="")

    def job(self, job: KubernetesObject) -> None:
        """The job's status changed."""
        summary = job_summary(job)
        phase, step = str(summary["phase"]), int(summary["step"] or 0)
        if self._progress is not None and self._task is not None:
            loss = f"loss {summary['loss']}" if summary["loss"] else ""
            self._progress.update(
                self._task, completed=step, total=summary["steps"], phase=phase, loss=loss, step=f"step {step}"
            )
        elif phase != self._phase or step >= self._next_step:
            self._next_step = step - step % STEPS_BETWEEN_LINES + STEPS_BETWEEN_LINES
            self._output.say(f"{time.monotonic() - self._begun:6.1f} s  {status_line(job)}")
        self._phase = phase


@contextmanager
def display(output: Output) -> Generator[Display]:
    """A display for the time of one run."""
    if not output.messages.is_terminal:
        yield Display(output, None, None)
        return
    columns = (
        TextColumn("{task.fields[phase]:<18}"),
        BarColumn(),
        TextColumn("{task.fields[step]}  {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=output.messages, transient=True) as progress:
        task = progress.add_task("", total=None, phase="Pending", step="", loss="")
        yield Display(output, progress, task)
