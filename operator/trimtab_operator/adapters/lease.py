"""The leader's Lease: who may act, for how long, and under which epoch.

A holder trusts only its own clock: it may act until a margin before the Lease would run out, counted from before it
sent its last successful renewal. A standby trusts only its own clock too: it takes over when it has watched the Lease
unchanged for the whole duration. So no clocks are compared between machines (the scheme of client-go's leaderelection).
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from trimtab_operator.adapters.ports import KubernetesObject
from trimtab_operator.errors import Conflict, Fenced, TemporaryError

DURATION_SECONDS = 15
MARGIN = 4 / 15
"""The part of the duration before its end in which a holder that could not renew does nothing any more."""
RENEW = 1 / 5
RETRY = 2 / 15
"""Parts of the duration between two renewals and between two looks of a standby: a short Lease is renewed often."""

log = structlog.stdlib.get_logger(__name__)


class LeaseStore(Protocol):
    """Where the Lease is kept."""

    async def read_lease(self, namespace: str, name: str) -> KubernetesObject | None:
        """The coordination.k8s.io/v1 Lease, None when it does not exist."""
        ...

    async def write_lease(self, body: KubernetesObject) -> KubernetesObject:
        """Create the Lease, or replace the one of the body's resourceVersion; raises Conflict."""
        ...


def elapsed_seconds() -> float:
    """Monotonic seconds that also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderLease:
    """One contender. `acquire` waits for the Lease, `keep` renews it until it is lost, `valid` says whether to act."""

    def __init__(
        self,
        store: LeaseStore,
        namespace: str,
        name: str,
        holder: str,
        *,
        duration_seconds: int = DURATION_SECONDS,
        pause_seconds: float | None = None,
        clock: Callable[[], float] = elapsed_seconds,
    ) -> None:
        """`holder` is the pod's name; a restarted container of the same pod is another contender.

        `pause_seconds` replaces the pauses between two renewals and two looks, which follow from the duration.
        """
        self.identity = f"{holder}_{uuid.uuid4().hex}"
        self._store, self._namespace, self._name = store, namespace, name
        self._duration, self._margin = duration_seconds, duration_seconds * MARGIN
        self.renew_every = duration_seconds * RENEW if pause_seconds is None else pause_seconds
        self._retry_every = duration_seconds * RETRY if pause_seconds is None else pause_seconds
        self._clock = clock
        self._held: KubernetesObject | None = None
        self._valid_until = 0.0
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """See `Lease.epoch`."""
        return self._epoch

    @property
    def duration_seconds(self) -> float:
        """See `Lease.duration_seconds`."""
        return self._duration

    def valid(self) -> bool:
        """See `Lease.valid`."""
        return self._held is not None and self._clock() < self._valid_until

    async def acquire(self) -> int:
        """Wait until the Lease is ours and return the epoch; an API server that is away only makes it longer."""
        watched, since = "", 0.0
        while True:
            try:
                stored = await self._store.read_lease(self._namespace, self._name)
                version = stored["metadata"]["resourceVersion"] if stored is not None else ""
                if version != watched:
                    watched, since = version, self._clock()
                if stored is None or self._is_free(stored, self._clock() - since):
                    await self._take(stored)
                    return self._epoch
            except Conflict:
                log.info("another contender was quicker to take the lease")
            except TemporaryError as error:
                log.warning("the lease cannot be acquired yet", error=str(error))
            await asyncio.sleep(self._retry_every)

    async def keep(self) -> None:
        """Renew for as long as the Lease is ours; raises Fenced when another has taken it."""
        while True:
            await asyncio.sleep(self.renew_every)
            try:
                await self.renew()
            except TemporaryError as error:
                log.warning("the lease cannot be renewed now", error=str(error))

    async def renew(self) -> None:
        """Renew once. Raises Fenced when another holds the Lease or it was deleted; a lapse alone loses nothing.

        A renewal that succeeds after a lapse proves that nobody took the Lease in between, so the epoch stays.
        """
        if self._held is None:
            raise Fenced("this process does not hold the Lease")
        try:
            await self._write(self._held, self._epoch)
        except Conflict:
            # An earlier renewal whose reply was lost, or somebody edited the object, or somebody took it.
            current = await self._store.read_lease(self._namespace, self._name)
            if current is None or _holder(current) != self.identity or _epoch(current) != self._epoch:
                self._held = None
                taker = _holder(current) if current is not None else ""
                message = f"the Lease is held by {taker}" if taker else "the Lease was released or deleted by somebody"
                raise Fenced(message) from None
            await self._write(current, self._epoch)

    async def release(self) -> None:
        """Stop acting, then let a standby take over at once; when that fails the Lease runs out by itself.

        End `keep` first: a renewal under way would take the Lease back.
        """
        held, self._held = self._held, None
        if held is None:
            return
        spec = {field: value for field, value in held["spec"].items() if field != "holderIdentity"}
        try:
            await self._store.write_lease({**held, "spec": {**spec, "renewTime": _micro_time()}})
        except TemporaryError as error:
            log.warning("the lease was not released and will run out", error=str(error))

    def _is_free(self, stored: KubernetesObject, unchanged_seconds: float) -> bool:
        holder = _holder(stored)
        # Our own identity: a write of ours arrived and its reply did not.
        return holder in {"", self.identity} or unchanged_seconds >= _spec(stored).get(
            "leaseDurationSeconds", self._duration
        )

    async def _take(self, stored: KubernetesObject | None) -> None:
        epoch = _epoch(stored) + 1 if stored is not None else 1
        base = stored or {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": {},
        }
        await self._write({**base, "spec": {**_spec(base), "acquireTime": _micro_time()}}, epoch)
        log.info("the lease is ours", epoch=epoch)

    async def _write(self, base: KubernetesObject, epoch: int) -> None:
        spec = {
            **_spec(base),
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._duration,
            "leaseTransitions": epoch - 1,
            "renewTime": _micro_time(),
        }
        # Counted from before the request: the others count from after it arrived.
        sent = self._clock()
        self._held = await self._store.write_lease({**base, "spec": spec})
        self._epoch = epoch
        self._valid_until = sent + self._duration - self._margin


def _spec(lease: KubernetesObject) -> Mapping[str, Any]:
    return lease.get("spec") or {}


def _holder(lease: KubernetesObject) -> str:
    return _spec(lease).get("holderIdentity") or ""


def _epoch(lease: KubernetesObject) -> int:
    """The epoch of the latest acquisition; the Lease counts the transitions before it."""
    return int(_spec(lease).get("leaseTransitions") or 0) + 1


def _micro_time() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
