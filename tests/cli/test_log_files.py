"""Logs on disk: gzip or not, whole or not, and what the person is told."""

import gzip
import os
import threading
from pathlib import Path

import pytest
from trimtab_cli.errors import CliError, NotFound, UsageError
from trimtab_cli.log_files import mapping_of, open_log

LINES = "".join(f'{{"step": {step}, "loss": {1 / step}}}\n' for step in range(1, 2001)).encode()


def test_a_packed_log_is_known_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    for name, body in (("plain.jsonl.gz", LINES), ("packed.jsonl", gzip.compress(LINES))):
        path = tmp_path / name
        path.write_bytes(body)
        log = open_log(path)
        points = list(log)
        assert log.reader_name == "jsonl"
        assert (len(points), points[-1].step, log.unreadable.points) == (2000, 2000, 2000)


def test_progress_counts_the_bytes_of_the_file_up_to_its_size(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(LINES)
    seen: list[tuple[int, int]] = []
    assert len(list(open_log(path, progress=lambda done, size: seen.append((done, size))))) == 2000
    assert seen[-1] == (len(LINES), len(LINES))
    assert all(0 <= done <= size for done, size in seen)


def test_a_packed_table_with_a_row_for_every_value_is_read_in_step_order(tmp_path: Path) -> None:
    rows = [f"{name},{step},{step / 10}" for name in ("loss", "lr") for step in range(1, 501)]
    path = tmp_path / "metrics.csv.gz"
    path.write_bytes(gzip.compress("\n".join(["key,step,value", *rows]).encode()))
    log = open_log(path)
    assert [(point.step, set(point.scalars)) for point in log] == [(step, {"loss", "lr"}) for step in range(1, 501)]
    assert log.reader_name == "mlflow"


def test_a_damaged_packed_log_gives_what_can_be_unpacked_and_says_that_there_was_more(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    packed = gzip.compress(LINES)
    for damaged in (packed[: len(packed) // 2], packed[:-6] + bytes(6)):
        path.write_bytes(damaged)
        log = open_log(path)
        assert 100 < len(list(log)) <= 2000
        assert "what follows could not be unpacked" in str(log.unreadable.reasons[0])
        assert log.unreadable.unreadable >= 1


def test_a_packed_log_of_which_nothing_can_be_unpacked_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(LINES)[:12])
    with pytest.raises(CliError, match="what follows could not be unpacked"):
        open_log(path)


def test_what_is_not_there_or_no_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        open_log(tmp_path / "absent.log")
    with pytest.raises(CliError, match="is a directory: name a log file in it"):
        open_log(tmp_path)


def test_a_pipe_is_refused_with_what_to_do(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(LINES,))
    writer.start()
    with pytest.raises(CliError, match="is a pipe, and a log is read more than once: save it to a file first"):
        open_log(pipe)
    writer.join(30)


def test_an_empty_or_a_foreign_file_is_an_error_and_never_a_quiet_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for body, message in (
        (b"", "the log is empty"),
        (gzip.compress(b""), "the log is empty"),
        (b"hello\n", "no log that"),
    ):
        path.write_bytes(body)
        with pytest.raises(CliError, match=message):
            open_log(path)


def test_a_format_may_be_named_and_a_wrong_one_reads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LINES)
    assert open_log(path, format="jsonl").reader_name == "jsonl"
    with pytest.raises(CliError, match="nothing could be read as megatron"):
        list(open_log(path, format="megatron"))
    with pytest.raises(UsageError, match=r"no log format 'excel'; the formats are .*jsonl"):
        open_log(path, format="excel")


def test_mappings_are_read_from_the_command_line_and_refused_with_an_example() -> None:
    assert mapping_of(["loss=train/loss", "lr = a=b"]) == {"loss": "train/loss", "lr": "a=b"}
    for wrong in ("loss", "loss=", "=loss"):
        with pytest.raises(UsageError, match="must be METRIC=COLUMN, such as loss=train/loss"):
            mapping_of([wrong])
    with pytest.raises(UsageError, match="--map gives loss two columns, 'a' and 'b'"):
        mapping_of(["loss=a", "loss=b"])


def test_a_mapping_that_cannot_be_followed_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LINES)
    assert next(iter(open_log(path, mapping={"objective": "loss"}))).scalars == {"objective": 1.0}
    with pytest.raises(UsageError, match="no metric name"):
        open_log(path, mapping={"My Loss": "loss"})
    with pytest.raises(UsageError, match="no column is called 'los'; the log has: loss, step"):
        list(open_log(path, mapping={"loss": "los"}))
