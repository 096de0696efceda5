"""Reads what a new run is to continue: the other run's journal, where it is in the audit bucket, and its checkpoint.

The job's own credentials must be able to read that checkpoint, and are tried first: what a journal says of a run is
told only to those who may read its data.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trimtab_contract.checkpoints import CheckpointManifest, decode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import MalformedManifest
from trimtab_contract.journal import Evidence
from trimtab_contract.keys import MANIFEST_NAME, checkpoints_of_step, checkpoints_prefix, journal_record

from trimtab_operator.adapters.ports import CheckpointStore, Cluster, JournalStore
from trimtab_operator.anchors import AnchorKeeper
from trimtab_operator.claims import look_at
from trimtab_operator.errors import JournalBroken, NotFound, SourceRefused, StoreRefused
from trimtab_operator.journal import read_run
from trimtab_operator.run_state import CheckpointState, RunState, Source
from trimtab_operator.signatures import AnchorSigner
from trimtab_operator.sources import Wanted, check_config, continued_skip, journaled_checkpoint, named_reference


@dataclass(frozen=True, slots=True)
class FoundSource:
    """What a run continues, and the journal record up to which the other run's journal was read, if there is one."""

    source: Source
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class SourceReader:
    """`watches` tells the namespaces whose objects may be read; `signer` checks the anchors that are signed."""

    cluster: Cluster
    journal: JournalStore
    watches: Callable[[str], bool] = lambda _namespace: True
    signer: AnchorSigner | None = None

    async def find(self, wanted: Wanted, store: CheckpointStore) -> FoundSource:
        """The checkpoint that `spec.resumeFrom` names, sound as far as can be told without reading it whole.

        Raises SourceRefused with a sentence that names the field, and temporary errors.
        """
        try:
            manifests = await self._manifests(wanted, store)
            state = await self._state(wanted)
            if state is not None:
                known = journaled_checkpoint(wanted, state)
                reference, attempt, trust, why = known.reference, known.attempt, known.state, known.why
            else:
                reference, attempt = named_reference(wanted, store.root, await self._hashes(store, manifests))
                trust, why = CheckpointState.COMMITTED, "spec.resumeFrom names its hash"
            manifest = await self._checked(wanted, store, reference, attempt)
            check_config(wanted, manifest)
        except StoreRefused as error:
            place = checkpoints_prefix(store.root, wanted.run)
            message = (
                f"spec.resumeFrom.run: the credentials of checkpoint.credentialsSecretRef may not read what lies under "
                f"{place} in the bucket of checkpoint.uri: allow them to list and to get it ({error})"
            )
            raise SourceRefused(message) from error
        source = Source(
            run=str(wanted.run),
            checkpoint=reference,
            state=trust,
            why=why,
            skip=continued_skip(manifest, state),
            lr=manifest.lr,
        )
        return FoundSource(source, _evidence(wanted, state))

    async def _manifests(self, wanted: Wanted, store: CheckpointStore) -> list[str]:
        """The keys of the manifests of that step."""
        listed = await store.sizes(checkpoints_of_step(store.root, wanted.run, wanted.step))
        return [key for key in listed if key.endswith(f"/{MANIFEST_NAME}")]

    async def _hashes(self, store: CheckpointStore, keys: list[str]) -> list[tuple[str, str]]:
        return [(key, sha256_hex(await store.get(key))) for key in keys]

    async def _state(self, wanted: Wanted) -> RunState | None:
        """The fold of the other run's journal; None where a person's hash must do without it."""
        try:
            vouchers = ()
            if self.watches(wanted.run.namespace):
                vouchers = await AnchorKeeper(self.cluster, wanted.run, self.signer).vouchers()
            state = await read_run(self.journal, wanted.run, vouchers)
        except JournalBroken as error:
            if wanted.sha256 is not None:
                return None
            message = (
                f"spec.resumeFrom.manifestSHA256: required, for the journal of run {wanted.run} vouches for nothing: "
                f"{error}"
            )
            raise SourceRefused(message) from error
        if state.seq > 0:
            return state
        if wanted.sha256 is None:
            message = (
                f"spec.resumeFrom.manifestSHA256: required, for the audit bucket has no journal of run {wanted.run}: "
                "give the SHA-256 of the checkpoint's manifest.json, as the journal of that run has it"
            )
            raise SourceRefused(message)
        return None

    async def _checked(
        self, wanted: Wanted, store: CheckpointStore, reference: CheckpointReference, attempt: int
    ) -> CheckpointManifest:
        claim = await look_at(store, wanted.run, reference, attempt)
        place = f"the checkpoint of step {wanted.step} of run {wanted.run} cannot be continued"
        if not claim.usable:
            raise SourceRefused(f"spec.resumeFrom: {place}: {claim.why}")
        try:
            return decode_manifest(await store.get(reference.key))
        except (NotFound, MalformedManifest) as error:
            raise SourceRefused(f"spec.resumeFrom: {place}: {error}") from error


def _evidence(wanted: Wanted, state: RunState | None) -> tuple[Evidence, ...]:
    if state is None:
        return ()
    return (Evidence(key=journal_record(wanted.run, state.seq), sha256=state.head),)
