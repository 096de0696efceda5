"""Checkpoint manifests, probe evidence and batch logs: what is written is what is read."""

import math
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_slices import SCHEMA_2
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
from trimtab_contract.errors import ContractError, MalformedIndex, MalformedManifest
from trimtab_contract.evidence import (
    BatchLogEntry,
    ProbeEvidence,
    decode_batch_log,
    decode_probe,
    encode_batch_log,
    encode_probe,
)
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_contract.slice_index import SliceIndex, covering, decode_index, encode_index

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
        "b.bin": StoredObject(size=3, sha256="ab", rank=0, index="b.bin.index.json"),
        "b.bin.index.json": StoredObject(size=9, sha256="ef", rank=0),
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
        (encode_manifest(msgspec.structs.replace(MANIFEST, schema=0)), "schema 0, this version reads schemas 1 to 3"),
        (b'{"schema": 4, "objects": "packed"}', "schema 4, this version reads schemas 1 to 3: use a Trimtab as new"),
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
    assert [(stored.slices, stored.index) for stored in read.objects.values()] == [((), "")] * 3


def test_a_manifest_that_a_version_of_schema_2_wrote_is_read_with_its_slices() -> None:
    read = decode_manifest((SCHEMA_2 / MANIFEST_NAME).read_bytes())
    assert read.schema == 2
    assert {name: len(stored.slices) for name, stored in read.objects.items()} == {
        ".metadata": 0,
        "__0_0.distcp": 14,
        "__1_0.distcp": 15,
        "rank-000000.json": 0,
        "rank-000001.json": 0,
    }
    for name, stored in read.objects.items():
        assert stored.index == ""
        if stored.slices:
            assert covering(name, stored, stored.slices) == stored.slices
            assert {sha256_hex(piece) for piece in pieces(name, stored.slices)} == {
                part.sha256 for part in stored.slices
            }


def pieces(name: str, slices: tuple[StoredSlice, ...]) -> list[bytes]:
    body = (SCHEMA_2 / name).read_bytes()
    return [body[part.offset : part.offset + part.length] for part in slices]


PART = StoredSlice(name="head", offset=0, length=3, sha256="ab")


@pytest.mark.parametrize(
    ("schema", "changes", "reason"),
    [
        (3, {"b.bin": {"slices": (PART,)}}, "object b.bin lists slices in the manifest, which schema 3 does in an"),
        (2, {}, "object b.bin has an index, which schema 2 does not know"),
        (3, {"b.bin": {"index": "c.bin"}}, "the index c.bin, which is no index that rank 0 stored"),
        (3, {"b.bin.index.json": {"rank": 1}}, "the index b.bin.index.json, which is no index that rank 0 stored"),
        (3, {"b.bin": {"index": "b.bin"}}, "the index b.bin, which is no index"),
        (
            3,
            {"a.bin": {"index": "b.bin.index.json", "rank": 0}},
            "objects a.bin and b.bin have the same index b.bin.index.json",
        ),
    ],
)
def test_slices_that_are_not_where_the_schema_has_them_are_refused(
    schema: int, changes: dict[str, dict[str, Any]], reason: str
) -> None:
    objects = {
        name: msgspec.structs.replace(stored, **changes.get(name, {})) for name, stored in MANIFEST.objects.items()
    }
    wire = encode_manifest(msgspec.structs.replace(MANIFEST, schema=schema, objects=objects))
    with pytest.raises(MalformedManifest, match=reason):
        decode_manifest(wire)


def test_an_index_reads_back_as_the_slices_of_its_object_and_of_no_other() -> None:
    parts = (PART, msgspec.structs.replace(PART, name="tail", offset=3, length=4))
    stored = StoredObject(size=7, sha256="cd", rank=0)
    wire = encode_index(SliceIndex(name="b.bin", sha256="cd", slices=parts))
    assert decode_index(wire, "b.bin", stored) == parts
    assert decode_index(encode_index(SliceIndex(name="b.bin", sha256="cd", slices=())), "b.bin", EMPTY) == ()
    with pytest.raises(MalformedIndex, match=r"it indexes b\.bin of SHA-256 cd, not c\.bin of cd"):
        decode_index(wire, "c.bin", stored)
    with pytest.raises(MalformedIndex, match=r"not b\.bin of ef"):
        decode_index(wire, "b.bin", msgspec.structs.replace(stored, sha256="ef"))
    with pytest.raises(MalformedIndex, match="its slices end at byte 7, it has 8"):
        decode_index(wire, "b.bin", msgspec.structs.replace(stored, size=8))
    for body in (b"", wire[:-1], b'{"a":' * 5000):
        with pytest.raises(MalformedIndex, match=r"the index of b\.bin cannot be decoded"):
            decode_index(body, "b.bin", stored)


EMPTY = StoredObject(size=0, sha256="cd", rank=1)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), data=st.data())
def test_slices_cover_an_object_only_if_each_begins_where_the_one_before_ended(
    lengths: list[int], data: st.DataObject
) -> None:
    offsets = [0, *accumulate(lengths)]
    parts = [
        StoredSlice(name=str(number), offset=offset, length=length, sha256="")
        for number, (offset, length) in enumerate(zip(offsets, lengths, strict=False))
    ]
    stored = StoredObject(size=offsets[-1], sha256="cd", rank=0)
    assert covering("b.bin", stored, parts) == tuple(parts)
    number = data.draw(st.integers(0, len(parts) - 1))
    by = data.draw(st.integers(-9, 9).filter(bool))
    field = data.draw(st.sampled_from(("offset", "length")))
    parts[number] = msgspec.structs.replace(parts[number], **{field: getattr(parts[number], field) + by})
    with pytest.raises(MalformedIndex):
        covering("b.bin", stored, parts)


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
