"""A real Redis server on a free loopback port, one per test session; `default` is off, as the product runs it.

Import `redis_server` into a conftest to use it. The server is ended by its process id and keeps nothing on disk.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

START_DEADLINE_SECONDS = 20.0
ADMIN_USER = "admin"


class RedisServer:
    """One redis-server process; can be stopped, frozen and started again on the same port. A restart forgets all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.host, self.port = "127.0.0.1", _free_port()
        self.admin_password = secrets.token_hex(16)
        (folder / "redis.conf").write_text(
            f"bind {self.host}\nport {self.port}\nsave ''\nappendonly no\ndir {folder}\n"
            f"user default off\nuser {ADMIN_USER} on >{self.admin_password} ~* &* +@all\n"
        )

    @property
    def url(self) -> str:
        """The administrator's URL."""
        return self.url_of(ADMIN_USER, self.admin_password)

    def url_of(self, user: str, password: str) -> str:
        """A user's URL."""
        return f"redis://{user}:{password}@{self.host}:{self.port}/0"

    def client(self, user: str = ADMIN_USER, password: str | None = None) -> Redis:
        """A client that retries nothing; the administrator's unless told otherwise."""
        return Redis(
            host=self.host,
            port=self.port,
            username=user,
            password=password or self.admin_password,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        )

    def start(self) -> None:
        """Start the process and return when it answers."""
        with (self._folder / "server.log").open("ab") as log:
            command = [_binary(), str(self._folder / "redis.conf")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_DEADLINE_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self._folder / "server.log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"redis-server did not start: {tail}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill the process; its data are gone."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """A restart that loses every key and every user but the administrator."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let commands hang: connections are accepted by the kernel and never answered."""
        os.kill(self._pid(), signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        os.kill(self._pid(), signal.SIGCONT)

    def _pid(self) -> int:
        if self._process is None:
            raise RuntimeError("redis-server is not running")
        return self._process.pid

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())  # pyright: ignore[reportUnknownMemberType] untyped in redis-py
        except (RedisError, OSError):
            return False


def _binary() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("the `redis-server` program is missing: install Debian's package of that name")
    return found


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The session's Redis. A test that stops or freezes it starts or thaws it again."""
    with tempfile.TemporaryDirectory(prefix="trimtab-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
