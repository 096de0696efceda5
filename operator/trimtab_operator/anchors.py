"""Keeps one run's JournalAnchor at the head of its journal: what the bucket's owner cannot rewrite unseen.

An anchor follows from the journal like a status does, so it has neither intent nor result. Nothing waits for it but the
word that an incident or the run is over.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import structlog
from trimtab_contract.anchors import Anchor, anchor_name
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.ports import Cluster, Kind, KubernetesObject
from trimtab_operator.errors import (
    ClusterUnavailable,
    Conflict,
    InvalidResource,
    JournalBroken,
    NotFound,
    OperatorError,
)
from trimtab_operator.journal import Voucher
from trimtab_operator.resources import API_VERSION, anchor_spec, parse_journal_anchor
from trimtab_operator.run_state import RunState
from trimtab_operator.signatures import AnchorSigner
from trimtab_operator.workload import JOB_LABEL

ANCHOR_SECONDS = 20.0
"""No record is longer than this the journal's last one without its anchor being written, where it can be."""
RETRY_SECONDS = 10.0
WRITE_SECONDS = 3.0
"""An API server that needs longer for an anchor must not keep the run's reconciler from listening."""

log = structlog.stdlib.get_logger(__name__)


class AnchorKeeper:
    """One run's anchor. `problem` says why the head could not be anchored at the last try; empty when it was."""

    def __init__(
        self,
        cluster: Cluster,
        run: RunId,
        signer: AnchorSigner | None,
        timeout: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
    ) -> None:
        self.problem = ""
        self.lost = False
        """The namespace is gone, and so is every anchor in it."""
        self._cluster = cluster
        self._run = run
        self._signer = signer
        self._timeout = timeout
        self._anchored = (0, False)
        self._behind_since: float | None = None
        self._tried = float("-inf")

    async def vouchers(self) -> tuple[Voucher, ...]:
        """What is known of the journal outside its bucket: by the anchor, and by the TrainingJob's status.

        Raises as `voucher`.
        """
        anchored, told = await self.voucher(), await self._told()
        return tuple(voucher for voucher in (anchored, told) if voucher is not None)

    async def _told(self) -> Voucher | None:
        """The newest record that the TrainingJob's status knows; None when the job is gone or says nothing."""
        try:
            body = await self._cluster.training_job(self._run.namespace, self._run.name)
        except NotFound:
            return None
        status: KubernetesObject = body.get("status") or {}
        known: KubernetesObject = status.get("journal") or {}
        if body["metadata"]["uid"] != self._run.uid or not known:
            return None
        return Voucher(int(known["seq"]), str(known["hash"]), "the TrainingJob's status")

    async def voucher(self) -> Voucher | None:
        """What the anchor knows of the journal; None before the first one.

        Raises JournalBroken for an anchor that is not as an operator left it, whichever of the two was altered.
        """
        stored = await self._cluster.journal_anchor(self._run.namespace, anchor_name(self._run))
        if stored is None:
            return None
        anchor = self._parsed(stored)
        if self._signer is not None and anchor.signature is None:
            log.info("the anchor is not signed yet", run=str(self._run), seq=anchor.seq)
        elif self._signer is not None and anchor.signature and anchor.signature.key_id != self._signer.key_id:
            log.info("the anchor is signed by another key", run=str(self._run), key=anchor.signature.key_id)
        elif self._signer is not None and not self._signer.signed(anchor):
            raise self._broken(anchor, "its signature is not by the key that it names, which is this operator's")
        return Voucher(anchor.seq, anchor.hash, f"the JournalAnchor {anchor_name(self._run)}", anchor=True)

    async def keep(self, now: float, state: RunState) -> None:
        """Write the anchor if it is due; `now` is monotonic. Raises JournalBroken as `write`."""
        if state.seq <= self._anchored[0]:
            self._behind_since = None
            return
        if self._behind_since is None:
            self._behind_since = now
        overdue = now - self._behind_since >= ANCHOR_SECONDS
        if (overdue or state.ended) and now - self._tried >= RETRY_SECONDS:
            self._tried = now
            await self.write(state)

    async def write(self, state: RunState, *, ended: bool = False) -> bool:
        """Write the journal's head, and say whether the anchor has it now.

        Raises JournalBroken where the anchor knows another record under the same number.
        """
        if state.seq == 0 or (state.seq, ended) == self._anchored:
            return True
        anchor = Anchor(run=str(self._run), seq=state.seq, hash=state.head, ended=ended)
        try:
            async with self._timeout(WRITE_SECONDS):
                await self._store(self._signer.sign(anchor) if self._signer else anchor)
        except JournalBroken:
            raise
        except TimeoutError:
            self._failed(ClusterUnavailable(f"the API server did not answer within {WRITE_SECONDS:.0f} s"), state)
        except NotFound as error:
            self.lost = True
            self._failed(error, state)
        except OperatorError as error:
            self._failed(error, state)
        else:
            self.problem, self.lost, self._behind_since = "", False, None
            self._anchored = state.seq, ended
        return not self.problem

    def _failed(self, error: OperatorError, state: RunState) -> None:
        self.problem = f"record {state.seq} of the journal is not anchored outside its bucket: {error}"
        log.warning("anchor not written", run=str(self._run), seq=state.seq, error=str(error))

    async def _store(self, anchor: Anchor) -> None:
        name, spec = anchor_name(self._run), anchor_spec(anchor, self._run)
        stored = await self._cluster.journal_anchor(self._run.namespace, name)
        if stored is None:
            given = {key: one for key, one in spec.items() if one is not None}
            if not (await self._cluster.create(self._object(name, given))).fresh:
                raise Conflict("another operator made it a moment ago")
            return
        known = self._parsed(stored)
        if known.seq > anchor.seq:
            message = f"it knows record {known.seq} already, so another operator leads or somebody else wrote it"
            raise InvalidResource(message)
        if known.seq == anchor.seq and known.hash != anchor.hash:
            raise self._broken(known, "it knows another hash of that record")
        version = str(stored["metadata"]["resourceVersion"])
        await self._cluster.patch_spec(Kind.JOURNAL_ANCHOR, self._run.namespace, name, spec, version)

    def _object(self, name: str, spec: dict[str, object]) -> KubernetesObject:
        """Without an owner: it outlives the TrainingJob, as the journal does."""
        labels = {JOB_LABEL: self._run.name}
        metadata = {"name": name, "namespace": self._run.namespace, "labels": labels}
        return {"apiVersion": API_VERSION, "kind": Kind.JOURNAL_ANCHOR.value, "metadata": metadata, "spec": spec}

    def _parsed(self, stored: KubernetesObject) -> Anchor:
        try:
            _, anchor = parse_journal_anchor(stored)
        except InvalidResource as error:
            message = f"{error}; nothing is done for this run until it is as an operator left it"
            raise JournalBroken(message) from None
        return anchor

    def _broken(self, anchor: Anchor, why: str) -> JournalBroken:
        return JournalBroken(
            f"the journal and its JournalAnchor {anchor_name(self._run)} disagree at record {anchor.seq}: {why}; "
            f"nothing is done for this run until they agree: run `trimtab audit verify {self._run}`"
        )
