"""The passwords and access keys of one sandbox: random, made once, kept in one file that only root reads."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True)
class AccessKey:
    """One S3 identity's pair."""

    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"AccessKey(key_id={self.key_id!r})"


@dataclass(frozen=True, repr=False)
class Credentials:
    """All secrets of a sandbox."""

    redis_password: str
    s3_admin: AccessKey
    s3_operator: AccessKey
    s3_training: AccessKey


def _access_key(role: str) -> AccessKey:
    return AccessKey(f"{role}-{secrets.token_hex(6)}", secrets.token_urlsafe(30))


def ensure_credentials(path: Path) -> Credentials:
    """Read the credentials, or make and write them when there are none."""
    if path.exists():
        return read_credentials(path)
    made = Credentials(
        redis_password=secrets.token_urlsafe(30),
        s3_admin=_access_key("admin"),
        s3_operator=_access_key("operator"),
        s3_training=_access_key("training"),
    )
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(made))
    return made


def read_credentials(path: Path) -> Credentials:
    """Read the credentials of a sandbox that was up before."""
    return msgspec.json.decode(path.read_bytes(), type=Credentials)
