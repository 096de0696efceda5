"""The end of tasks: asked again until they have ended."""

import asyncio
from typing import Any

AGAIN_SECONDS = 1.0
"""How long a task may clean up before it is cancelled again."""


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all have ended, however they end.

    Libraries lose a cancellation now and then: `asyncio.wait_for` before Python 3.12 when what it waits for comes in
    the same moment, a race of connections to several addresses when it ends the losers. A loop without end that
    awaits them would then never end, so it is cancelled again.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
