"""Whatever the bytes, a reader gives points, says what it could not read, or says that it could read nothing."""

import io
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trimtab_contract.metrics import METRIC_NAME, MetricRecord, encode_archive
from trimtab_policies.errors import UnknownLogFormat, UnreadableLog
from trimtab_policies.log_readers.points import MOST_STEP
from trimtab_policies.log_readers.reading import LogReader
from trimtab_policies.log_readers.registry import READERS, choose

PIECES = [b"NaN", b"inf", b"-", b"1e999", b'"', b"\n", b"{", b"]", b"\\ud800", b"9" * 5000]
NAMES = ["log", "a.csv", "a.jsonl", "a.json", "trainer_state.json", "x.gz"]
LOGS = Path(__file__).parent / "logs"
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def archive() -> bytes:
    return encode_archive(
        [
            MetricRecord(
                attempt=1, step=step, window=step, samples_seen=1, tokens_seen=1, time=1.0, scalars={"loss": math.nan}
            )
            for step in range(1, 5)
        ]
    )


def samples() -> dict[str, list[bytes]]:
    """Valid logs by the reader that is chosen for them."""
    found: dict[str, list[bytes]] = {
        "archive": [archive()],
        "json": [b'[{"step": 1, "loss": NaN}, {"step": 2, "loss": 1}]'],
    }
    for path in sorted(LOGS.iterdir()):
        body = path.read_bytes()
        found.setdefault(choose(body, path.name).name, []).append(body)
    return found


SAMPLES = samples()


def check(reader: LogReader, body: bytes) -> None:
    reading = reader.read(io.BytesIO(body))
    try:
        points = list(reading)
    except UnreadableLog:
        assert reading.summary.points == 0
        return
    assert len(points) == reading.summary.points > 0
    for point in points:
        assert 0 <= point.step <= MOST_STEP
        assert point.line >= 1
        assert point.scalars or point.vectors
        assert all(METRIC_NAME.fullmatch(name) for name in (*point.scalars, *point.vectors))
        assert all(type(value) is float for value in point.scalars.values())
    assert len(reading.summary.reasons) == min(5, reading.summary.unreadable)


def test_every_reader_has_a_sample() -> None:
    assert set(SAMPLES) == {reader.name for reader in READERS}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@FEW
@given(body=st.binary(max_size=600))
def test_random_bytes_never_break_a_reader(reader: LogReader, body: bytes) -> None:
    check(reader, body)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@FEW
@given(data=st.data())
def test_damaged_logs_never_break_a_reader(reader: LogReader, data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(SAMPLES[reader.name])))
    for _ in range(data.draw(st.integers(0, 3))):
        begin = data.draw(st.integers(0, len(body)))
        end = min(len(body), begin + data.draw(st.integers(0, 40)))
        body[begin:end] = data.draw(
            st.binary(max_size=20) | st.sampled_from([b"NaN", b"inf", b"-", b"1e999", b'"', b"\n"])
        )
    del body[data.draw(st.integers(0, len(body))) :]
    check(reader, bytes(body))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_log_of_another_format_never_breaks_a_reader(reader: LogReader) -> None:
    for bodies in SAMPLES.values():
        for body in bodies:
            check(reader, body)


@FEW
@given(
    body=st.binary(max_size=400),
    name=st.sampled_from(NAMES),
)
def test_the_choice_of_a_reader_never_breaks(body: bytes, name: str) -> None:
    try:
        reader = choose(body, name)
    except UnknownLogFormat:
        return
    check(reader, body)


class Repeated(io.RawIOBase):
    """A log that is never whole in memory."""

    def __init__(self, head: bytes, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._left = head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        target = memoryview(buffer)  # pyright: ignore[reportArgumentType]
        while len(self._left) < len(target) and (line := next(self._lines, None)) is not None:
            self._left += line
        size = min(len(target), len(self._left))
        target[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


@pytest.mark.parametrize(
    ("name", "head", "form"),
    [
        ("jsonl", b"", '{{"step": {0}, "loss": 2.5, "lr": 0.0001}}\n'),
        ("hugging-face", b'{"log_history": [', '{{"step": {0}, "loss": 2.5}},\n'),
        ("csv", b"step,loss\n", "{0},2.5\n"),
        ("text", b"", "step {0} loss: 2.5 | lr: 1e-4\n"),
    ],
)
def test_memory_does_not_grow_with_the_log(name: str, head: bytes, form: str) -> None:
    reader = next(one for one in READERS if one.name == name)
    stream = io.BufferedReader(Repeated(head, (form.format(step).encode() for step in range(10_000))))
    tracemalloc.start()
    try:
        count = sum(1 for _ in reader.read(stream))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 10_000
    assert peak < 2_000_000
