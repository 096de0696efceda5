"""Tasks end when they are told to, although a library below them lost what it was told."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from trimtab_operator.tasks import end_tasks


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab_operator.tasks.AGAIN_SECONDS", 0.0)


async def loses(cancellations: int) -> None:
    """Goes on for ever, and takes no notice of the first cancellations."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if cancellations == 0:
                raise
            cancellations -= 1


async def fails() -> None:
    raise RuntimeError("a defect")


async def started(*coroutines: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(each) for each in coroutines]
    await asyncio.sleep(0)
    return tasks


async def test_a_task_that_loses_cancellations_is_cancelled_until_it_ends() -> None:
    tasks = await started(loses(0), loses(1), loses(5))
    await end_tasks(*tasks)
    assert [task.cancelled() for task in tasks] == [True, True, True]


async def test_tasks_that_have_ended_or_fail_keep_no_other_from_ending() -> None:
    tasks = await started(fails(), loses(1))
    await end_tasks(*tasks)
    assert [task.done() for task in tasks] == [True, True]
    assert isinstance(tasks[0].exception(), RuntimeError)


async def test_who_ends_tasks_can_be_cancelled_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = await started(loses(1))
    with monkeypatch.context() as patient:
        patient.setattr("trimtab_operator.tasks.AGAIN_SECONDS", None)
        (ending,) = await started(end_tasks(*tasks))
        ending.cancel()
        await asyncio.wait({ending})
    assert (ending.cancelled(), tasks[0].done()) == (True, False)
    await end_tasks(*tasks)


async def test_nothing_to_end_is_no_error() -> None:
    await end_tasks()
