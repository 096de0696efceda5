"""Checkpoint manifests, probe evidence and batch logs: what is written is what is read."""

import math

import msgspec
import pytest
from trimtab_contract.checkpoints import (
    CheckpointManifest,
    EvaluationProbe,
    FiniteScan,
    StoredObject,
    StoredSlice,
    TensorDescription,
    decode_manifest,
    encode_manifest,
    sha256_hex,
)
from trimtab_contract.directives import CheckpointReference, LearningRateOverride
from trimtab_contract.errors import ContractError, MalformedManifest
from trimtab_contract.evidence import (
    BatchLogEntry,
    ProbeEvidence,
    decode_batch_log,
    decode_probe,
    encode_batch_log,
    encode_probe,
)

MANIFEST = CheckpointManifest(
    run="ns/job/uid",
    attempt=2,
    step=170,
    world_size=2,
    next_window=170,
    skip=((10, 12),),
    lr=LearningRateOverride(scale=0.5, until_step=300),
    learning_rate=1e-3,
    optimizer_steps=170,
    objects={
        "b.bin": StoredObject(
            size=3, sha256="ab", rank=0, slices=(StoredSlice(name="head", offset=0, length=3, sha256="ab"),)
        ),
        "a.bin": StoredObject(size=1, sha256="cd", rank=1),
    },
    tensors={"head": TensorDescription(dtype="float32", shape=(2, 3))},
    replica_checksum="00",
    replicas_agree=True,
    finite=FiniteScan(nonfinite=0),
    evaluation=EvaluationProbe(window=173, window_sha256="ef", losses=(1.25, 2.5)),
    config_sha256="1",
    code_sha256="2",
    versions={"torch": "2.9"},
    trigger="Periodic",
    saved_at=1.0,
)


def test_a_manifest_reads_back_and_has_one_form() -> None:
    wire = encode_manifest(MANIFEST)
    assert decode_manifest(wire) == MANIFEST
    turned = msgspec.structs.replace(MANIFEST, objects=dict(reversed(MANIFEST.objects.items())))
    assert encode_manifest(turned) == wire
    assert len(sha256_hex(wire)) == 64


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"", "manifest cannot be decoded"),
        (b"{}", "manifest cannot be decoded"),
        (b'{"a":' * 5000, "manifest cannot be decoded"),
        (encode_manifest(MANIFEST)[:-9], "manifest cannot be decoded"),
        (encode_manifest(MANIFEST).replace(b"Periodic", b"Whenever"), "trigger"),
        (encode_manifest(msgspec.structs.replace(MANIFEST, schema=0)), "schema 0, this version reads schemas 1 to 2"),
        (b'{"schema": 3, "objects": "packed"}', "schema 3, this version reads schemas 1 to 2: use a Trimtab as new"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(wire: bytes, reason: str) -> None:
    with pytest.raises(MalformedManifest, match=reason):
        decode_manifest(wire)


def test_a_manifest_of_the_first_schema_is_read_and_has_no_slices() -> None:
    fields = msgspec.json.decode(encode_manifest(MANIFEST))
    first = {
        name: {key: stored[key] for key in ("size", "sha256", "rank")} for name, stored in fields["objects"].items()
    }
    read = decode_manifest(msgspec.json.encode({**fields, "schema": 1, "objects": first}))
    assert read.schema == 1
    assert [stored.slices for stored in read.objects.values()] == [(), ()]


def test_a_non_finite_evaluation_loss_makes_no_manifest_unreadable() -> None:
    evaluation = EvaluationProbe(window=173, window_sha256="ef", losses=(math.nan, 1.5))
    read = decode_manifest(encode_manifest(msgspec.structs.replace(MANIFEST, evaluation=evaluation)))
    assert read.evaluation.losses == (None, 1.5)


def test_a_probe_reads_back_and_a_missing_loss_stays_missing() -> None:
    probe = ProbeEvidence(
        attempt=2,
        state=CheckpointReference(key="k", sha256="s", step=170),
        windows=((180, 2.0), (181, None)),
        control=((179, 1.5),),
    )
    assert decode_probe(encode_probe(probe)) == probe


def test_a_non_finite_loss_is_written_as_missing() -> None:
    probe = ProbeEvidence(attempt=1, state=None, windows=((1, math.nan), (2, math.inf)), control=())
    assert decode_probe(encode_probe(probe)).windows == ((1, None), (2, None))


@pytest.mark.parametrize("body", [b"", b"{", b'{"attempt": "x"}', b"[]", b'{"a":' * 5000])
def test_a_probe_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(ContractError, match="probe evidence cannot be decoded"):
        decode_probe(body)


def test_a_batch_log_is_lines_that_may_be_joined() -> None:
    entries = tuple(BatchLogEntry(attempt=1, step=step, window=step - 1, sha256="ab") for step in range(1, 5))
    assert decode_batch_log(encode_batch_log(entries[:2]) + encode_batch_log(entries[2:])) == entries
    with pytest.raises(ContractError, match="batch log cannot be decoded"):
        decode_batch_log(encode_batch_log(entries)[:-4])
    with pytest.raises(ContractError, match="batch log cannot be decoded"):
        decode_batch_log(b'{"a":' * 5000)
