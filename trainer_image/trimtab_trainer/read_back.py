"""Reading a checkpoint back: objects whole and hashed, at a bounded rate; by the ranks of a world, or by a Job."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from trimtab_contract import keys
from trimtab_contract.checkpoints import StoredObject, decode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import MalformedManifest, NewerManifest

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.errors import ObjectMissing
from trimtab_trainer.retries import retried

PATIENCE_SECONDS = 600.0
"""How long a store that does not answer is asked again, for each checkpoint."""
BYTES_PER_SECOND = 256.0 * 1024 * 1024
"""What one process reads at most, so that training and saving have the store to themselves."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The object that is not what was saved, and what is wrong with it."""

    object_name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads checkpoints of one bucket back. `stopped` ends waiting and pacing, not a request under way."""

    store: ObjectStore
    stopped: threading.Event
    bytes_per_second: float = BYTES_PER_SECOND

    def damage(
        self,
        reference: CheckpointReference,
        deadline: float,
        chosen: Callable[[StoredObject], bool] = lambda _stored: True,
    ) -> Damage | None:
        """Hash the manifest and the chosen objects that it names; None where all are what was saved.

        Raises StoreError when the store does not answer by `deadline` (a time of `time.monotonic`), and NewerManifest.
        """
        name, prefix = keys.MANIFEST_NAME, reference.key.removesuffix(keys.MANIFEST_NAME)
        try:
            for name, stored in self._objects(reference, deadline).items():
                if not chosen(stored):
                    continue
                problem = retried(lambda: self._problem(f"{prefix}{name}", stored), deadline, self.stopped)  # noqa: B023 called at once
                if problem:
                    return Damage(name, problem)
        except NewerManifest:
            raise
        except (MalformedManifest, ObjectMissing) as error:
            return Damage(name, str(error))
        return None

    def _objects(self, reference: CheckpointReference, deadline: float) -> dict[str, StoredObject]:
        """What the manifest names; raises MalformedManifest when it is not itself what was saved."""
        body = retried(lambda: self.store.get(reference.key), deadline, self.stopped)
        if sha256_hex(body) != reference.sha256:
            raise MalformedManifest("the manifest read back does not have the SHA-256 it was saved with")
        return decode_manifest(body).objects

    def _problem(self, key: str, stored: StoredObject) -> str:
        digest, size = hashlib.sha256(), 0
        for chunk in self.store.chunks(key):
            digest.update(chunk)
            size += len(chunk)
            self.stopped.wait(len(chunk) / self.bytes_per_second)
        if size != stored.size:
            return f"{size} bytes read back, {stored.size} saved"
        return "" if digest.hexdigest() == stored.sha256 else "the bytes read back have another SHA-256"
