"""When a test times out, where every asyncio task stands: the stacks of threads show only that the loop waits.

Import `pytest_timeout_set_timer` into a conftest to use it.
"""

import asyncio
import gc
import inspect
import signal
import traceback
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

import pytest

_STEPS = (("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom"))
"""Where coroutines and the two kinds of generators keep their frame, and what they wait for."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Before pytest-timeout's own signal handler fails the test, while the loop is as it hangs, tell of its tasks."""
    timer_set = yield
    expire = signal.getsignal(signal.SIGALRM)
    if not callable(expire):  # the timer is a thread, which ends the process
        return timer_set

    def tell_and_expire(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        terminal = item.config.get_terminal_writer()
        try:
            for task in _tasks():
                terminal.sep("~", title=f"asyncio task {task.get_name()}")
                terminal.write("".join(task_stack(task)))
        finally:
            expire(number, frame)

    signal.signal(signal.SIGALRM, tell_and_expire)
    return timer_set


def _tasks() -> list[asyncio.Task[Any]]:
    """Every unfinished task of the loop that runs in this thread."""
    try:
        return sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    except RuntimeError:
        return []


def task_stack(task: asyncio.Task[Any]) -> Iterator[str]:
    """The task, and the lines at which its coroutines wait for one another, outermost first."""
    yield f"{task!r}\n"
    yield from traceback.StackSummary.extract((frame, frame.f_lineno) for frame in _frames(task.get_coro())).format()


def _frames(awaited: Any) -> Iterator[FrameType]:
    while awaited is not None:
        for frame, following in _STEPS:
            if hasattr(awaited, frame):
                if getattr(awaited, frame) is not None:
                    yield getattr(awaited, frame)
                awaited = getattr(awaited, following)
                break
        else:
            # The step of an asynchronous generator, as of a fixture, does not tell whose it is.
            awaited = next((each for each in gc.get_referents(awaited) if inspect.isasyncgen(each)), None)
