"""Every Redis key and every S3 key, and the identity of a run they are made of."""

import re
from dataclasses import dataclass

from trimtab_contract.errors import ContractError

_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_CHECKPOINT = re.compile(r"([0-9]{12})-a([0-9]{6})-[A-Za-z0-9]+/manifest\.json", re.ASCII)

REDIS_TTL_SECONDS = 7 * 24 * 3600
"""Keys of a run live this long after they were last refreshed."""


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """`<namespace>/<name>/<uid>` of a TrainingJob: the identity under which everything is stored."""

    namespace: str
    name: str
    uid: str

    def __post_init__(self) -> None:
        """Refuse parts that could escape the run's own prefix."""
        for field in ("namespace", "name", "uid"):
            if not _PART.fullmatch(getattr(self, field)):
                message = f"run id: {field} {getattr(self, field)!r} is not a Kubernetes name"
                raise ContractError(message)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"

    @classmethod
    def parse(cls, text: str) -> "RunId":
        """Read `<namespace>/<name>/<uid>`; raises ContractError."""
        parts = text.split("/")
        if len(parts) != 3:
            message = f"run id {text!r} is not <namespace>/<name>/<uid>"
            raise ContractError(message)
        return cls(*parts)


def metrics_stream(run: RunId, attempt: int) -> str:
    """Redis stream of one attempt's metric records; entry id `<step>-0`."""
    return f"tt:{{{run}}}:a{attempt}:metrics"


def ack_stream(run: RunId) -> str:
    """Redis stream of the trainer's acknowledgements, all attempts."""
    return f"tt:{{{run}}}:acks"


def directive_key(run: RunId) -> str:
    """Redis key of the one directive in force."""
    return f"tt:{{{run}}}:directive"


REDIS_USER_PREFIX = "tt-"
"""Every run's ACL user begins with it, so that a sweep finds them."""


def redis_user(run: RunId) -> str:
    """Redis ACL user of one run, `tt-<namespace>.<uid>`: namespaces hold no dots."""
    return f"{REDIS_USER_PREFIX}{run.namespace}.{run.uid}"


def redis_user_namespace(user: str) -> str | None:
    """The namespace of a run's user; None when it is no run's."""
    namespace, dot, _ = user.removeprefix(REDIS_USER_PREFIX).partition(".")
    return namespace if dot and user.startswith(REDIS_USER_PREFIX) else None


def redis_acl_patterns(run: RunId) -> tuple[str, ...]:
    """ACL key patterns of a run's user: write its metrics and acks, read its directive, nothing else."""
    return (f"~tt:{{{run}}}:a*:metrics", f"~{ack_stream(run)}", f"%R~{directive_key(run)}")


def _under(root: str, path: str) -> str:
    return f"{root.strip('/')}/{path}" if root.strip("/") else path


def run_prefix(root: str, run: RunId) -> str:
    """Everything the trainer of a run stores lies under this prefix of the checkpoint bucket."""
    return _under(root, f"{run}/")


def checkpoints_prefix(root: str, run: RunId) -> str:
    """All checkpoints of a run."""
    return _under(root, f"{run}/checkpoints/")


def checkpoints_of_step(root: str, run: RunId, step: int) -> str:
    """The checkpoints of one step of a run, whatever their attempt."""
    return f"{checkpoints_prefix(root, run)}{step:012d}-a"


def checkpoint_prefix(root: str, run: RunId, step: int, attempt: int, random: str) -> str:
    """One checkpoint's objects; `random` makes the prefix unique so that none is ever reused."""
    return _under(root, f"{run}/checkpoints/{step:012d}-a{attempt:06d}-{random}/")


MANIFEST_NAME = "manifest.json"


def manifest_identity(root: str, run: RunId, key: str) -> tuple[int, int]:
    """Step and attempt in the key of a manifest under one of this run's `checkpoint_prefix`es; raises ContractError."""
    prefix = checkpoints_prefix(root, run)
    match = _CHECKPOINT.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None:
        message = f"the key is no manifest below {prefix}"
        raise ContractError(message)
    return int(match[1]), int(match[2])


def records_prefix(root: str, run: RunId, attempt: int) -> str:
    """The archive of one attempt's metric records."""
    return _under(root, f"{run}/records/a{attempt:06d}/")


def records_segment(root: str, run: RunId, attempt: int, first_step: int, last_step: int) -> str:
    """One archived stretch of metric records, both steps inclusive."""
    return f"{records_prefix(root, run, attempt)}{first_step:012d}-{last_step:012d}"


def segment_steps(key: str) -> tuple[int, int]:
    """First and last step in a `records_segment` key; raises ContractError."""
    match = re.search(r"/([0-9]{12})-([0-9]{12})\Z", key)
    if match is None:
        message = f"{key!r} is not a records segment"
        raise ContractError(message)
    return int(match[1]), int(match[2])


MAX_SEGMENT_STEPS = 10_000
"""No segment of a batch log has more steps unless its store was away for so long.

A power of ten, so that a prefix of its key tells where it begins.
"""


def batches_prefix(root: str, run: RunId) -> str:
    """The batch logs of all attempts and ranks of a run."""
    return _under(root, f"{run}/batches/")


def batches_segment(root: str, run: RunId, attempt: int, rank: int, first_step: int, last_step: int) -> str:
    """One stretch of one rank's batch log."""
    return f"{batches_prefix(root, run)}a{attempt:06d}-r{rank:06d}/{first_step:012d}-{last_step:012d}.jsonl"


def batches_stretches(root: str, run: RunId, attempt: int, rank: int, first_step: int, last_step: int) -> list[str]:
    """Prefixes under which the segments of one rank's batch log lie that can hold any step of first to last.

    Segments are named by their first step; one longer than `MAX_SEGMENT_STEPS` may be missed.
    """
    ranks = f"{batches_prefix(root, run)}a{attempt:06d}-r{rank:06d}/"
    first = max(0, first_step - MAX_SEGMENT_STEPS) // MAX_SEGMENT_STEPS
    digits = len(str(MAX_SEGMENT_STEPS)) - 1
    return [f"{ranks}{block:0{12 - digits}d}" for block in range(first, last_step // MAX_SEGMENT_STEPS + 1)]


def data_prefix(root: str, run: RunId) -> str:
    """What the attempts of a run train on; in the order of their keys."""
    return _under(root, f"{run}/data/")


def data_object(root: str, run: RunId, attempt: int) -> str:
    """What an attempt trains on, as its rank 0 described it."""
    return f"{data_prefix(root, run)}a{attempt:06d}.json"


def evidence_object(root: str, run: RunId, attempt: int, name: str) -> str:
    """An evidence object written by the trainer, such as the losses of a forward-only probe."""
    return _under(root, f"{run}/evidence/a{attempt:06d}/{name}")


def stacks_object(root: str, run: RunId, attempt: int, rank: int, time: int) -> str:
    """The Python stacks that a rank's watchdog wrote."""
    return _under(root, f"{run}/stacks/a{attempt:06d}-r{rank:06d}-{time}.txt")


def journal_prefix(run: RunId) -> str:
    """The journal of a run in the operator's audit bucket."""
    return f"journal/{run}/"


def journal_record(run: RunId, seq: int) -> str:
    """One journal record."""
    return f"{journal_prefix(run)}{seq:012d}.json"


def journal_seq(key: str) -> int:
    """The sequence number in a `journal_record` key; raises ContractError."""
    match = re.search(r"/([0-9]{12})\.json\Z", key)
    if match is None:
        message = f"{key!r} is not a journal record"
        raise ContractError(message)
    return int(match[1])


def policy_text(policy_hash: str) -> str:
    """The text of an accepted policy in the audit bucket, by its SHA-256."""
    return f"policies/{policy_hash}.json"


def audit_evidence(run: RunId, sha256: str) -> str:
    """An evidence object the operator froze in the audit bucket, by its SHA-256."""
    return f"evidence/{run}/{sha256}"
