"""What the kubelet hears: nothing from an event loop that stalls, and ready only from who could lead."""

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from trimtab_operator import health


class Served:
    """The health server in an event loop of its own thread, which can be stalled."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.ready = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        serving = asyncio.run_coroutine_threadsafe(health.serve(self.port, lambda: self.ready), self.loop)
        self._runner = serving.result(timeout=30)

    def get(self, path: str, seconds: float = 30) -> int:
        """The status of one request; raises TimeoutError."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=seconds) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self.loop).result(timeout=30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


def test_a_stalled_event_loop_answers_no_probe_and_one_that_turns_again_does(served: Served) -> None:
    assert served.get("/healthz") == 200
    stalled, release = threading.Event(), threading.Event()

    def stall() -> None:
        stalled.set()
        release.wait()

    served.loop.call_soon_threadsafe(stall)
    stalled.wait()
    try:
        with pytest.raises(TimeoutError):
            served.get("/healthz", seconds=0.5)
    finally:
        release.set()
    assert served.get("/healthz") == 200


def test_a_process_is_alive_before_it_is_ready(served: Served) -> None:
    assert served.get("/readyz") == 503
    assert served.get("/healthz") == 200
    served.ready = True
    assert served.get("/readyz") == 200


def test_metrics_are_in_the_form_prometheus_reads(served: Served) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert b"# HELP" in answer.read()
