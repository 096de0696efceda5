"""What the reconciler needs from the outside, as protocols and frozen values.

Every method has a deadline of a few seconds, sends nothing twice, and raises only errors of `trimtab_operator.errors`:
the temporary ones when the other side did not answer, so that the outcome of a write is unknown and repeating the very
same call is always safe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from trimtab_contract.directives import Ack, Directive
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import MetricRecord

KubernetesObject = Mapping[str, Any]
"""A Kubernetes object as the API server's plain JSON, `metadata` included."""


MAX_OBJECT_BYTES = 64 * 1024 * 1024
ACK_PAGE = 32
"""How many acknowledgements are read at once: their writer says how large each is."""
"""No manifest, archive segment or evidence of a trainer is larger; what is must not fill the operator's memory."""


class Appended(StrEnum):
    """What became of a journal record."""

    WON = "Won"
    SAME = "Same"
    """The very bytes are there already: an earlier reply was lost."""
    OTHER = "Other"
    """Another record has this sequence number: read, fold and decide again."""


class JournalStore(Protocol):
    """The audit bucket, reached with the operator's own credentials."""

    async def probe(self) -> None:
        """Prove that conditional writes work, with a race of eight; raises AuditStoreUnfit or StoreUnavailable."""
        ...

    async def read(self, run: RunId, after: int = 0) -> tuple[tuple[int, bytes], ...]:
        """Every record with a sequence number above `after`, as (number in the key, bytes) in key order."""
        ...

    async def last(self, run: RunId) -> bytes | None:
        """The record with the highest sequence number alone, None when there is none."""
        ...

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        """Write a record unless its number is taken. After StoreUnavailable append the same bytes again."""
        ...

    async def put_object(self, key: str, body: bytes) -> str:
        """Keep a text beside the journal and return its SHA-256; Conflict when the key holds other bytes."""
        ...

    async def get_object(self, key: str) -> bytes:
        """Read what `put_object` kept; raises NotFound."""
        ...

    async def runs(self) -> tuple[RunId, ...]:
        """Every run that has a journal."""
        ...


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that was neither completed nor aborted."""

    key: str
    id: str
    begun: datetime


class CheckpointStore(Protocol):
    """One job's checkpoint bucket, reached with that job's credentials. Keys are those of `trimtab_contract.keys`."""

    @property
    def root(self) -> str:
        """The prefix that `checkpoint.uri` names, without slashes at its ends."""
        ...

    async def check(self) -> None:
        """Raise StoreRefused with a sentence naming the field when bucket, endpoint or credentials are wrong."""
        ...

    async def get(self, key: str, limit: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object; raises NotFound, and ObjectTooLarge when it has more than `limit` bytes."""
        ...

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        """Size in bytes of every object whose key begins with `prefix`, in key order."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects, a bounded number of them at once; those that do not exist are fine."""
        ...

    async def times(self, prefix: str) -> Mapping[str, datetime]:
        """When every object whose key begins with `prefix` was last written, in key order."""
        ...

    async def uploads(self, prefix: str) -> tuple[Upload, ...]:
        """The uploads in parts below `prefix`; none where the credentials may not list them."""
        ...

    async def abort(self, uploads: Sequence[Upload]) -> None:
        """Give these uploads up and free what was stored of them; those that do not exist any more are fine."""
        ...


class CheckpointStores(Protocol):
    """Opens the checkpoint store of a job."""

    def open(self, uri: str, endpoint: str, secret: Mapping[str, str]) -> CheckpointStore:
        """Open `checkpoint.uri` with the job's Secret; raises StoreRefused naming the field. Sends nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Rejected:
    """A stream entry that cannot be what a trainer meant."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records in step order; gaps are possible. `cursor` is the position in the stream after all that was read."""

    records: tuple[MetricRecord, ...]
    rejected: tuple[Rejected, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class AckBatch:
    """Acknowledgements as (entry id, Ack) in stream order, and the position after all that was read."""

    acks: tuple[tuple[str, Ack], ...]
    rejected: tuple[Rejected, ...]
    cursor: str


class Publication(StrEnum):
    """What became of a directive."""

    WRITTEN = "Written"
    SAME = "Same"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome and the `(epoch, seq)` that is stored now; on REFUSED that of the higher directive."""

    outcome: Publication
    stored: tuple[int, int]


class Bus(Protocol):
    """Redis, as its administrator."""

    async def ping(self) -> None:
        """Raise BusUnavailable unless Redis serves."""
        ...

    async def records(self, run: RunId, attempt: int, after_step: int, limit: int = 1000) -> RecordBatch:
        """At most `limit` records of the attempt's stream with a step above `after_step`.

        Malformed entries, ids that differ from the record's identity and ids far above the last good step are
        rejected. An empty stream gives an empty batch.
        """
        ...

    async def acks(self, run: RunId, after_id: str = "0-0", limit: int = ACK_PAGE) -> AckBatch:
        """At most `limit` acknowledgements after the entry `after_id`."""
        ...

    async def wait(self, cursors: Mapping[str, str], milliseconds: int) -> frozenset[str]:
        """Wait until a stream has an entry after its cursor; the names of those that have, empty when time is up.

        Streams need not exist. Pass the `cursor` of the last batch, which also lies after rejected entries.
        """
        ...

    async def publish(self, run: RunId, directive: Directive) -> Published:
        """Store the directive unless a higher one is stored; the same bytes again change nothing.

        Raises Fenced when other bytes of the same `(epoch, seq)` are stored.
        """
        ...

    async def directive(self, run: RunId) -> Directive | None:
        """The stored directive; None when it is absent or unreadable, which both call for publishing again."""
        ...

    async def ensure_user(self, run: RunId, password: str) -> None:
        """Let the run's user reach its own streams and read its directive, and nothing else; idempotent."""
        ...

    async def delete_user(self, user: str) -> None:
        """Remove a run's user, by the name that `users` gives, and end its connections."""
        ...

    async def users(self) -> tuple[str, ...]:
        """The names of every run's user (`keys.redis_user`)."""
        ...

    async def refresh(self, run: RunId, attempts: Sequence[int]) -> None:
        """Let the run's directive, acks and the attempts' streams live another seven days."""
        ...


class Kind(StrEnum):
    """The kinds of Kubernetes objects the operator touches."""

    TRAINING_JOB = "TrainingJob"
    GUARD_POLICY = "GuardPolicy"
    CLUSTER_GUARD_POLICY = "ClusterGuardPolicy"
    GUARD_INCIDENT = "GuardIncident"
    RUN_REQUEST = "RunRequest"
    JOURNAL_ANCHOR = "JournalAnchor"
    JOB = "Job"
    SERVICE = "Service"
    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - a kind, not a password


@dataclass(frozen=True, slots=True)
class Created:
    """An object that exists now; `fresh` is False when it was there already, with the same owner."""

    uid: str
    resource_version: str
    fresh: bool


@dataclass(frozen=True, slots=True)
class PodView:
    """What the operator wants to know of a pod; texts are empty where the API server has none.

    `index` is the completion index within its Job. `reason` is why the pod was ended from outside (`Evicted`,
    `PreemptionByScheduler`, `DeletionByTaintManager`, ...), `waiting` why a container does not start
    (`ImagePullBackOff`, ...), `waiting_message` the kubelet's words of it, `unschedulable` the scheduler's message.
    """

    name: str
    uid: str
    index: int | None
    node: str
    phase: str
    deleted: bool
    ready: bool
    exit_codes: tuple[int, ...]
    termination_messages: tuple[str, ...]
    waiting: str
    waiting_message: str
    unschedulable: str
    image_id: str
    reason: str
    message: str


class EventType(StrEnum):
    """Severity of an Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Cluster(Protocol):
    """Kubernetes, as the operator's service account. Reads are fresh, never from a cache."""

    async def training_job(self, namespace: str, name: str) -> KubernetesObject:
        """One TrainingJob; raises NotFound."""
        ...

    async def training_jobs(self) -> tuple[KubernetesObject, ...]:
        """Every TrainingJob of every watched namespace."""
        ...

    async def guard_policy(self, kind: Kind, namespace: str, name: str) -> KubernetesObject:
        """One GuardPolicy of the namespace, or one ClusterGuardPolicy; raises NotFound."""
        ...

    async def guard_policies(self) -> tuple[KubernetesObject, ...]:
        """Every GuardPolicy of every watched namespace, and every ClusterGuardPolicy."""
        ...

    async def guard_incident(self, namespace: str, name: str) -> KubernetesObject:
        """One GuardIncident; raises NotFound."""
        ...

    async def run_requests(self, namespace: str) -> tuple[KubernetesObject, ...]:
        """Every RunRequest of the namespace; none where the cluster does not know the kind."""
        ...

    async def journal_anchor(self, namespace: str, name: str) -> KubernetesObject | None:
        """One JournalAnchor, None when it does not exist."""
        ...

    async def journal_anchors(self) -> tuple[KubernetesObject, ...]:
        """Every JournalAnchor of every watched namespace; none where the cluster does not know the kind."""
        ...

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], resource_version: str
    ) -> str:
        """Merge `status` into the status subresource (None removes a field, lists are replaced).

        Returns the new resourceVersion. Raises Conflict when the object changed since `resource_version`, NotFound,
        InvalidResource.
        """
        ...

    async def patch_spec(
        self, kind: Kind, namespace: str, name: str, spec: Mapping[str, Any], resource_version: str
    ) -> str:
        """Merge `spec` into a GuardIncident or a JournalAnchor; returns and raises as `patch_status`."""
        ...

    async def create(self, body: KubernetesObject) -> Created:
        """Create an object of a `Kind`; one that is there already with the same owner's uid is found instead.

        Raises Conflict when the name belongs to another owner or the object there is being deleted,
        InvalidResource when the API server refuses the body.
        """
        ...

    async def get_job(self, namespace: str, name: str) -> KubernetesObject | None:
        """One batch/v1 Job, None when it does not exist."""
        ...

    async def pods(self, namespace: str, selector: str) -> tuple[PodView, ...]:
        """The pods that a label selector names, in order of completion index and name."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int) -> None:
        """Delete the pod that has this uid; one that is gone is fine, another of the same name is Conflict."""
        ...

    async def secret(self, namespace: str, name: str) -> Mapping[str, str]:
        """The decoded data of a Secret; raises NotFound."""
        ...

    async def event(self, involved: KubernetesObject, kind: EventType, reason: str, message: str) -> None:
        """Tell people something about an object; the same words again raise the Event's count."""
        ...


class Webhook(Protocol):
    """Where people want to be told."""

    async def post(self, body: Mapping[str, Any]) -> None:
        """Post one JSON object; raises WebhookUnavailable or WebhookRefused, neither of which holds the address."""
        ...


class Lease(Protocol):
    """The right to act, as the reconciler sees it."""

    @property
    def epoch(self) -> int:
        """The epoch of the last acquisition; 0 before the first. It rises with every acquisition by anybody."""
        ...

    @property
    def duration_seconds(self) -> float:
        """For how long an acquisition holds: a former holder that still acts does so no longer than this."""
        ...

    def valid(self) -> bool:
        """Whether this process may act now, by its own monotonic clock and without asking anybody."""
        ...
