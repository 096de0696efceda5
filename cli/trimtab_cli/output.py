"""How results reach people and programs: text through Rich, or JSON with `-o json`."""

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from trimtab_operator.story import printable

from trimtab_cli.json_values import json_value

_WIDTH_WITHOUT_TERMINAL = 240
_LONGEST_LINE = 4000

_Item = TypeVar("_Item")


class Format(StrEnum):
    """What `-o` takes."""

    TEXT = "text"
    JSON = "json"


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL, highlight=False)


class Output:
    """Results on standard output, progress on standard error. Text from elsewhere is never read as markup."""

    def __init__(self, form: Format) -> None:
        self.json = form is Format.JSON
        self._results = _console(stderr=False)
        self._messages = _console(stderr=True)

    def result(self, value: Any, show: Callable[[], None]) -> None:
        """The answer: `value` as JSON, or whatever `show` prints."""
        if self.json:
            print(json.dumps(json_value(value), indent=2, ensure_ascii=False))
        else:
            show()

    def line(self, text: str = "", style: str = "") -> None:
        """One line of the answer."""
        self._results.print(Text(printable(text, _LONGEST_LINE), style=style), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Rows under headings."""
        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._results.print(table)

    def say(self, text: str, style: str = "dim") -> None:
        """What is being done, on standard error."""
        self._messages.print(Text(printable(text, _LONGEST_LINE), style=style), soft_wrap=True)

    @contextmanager
    def busy(self, text: str) -> Generator[None]:
        """A spinner while something takes its time; without a terminal one line."""
        if self._messages.is_terminal:
            with self._messages.status(Text(text)):
                yield
        else:
            self.say(text)
            yield

    def each(self, items: Sequence[_Item], text: str) -> Iterable[_Item]:
        """The items, with a bar that says how far it got."""
        if not self._messages.is_terminal:
            self.say(f"{text} ({len(items)})")
            return items
        return track(items, description=text, console=self._messages, transient=True)

    @property
    def messages(self) -> Console:
        """Standard error, for a display of its own."""
        return self._messages


def counted(count: int, one: str, several: str = "") -> str:
    """`count` of something in words: 1 policy, 2 policies."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
