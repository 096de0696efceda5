"""Redis: Debian's server on the bridge's address, with an append-only file and an administrator of its own."""

from __future__ import annotations

import hashlib

import redis

from trimtab_sandbox.credentials import Credentials
from trimtab_sandbox.packages import require
from trimtab_sandbox.processes import Component
from trimtab_sandbox.settings import BRIDGE_ADDRESS, REDIS_PORT, REDIS_USER, Layout


def render_configuration(layout: Layout) -> str:
    """Redis's configuration. What an operator adds with ACL SETUSER lasts when it also says ACL SAVE."""
    directory = layout.home / "redis"
    return f"""bind {BRIDGE_ADDRESS}
port {REDIS_PORT}
dir {directory}
aclfile {directory / "users.acl"}
protected-mode no
daemonize no
save ""
appendonly yes
appendfsync everysec
"""


def render_users(credentials: Credentials) -> str:
    """The ACL file: nobody without a name, and an administrator whose password is kept as its SHA-256."""
    digest = hashlib.sha256(credentials.redis_password.encode()).hexdigest()
    return f"user default off\nuser {REDIS_USER} on #{digest} ~* &* +@all\n"


def write_configuration(layout: Layout, credentials: Credentials) -> None:
    """Write Redis's files; users that were saved in an earlier run stay."""
    directory = layout.home / "redis"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / "redis.conf").write_text(render_configuration(layout))
    users = directory / "users.acl"
    if not users.exists():
        users.write_text(render_users(credentials))


def redis_server(layout: Layout) -> Component:
    """The Redis process."""
    configuration = str(layout.home / "redis" / "redis.conf")
    return Component("redis", (require("redis-server"), configuration), address=(BRIDGE_ADDRESS, REDIS_PORT))


def url(credentials: Credentials) -> str:
    """The administrator's URL."""
    return f"redis://{REDIS_USER}:{credentials.redis_password}@{BRIDGE_ADDRESS}:{REDIS_PORT}/0"


def answers(credentials: Credentials) -> bool:
    """Whether Redis has read its data and answers the administrator."""
    try:
        with redis.Redis.from_url(url(credentials), socket_timeout=2) as client:  # pyright: ignore[reportUnknownMemberType] -- untyped keywords
            return bool(client.ping())  # pyright: ignore[reportUnknownMemberType] -- untyped keywords
    except redis.RedisError:
        return False
