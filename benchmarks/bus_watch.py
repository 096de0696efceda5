"""What Redis did, and when by its own clock: MONITOR sees every command in the order in which Redis served it."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from trimtab_contract.directives import Directive, decode
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId

_RECORD = re.compile(r"^XADD tt:\{(?P<run>[^}]+)\}:a(?P<attempt>\d+):metrics .*? (?P<step>\d+)-0 ")
_LOOK = re.compile(r"^GET tt:\{(?P<run>[^}]+)\}:directive$")
_WRITTEN = re.compile(r"^SET tt:\{(?P<run>[^}]+)\}:directive (?P<body>\{.*\}) EX \d+$")


@dataclass(frozen=True, slots=True)
class Record:
    """A metric record arrived in its stream."""

    time: float
    run: str
    attempt: int
    step: int
    client: str


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody read the directive."""

    time: float
    run: str
    client: str


@dataclass(frozen=True, slots=True)
class Written:
    """The operator's script stored a directive."""

    time: float
    run: str
    directive: Directive


Happening = Record | Look | Written


class BusWatch:
    """Collects what happens on the bus while it is open; `on_written` is called at once, in its thread."""

    def __init__(self, url: str, on_written: Callable[[Written], None] | None = None) -> None:
        self.happenings: list[Happening] = []
        self._on_written = on_written
        # Nothing may happen for a while; the default would take that for a fault.
        self._redis: Any = Redis.from_url(url, socket_timeout=None)  # pyright: ignore[reportUnknownMemberType] untyped
        self._monitor: Any = self._redis.monitor()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="bus-watch", daemon=True)

    def __enter__(self) -> "BusWatch":
        self._monitor.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        # The listener returns with the next command; this is one.
        self._redis.ping()
        self._thread.join(5)
        self._monitor.__exit__(None, None, None)
        self._redis.close()

    def of(self, run: RunId) -> tuple[Happening, ...]:
        """One run's happenings in order."""
        return tuple(one for one in self.happenings if one.run == str(run))

    def _listen(self) -> None:
        while not self._closing:
            try:
                seen = self._monitor.next_command()
            except (RedisError, OSError):
                return
            happening = _happening(seen["time"], seen["command"], f"{seen['client_address']}:{seen['client_port']}")
            if happening is None:
                continue
            self.happenings.append(happening)
            if isinstance(happening, Written) and self._on_written is not None:
                self._on_written(happening)


def _happening(time: float, command: str, client: str) -> Happening | None:
    if found := _RECORD.match(command):
        return Record(time, found["run"], int(found["attempt"]), int(found["step"]), client)
    if found := _LOOK.match(command):
        return Look(time, found["run"], client)
    if found := _WRITTEN.match(command):
        try:
            return Written(time, found["run"], decode(Directive, found["body"]))
        except ContractError:
            return None
    return None
