"""How background threads of the ranks speak to each other: through a store that is polled, never by a collective."""

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from trimtab_trainer.errors import PeerLost

POLL_SECONDS = 0.05


class CoordinationStore(Protocol):
    """The part of `torch.distributed.Store` that is used."""

    def set(self, key: str, value: str, /) -> None:
        """Publish a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """The value of a key that is there."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""
        ...

    def delete_key(self, key: str, /) -> bool:
        """Forget a key."""
        ...


class Board:
    """Announcements of the ranks of one world."""

    def __init__(self, store: CoordinationStore, stopped: threading.Event) -> None:
        self._store = store
        self._stopped = stopped

    def announce(self, key: str, value: bytes) -> None:
        """Publish; raises PeerLost when the store's host is gone."""
        try:
            self._store.set(key, value.decode())
        except RuntimeError as error:
            raise PeerLost(f"announcing {key} failed: {error}") from error

    def wait(self, keys: Sequence[str], deadline: float) -> list[bytes]:
        """The values of all keys, when they are all there; raises PeerLost at the deadline or when stopped."""
        try:
            while not self._store.check(list(keys)):
                if time.monotonic() > deadline or self._stopped.wait(POLL_SECONDS):
                    raise PeerLost(f"no announcement of all of {', '.join(keys)} in time")
            return [self._store.get(key) for key in keys]
        except RuntimeError as error:
            raise PeerLost(f"waiting for {', '.join(keys)} failed: {error}") from error

    def forget(self, keys: Sequence[str]) -> None:
        """Drop announcements that everybody has read."""
        try:
            for key in keys:
                self._store.delete_key(key)
        except RuntimeError as error:
            raise PeerLost(f"forgetting {', '.join(keys)} failed: {error}") from error
