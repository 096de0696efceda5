"""Windows of a byte file: the same samples for any number of ranks, and errors that name the field."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trimtab_contract.data_position import Order
from trimtab_trainer.data import ByteWindows
from trimtab_trainer.errors import BadConfig, DataUnreadable


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 samples of 8 bytes, nothing left over."""
    file = tmp_path_factory.mktemp("data") / "bytes"
    file.write_bytes(bytes(range(256)))
    return file


def test_the_inputs_of_a_sample_are_followed_by_one_more_byte_as_last_target(path: Path) -> None:
    windows = ByteWindows(path, sequence=8, global_batch=2)
    assert windows.read(1).tolist() == [list(range(16, 25)), list(range(24, 33))]
    assert windows.read(1).dtype == torch.int64


def test_the_target_of_the_files_last_byte_is_its_first(path: Path) -> None:
    windows = ByteWindows(path, sequence=8, global_batch=1)
    assert windows.read(31).tolist() == [[*range(248, 256), 0]]
    assert windows.read(32).tolist() == windows.read(0).tolist()


def test_a_left_over_end_of_the_file_is_the_last_target(tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(bytes(range(11)))
    windows = ByteWindows(file, sequence=5, global_batch=1)
    assert windows.order.sources[0].samples == 2
    assert windows.read(1).tolist() == [[5, 6, 7, 8, 9, 10]]


@given(st.sampled_from(Order), st.sampled_from([1, 2, 4, 8]), st.integers(0, 100), st.integers(0, 2**63))
def test_any_number_of_ranks_reads_the_same_window(
    path: Path, order: Order, world_size: int, window: int, seed: int
) -> None:
    def opened(rank: int, ranks: int) -> ByteWindows:
        return ByteWindows(path, sequence=8, global_batch=8, order=order, seed=seed, rank=rank, world_size=ranks)

    alone = opened(0, 1)
    shares = [opened(rank, world_size) for rank in range(world_size)]
    assert torch.equal(torch.cat([share.read(window) for share in shares]), alone.read(window))
    assert {share.window_digest(window) for share in shares} == {alone.window_digest(window)}
    assert torch.cat([share.positions(window) for share in shares]).tolist() == alone.positions(window).tolist()
    for each in (alone, *shares):
        each.close()


def test_the_digest_is_of_the_bytes_that_were_read_though_the_file_changed_since(tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(bytes(range(64)))
    windows = ByteWindows(file, sequence=8, global_batch=2, rank=1, world_size=2)
    read = bytes(windows.read(0).to(torch.uint8).flatten().tolist())
    file.write_bytes(bytes(64))
    assert windows.digest(0) == hashlib.sha256(read).hexdigest()
    assert windows.digest(1) == hashlib.sha256(bytes(9)).hexdigest()


def test_the_share_of_one_rank_alone_is_the_whole_window(path: Path) -> None:
    windows = ByteWindows(path, sequence=8, global_batch=4)
    assert windows.digest(3) == windows.window_digest(3)


def test_positions_are_absolute_and_never_repeat_in_a_later_epoch(path: Path) -> None:
    windows = ByteWindows(path, sequence=8, global_batch=8, rank=1, world_size=2)
    assert windows.positions(0).tolist() == [4, 5, 6, 7]
    assert windows.positions(4).tolist() == [36, 37, 38, 39]


def test_identity_changes_with_size_and_with_either_end(tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    seen = set[object]()
    for body in (b"a" * 64, b"a" * 65, b"b" + b"a" * 63, b"a" * 63 + b"b"):
        file.write_bytes(body)
        seen.add(ByteWindows(file, sequence=8, global_batch=1).identity())
    assert len(seen) == 4


def test_all_wrong_fields_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        ByteWindows(tmp_path / "absent", sequence=0, global_batch=3, world_size=2)
    fields = [problem.split(":")[0] for problem in caught.value.problems]
    assert fields == ["model.sequence", "globalBatch", "data.path"]
    assert "No such file" in caught.value.problems[2]


@pytest.mark.parametrize("kind", ["too small", "folder"])
def test_a_path_that_holds_no_sample_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(8))
    with pytest.raises(BadConfig, match=r"^data\.path: "):
        ByteWindows(path, sequence=8, global_batch=1)


def test_a_file_that_shrinks_is_an_error_and_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(bytes(1 << 16))
    windows = ByteWindows(file, sequence=8, global_batch=1)
    os.truncate(file, 100)
    with pytest.raises(DataUnreadable, match="shrank"):
        windows.read(4000)
