"""Metric records on the wire: what goes in comes out, NaN too; what cannot be meant is refused with its reason."""

import math
import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trimtab_contract.errors import MalformedRecord
from trimtab_contract.metrics import (
    MAX_RECORD_BYTES,
    MetricRecord,
    Vector,
    decode_archive,
    decode_record,
    encode_archive,
    encode_record,
)

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)


def metric_record(**changes: object) -> MetricRecord:
    base = MetricRecord(attempt=1, step=3, window=2, samples_seen=24, tokens_seen=96, time=1.5, scalars={"loss": 2.0})
    return msgspec.structs.replace(base, **changes)


@given(st.dictionaries(NAMES, st.floats(), max_size=8), st.lists(st.floats(width=32), min_size=1, max_size=12))
def test_every_float_survives_the_wire(scalars: dict[str, float], values: list[float]) -> None:
    vector = Vector.pack((1, len(values)), values)
    sent = metric_record(scalars=scalars, vectors={"qk_max_logit": vector})
    received = decode_record(encode_record(sent))
    assert set(received.scalars) == set(scalars)
    for name, value in scalars.items():
        assert struct.pack("<d", received.scalars[name]) == struct.pack("<d", value) or math.isnan(value)
        assert math.isnan(received.scalars[name]) is math.isnan(value)
    assert [struct.pack("<f", value) for value in received.vectors["qk_max_logit"].values()] == [
        struct.pack("<f", value) for value in values
    ]


def test_a_vector_knows_the_index_of_an_element() -> None:
    vector = Vector.pack((2, 3), range(6))
    assert [vector.index(flat) for flat in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_vector_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(MalformedRecord, match=r"vector: shape \[2, 3\] does not fit 20 bytes"):
        Vector.pack((2, 3), range(5))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 2}, "schema 2 is not supported"),
        ({"attempt": 0}, "attempt 0"),
        ({"step": 0}, "step 0"),
        ({"window": -1}, "window -1"),
        ({"scalars": {"Loss": 1.0}}, "metric name 'Loss'"),
        ({"scalars": {"loss\n": 1.0}}, "metric name"),
        ({"scalars": {"": 1.0}}, "metric name ''"),
        ({"scalars": {"a" * 64: 1.0}}, "metric name"),
        ({"vectors": {"x-y": Vector((1,), b"\0\0\0\0")}}, "metric name 'x-y'"),
        ({"vectors": {"load": Vector((2,), b"\0\0\0\0")}}, r"load: shape \[2\] does not fit 4 bytes"),
        ({"vectors": {"load": Vector((0,), b"")}}, r"load: shape \[0\]"),
        ({"vectors": {"load": Vector((-1, -1), b"\0\0\0\0")}}, r"load: shape \[-1, -1\]"),
    ],
)
def test_a_record_no_trainer_could_mean_is_refused_on_both_sides(change: dict[str, object], reason: str) -> None:
    bad = metric_record(**change)
    with pytest.raises(MalformedRecord, match=reason):
        encode_record(bad)
    with pytest.raises(MalformedRecord, match=reason):
        decode_record(msgspec.msgpack.encode(bad))
    with pytest.raises(MalformedRecord, match=reason):
        decode_archive(encode_archive([metric_record(), bad]))


def test_a_record_over_four_mebibytes_is_refused_on_both_sides() -> None:
    size = MAX_RECORD_BYTES // 4 + 1
    huge = metric_record(vectors={"load": Vector((size,), bytes(4 * size))})
    with pytest.raises(MalformedRecord, match="at most 4194304 are allowed"):
        encode_record(huge)
    with pytest.raises(MalformedRecord, match="at most 4194304 are allowed"):
        decode_record(msgspec.msgpack.encode(huge))


@given(st.binary(max_size=60))
def test_no_bytes_make_the_decoder_fail_in_another_way(wire: bytes) -> None:
    for decode in (decode_record, decode_archive):
        try:
            decode(wire)
        except MalformedRecord:
            continue


def test_a_truncated_record_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="cannot be decoded"):
        decode_record(encode_record(metric_record())[:-3])


@pytest.mark.parametrize("decode", [decode_record, decode_archive])
@pytest.mark.parametrize("wire", [b"\x81\xa1a" * 5000, b"\x91\x81\xa1a" + b"\x91" * 5000])
def test_a_record_that_nests_without_end_is_refused(decode: Callable[[bytes], object], wire: bytes) -> None:
    with pytest.raises(MalformedRecord, match="cannot be decoded"):
        decode(wire)


def test_an_archived_stretch_comes_back_in_order() -> None:
    records = tuple(metric_record(step=step, scalars={"loss": math.inf}) for step in range(1, 6))
    assert decode_archive(encode_archive(records)) == records
