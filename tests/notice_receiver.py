"""A real HTTP server that notices are posted to, which can be slow, refuse, hang or send them elsewhere."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr
from trimtab_operator.adapters.webhook import HttpWebhook

SECRET = "T000-B000-s3cr3t"


@dataclass
class Receiver:
    """A server that answers with each of `answers` in turn, the last one for ever."""

    answers: list[web.Response | None] = field(default_factory=lambda: [web.Response()])
    received: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[Any] = field(default_factory=list[Any])
    port: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        self.received.append(await request.json())
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await self.release.wait()
            return web.Response()
        return web.Response(status=answer.status, headers=answer.headers)

    def webhook(self, timeout_seconds: float = 30.0) -> HttpWebhook:
        return HttpWebhook(SecretStr(f"http://127.0.0.1:{self.port}/services/{SECRET}"), timeout_seconds)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with served("127.0.0.1") as server:
        yield server


@asynccontextmanager
async def served(host: str) -> AsyncGenerator[Receiver]:
    """A receiver on a free port of an address."""
    server = Receiver()
    application = web.Application()
    application.router.add_post("/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.socket()
    listener.bind((host, 0))
    server.port = listener.getsockname()[1]
    await web.SockSite(runner, listener).start()
    try:
        yield server
    finally:
        server.release.set()
        await runner.cleanup()


@contextmanager
def served_beside(host: str) -> Generator[Receiver]:
    """The same for a test that blocks: the server has a thread and a loop of its own."""
    loop, serving = asyncio.new_event_loop(), served(host)
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
