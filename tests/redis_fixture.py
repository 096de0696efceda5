"""A real Redis server on a free loopback port, one per test session; `default` is off, as the product runs it.

Import `redis_server` into a conftest to use it. The server is ended by its process id and keeps nothing on disk.
"""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from server_process import LOOPBACK, ServerProcess, free_ports

ADMIN_USER = "admin"


class RedisServer(ServerProcess):
    """One redis-server process; can be stopped, frozen and started again on the same port. A restart forgets all."""

    name, start_seconds, poll_seconds = "redis-server", 20.0, 0.02

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.host, (self.port,) = LOOPBACK, free_ports(1)
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

    def restart(self) -> None:
        """A restart that loses every key and every user but the administrator."""
        self.stop()
        self.start()

    def command(self) -> tuple[str, ...]:
        """See `ServerProcess.command`."""
        return (_binary(), str(self._folder / "redis.conf"))

    def answers(self) -> bool:
        """See `ServerProcess.answers`."""
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
