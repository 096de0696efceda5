"""What a restored world says it measured, on a real S3 server: an answer to what was asked, or a problem."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from object_store_fixture import ADMIN, ObjectStoreServer
from run_states import ack, incident, latch, reference
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import Ack, AckState, Action, Diagnose, Directive, EvidenceReference
from trimtab_contract.evidence import ProbeEvidence, encode_probe
from trimtab_contract.keys import RunId, evidence_object
from trimtab_operator.adapters.s3 import S3CheckpointStore, S3CheckpointStores
from trimtab_operator.probes import MAX_PROBE_BYTES, ProbeProblem, read_probe, read_suspect

RUN = RunId("lab", "demo", "uid")
SECRET = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
TARGET = reference(170)
INCIDENT = incident(targets=(TARGET,), restoring_attempt=2)
FIRST, FLAGGED = latch().flagged
LAST = FLAGGED + latch().remediation.probe
CONTROL = (177, 178, 179)
DIRECTIVE = Directive(
    epoch=1,
    seq=30,
    world=1,
    attempt=2,
    action=Action.HOLD,
    restore=TARGET,
    diagnose=Diagnose(windows=(FIRST, LAST), control=CONTROL),
)
PROBE = ProbeEvidence(
    attempt=2,
    state=TARGET,
    windows=tuple((window, 2.0) for window in range(FIRST, LAST + 1)),
    control=tuple((window, 2.0) for window in CONTROL),
)


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("probes")


@pytest.fixture
async def store(object_store: ObjectStoreServer, bucket: str) -> AsyncIterator[S3CheckpointStore]:
    made = S3CheckpointStores()
    yield made.open(f"s3://{bucket}/team", object_store.endpoint, SECRET)
    await made.close()


def diagnosed(object_store: ObjectStoreServer, bucket: str, body: bytes) -> Ack:
    """An ack that names a probe, which is stored."""
    digest = sha256_hex(body)
    key = evidence_object("team", RUN, 2, f"probe-{digest[:12]}.json")
    object_store.client().put_object(Bucket=bucket, Key=key, Body=body)
    return ack(AckState.DIAGNOSED, attempt=2, evidence=EvidenceReference(key=key, sha256=digest))


async def test_what_was_asked_for_is_believed(
    store: S3CheckpointStore, object_store: ObjectStoreServer, bucket: str
) -> None:
    body = encode_probe(PROBE)
    said = diagnosed(object_store, bucket, body)
    assert await read_probe(store, RUN, said, INCIDENT, DIRECTIVE) == (PROBE, body)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"windows": (*PROBE.windows, (10**9, None))}, f"not {FIRST} to {LAST}"),
        ({"windows": PROBE.windows[:-1]}, f"not {FIRST} to {LAST}"),
        ({"windows": ()}, f"not {FIRST} to {LAST}"),
        ({"windows": tuple(reversed(PROBE.windows))}, f"not {FIRST} to {LAST}"),
        ({"control": ((10**9, 2.0),)}, "control windows"),
        ({"control": ()}, "control windows"),
        ({"attempt": 1}, "another attempt"),
        ({"state": reference(160)}, "another state"),
        ({"windows": ((FIRST, 1e308), *PROBE.windows[1:])}, "32 bits"),
        ({"control": ((CONTROL[0], -1e308), *PROBE.control[1:])}, "32 bits"),
    ],
)
async def test_a_probe_that_answers_something_else_is_a_problem(
    store: S3CheckpointStore, object_store: ObjectStoreServer, bucket: str, change: dict[str, Any], why: str
) -> None:
    said = diagnosed(object_store, bucket, encode_probe(msgspec.structs.replace(PROBE, **change)))
    with pytest.raises(ProbeProblem, match=why):
        await read_probe(store, RUN, said, INCIDENT, DIRECTIVE)


@pytest.mark.parametrize(
    ("body", "why"), [(b'{"a":' * 5000, "cannot be decoded"), (b"0" * (MAX_PROBE_BYTES + 1), "larger than any probe")]
)
async def test_evidence_that_is_no_probe_is_a_problem(
    store: S3CheckpointStore, object_store: ObjectStoreServer, bucket: str, body: bytes, why: str
) -> None:
    with pytest.raises(ProbeProblem, match=why):
        await read_probe(store, RUN, diagnosed(object_store, bucket, body), INCIDENT, DIRECTIVE)


@pytest.mark.parametrize("name", ["", "\0", "x" * 3000, "../a1/x", "a000001/x"])
async def test_a_key_of_anything_else_is_a_problem(store: S3CheckpointStore, name: str) -> None:
    for key in (name, evidence_object("team", RUN, 2, name)):
        said = ack(AckState.DIAGNOSED, attempt=2, evidence=EvidenceReference(key=key, sha256="0" * 64))
        with pytest.raises(ProbeProblem, match="no object of this attempt"):
            await read_probe(store, RUN, said, INCIDENT, DIRECTIVE)


async def test_evidence_that_is_missing_or_not_named_is_a_problem(store: S3CheckpointStore) -> None:
    with pytest.raises(ProbeProblem, match="names no evidence"):
        await read_probe(store, RUN, ack(AckState.DIAGNOSED, attempt=2), INCIDENT, DIRECTIVE)
    key = evidence_object("team", RUN, 2, "gone.json")
    said = ack(AckState.DIAGNOSED, attempt=2, evidence=EvidenceReference(key=key, sha256="0" * 64))
    with pytest.raises(ProbeProblem, match="does not exist"):
        await read_probe(store, RUN, said, INCIDENT, DIRECTIVE)


HELD = msgspec.structs.replace(DIRECTIVE, restore=None, diagnose=Diagnose(windows=(FIRST, FLAGGED), control=CONTROL))
SUSPECT = msgspec.structs.replace(PROBE, state=None, windows=PROBE.windows[: FLAGGED - FIRST + 1])


async def test_what_a_held_world_measured_on_its_own_state_is_believed(
    store: S3CheckpointStore, object_store: ObjectStoreServer, bucket: str
) -> None:
    body = encode_probe(SUSPECT)
    assert await read_suspect(store, RUN, diagnosed(object_store, bucket, body), HELD) == (SUSPECT, body)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": TARGET}, "and not on the held state"),
        ({"attempt": 1}, "another attempt"),
        ({"windows": PROBE.windows}, f"not {FIRST} to {FLAGGED}"),
        ({"control": ()}, "control windows"),
        ({"control": ((CONTROL[0], 1e308), *PROBE.control[1:])}, "32 bits"),
    ],
)
async def test_a_held_world_that_answers_something_else_is_a_problem(
    store: S3CheckpointStore, object_store: ObjectStoreServer, bucket: str, change: dict[str, Any], why: str
) -> None:
    said = diagnosed(object_store, bucket, encode_probe(msgspec.structs.replace(SUSPECT, **change)))
    with pytest.raises(ProbeProblem, match=why):
        await read_suspect(store, RUN, said, HELD)
    with pytest.raises(ProbeProblem, match="nothing was to be measured"):
        await read_suspect(store, RUN, said, msgspec.structs.replace(HELD, diagnose=None))
