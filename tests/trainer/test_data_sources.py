"""Sources of every kind: the same samples wherever they lie, and errors that say where."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trimtab_contract.data_position import Order
from trimtab_trainer.config import DataConfig, PackingConfig, SourceConfig, SourceKind
from trimtab_trainer.data import DataReader, Windows, targets_of
from trimtab_trainer.errors import BadConfig, DataUnreadable


def opened(config: DataConfig, *, sequence: int = 4, batch: int = 2, **others: Any) -> Windows:
    reader = DataReader(config, sequence=sequence, global_batch=batch, **others)
    return Windows(*reader.opened())


def problems_of(config: DataConfig, **others: Any) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        opened(config, **others)
    return caught.value.problems


def write_tokens(path: Path, tokens: list[int]) -> Path:
    path.write_bytes(np.array(tokens, dtype="<u2").tobytes())
    return path


def write_lines(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
    return path


def test_a_uint16_file_is_read_as_little_endian_token_ids(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "train.bin", list(range(300, 309)))
    windows = opened(DataConfig(path=str(path), kind=SourceKind.UINT16), vocabulary=1000)
    assert windows.read(0).tolist() == [[300, 301, 302, 303, 304], [304, 305, 306, 307, 308]]
    body = path.read_bytes()
    assert windows.digest(0) == hashlib.sha256(body[:10] + body[8:18]).hexdigest()
    assert windows.window_digest(0) == windows.digest(0)


def test_a_token_that_the_model_does_not_know_is_refused_with_its_place(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "train.bin", [1, 2, 3, 4, 5, 6, 999, 8, 9])
    windows = opened(DataConfig(path=str(path), kind=SourceKind.UINT16), vocabulary=256)
    with pytest.raises(DataUnreadable, match=r"train\.bin has token 999 at token 6, and model\.vocabSize is 256"):
        windows.read(0)


def test_half_a_token_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    write_tokens(tmp_path / "part-0.bin", list(range(20)))
    (tmp_path / "part-1.bin").write_bytes(bytes(11))
    (problem,) = problems_of(DataConfig(path=str(tmp_path / "part-*.bin"), kind=SourceKind.UINT16))
    assert problem.startswith("data.path: ")
    assert "part-1.bin has 11 bytes, which are no whole number of uint16 tokens" in problem


def test_files_that_fit_a_pattern_are_one_source_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, first, count in (("part-1", 3, 4), ("part-0", 0, 3), ("part-2", 7, 6)):
        (tmp_path / name).write_bytes(bytes(range(first, first + count)))
    windows = opened(DataConfig(path=str(tmp_path / "part-*")), batch=1)
    assert [windows.read(number).tolist() for number in range(3)] == [
        [[0, 1, 2, 3, 4]],
        [[4, 5, 6, 7, 8]],
        [[8, 9, 10, 11, 12]],
    ]


def test_json_lines_are_documents_with_a_separator_behind_each(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "docs.jsonl", "ab", "", "é", "xyz")
    windows = opened(DataConfig(path=str(path), kind=SourceKind.JSONL), sequence=9, batch=1)
    assert windows.read(0).tolist() == [[97, 98, 255, 0xC3, 0xA9, 255, 120, 121, 122, 255]]


def test_a_last_line_without_its_end_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"body": "abc"}\n{"body": "def"}')
    windows = opened(DataConfig(path=str(path), kind=SourceKind.JSONL, text_field="body"), sequence=7, batch=1)
    assert windows.read(0).tolist() == [[97, 98, 99, 255, 100, 101, 102, 255]]


def test_text_files_are_a_document_each(tmp_path: Path) -> None:
    for name, text in (("a.txt", "ab"), ("b.txt", ""), ("c.txt", "cde")):
        (tmp_path / name).write_text(text)
    config = DataConfig(path=str(tmp_path / "*.txt"), kind=SourceKind.TEXT, packing=PackingConfig(separator=300))
    windows = opened(config, sequence=3, batch=2, vocabulary=301)
    assert windows.read(0).tolist() == [[97, 98, 300, 99], [99, 100, 101, 300]]


@pytest.mark.parametrize("sequence", [1, 2, 3, 5, 11])
def test_documents_cut_anywhere_are_those_of_the_obvious_concatenation(tmp_path: Path, sequence: int) -> None:
    texts = ["a", "bcdefgh", "i", "jk", "l" * 13, "mno"]
    path = write_lines(tmp_path / "docs.jsonl", *texts)
    stream = [token for text in texts for token in (*text.encode(), 255)]
    windows = opened(DataConfig(path=str(path), kind=SourceKind.JSONL), sequence=sequence, batch=1)
    for sample in range(len(stream) // sequence):
        expected = [stream[(sample * sequence + place) % len(stream)] for place in range(sequence + 1)]
        assert windows.read(sample).tolist() == [expected]


def test_every_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"text": "fine and long enough"}\n{"text"\n{"body": "x"}\n\n{"text": 5}\n[1]\n')
    found = problems_of(DataConfig(path=str(path), kind=SourceKind.JSONL))
    assert [problem.split("docs.jsonl ")[1].split(": ")[0] for problem in found] == [f"line {n}" for n in range(2, 7)]
    assert all(problem.startswith("data.path: ") for problem in found)
    assert "is no object with a field 'text'" in found[1]
    assert "field 'text' must be text" in found[3]


def test_a_line_that_changes_under_the_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "docs.jsonl", "abcdefgh", "ijklmnop")
    windows = opened(DataConfig(path=str(path), kind=SourceKind.JSONL), sequence=4, batch=1)
    path.write_text(path.read_text().replace("ijkl", '","q'))
    with pytest.raises(DataUnreadable, match=r"docs\.jsonl line 2"):
        windows.read(2)


def test_a_file_that_is_no_text_is_an_error_that_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xffdefgh")
    windows = opened(DataConfig(path=str(tmp_path / "a.txt"), kind=SourceKind.TEXT))
    with pytest.raises(DataUnreadable, match=r"a\.txt has byte 255 at byte 3 of the document"):
        windows.read(0)


def test_what_is_wrong_with_any_source_is_said_of_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"ab")
    sources = (
        SourceConfig(path=str(tmp_path / "absent")),
        SourceConfig(path=str(tmp_path / "short")),
        SourceConfig(path=str(tmp_path / "none-*")),
    )
    found = problems_of(DataConfig(sources=sources), batch=0)
    assert [problem.split(":")[0] for problem in found] == [
        "globalBatch",
        "data.sources[0].path",
        "data.sources[1].path",
        "data.sources[2].path",
    ]
    assert "no file fits" in found[3]


def test_samples_of_several_sources_are_mixed_by_weight_each_in_its_own_order(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    write_tokens(tmp_path / "b", list(range(200, 250)))
    sources = (
        SourceConfig(path=str(tmp_path / "a"), weight=0.75),
        SourceConfig(path=str(tmp_path / "b"), weight=0.25, kind=SourceKind.UINT16, name="tokens"),
    )
    windows = opened(DataConfig(sources=sources, order=Order.SHUFFLED, seed=5), batch=8)
    firsts = [int(sample[0]) for window in range(6) for sample in windows.read(window)]
    own = [first for first in firsts if first >= 200]
    assert len(own) == 12
    assert sorted(own) == list(range(200, 248, 4)), "one epoch of twelve samples"
    named = [windows.description.named(one) for one in windows.order.samples_of_window(0)]
    assert [sample for name, sample in named if name == "tokens"] == [(first - 200) // 4 for first in own[:2]]


def test_the_description_tells_data_from_others_and_not_where_they_lie(tmp_path: Path) -> None:
    def described(folder: str, body: bytes = bytes(64), name: str = "part", **others: Any) -> Any:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
        return opened(DataConfig(path=str(path), **others)).description

    saved = described("here")
    assert described("there").changes_since(saved) == ()
    size, samples = described("there", bytes(65)), described("there", bytes(68))
    assert [change.split(" of ")[0] for change in size.changes_since(saved)] == ["data: size", "data: sha256"]
    assert "data: samples of" in " ".join(samples.changes_since(saved))
    assert described("here", b"x" + bytes(63)).changes_since(saved)[0].startswith("data: sha256 of")
    assert described("here", name="other").changes_since(saved)[0].startswith("data: sha256 of")
    assert described("here", seed=1).changes_since(saved) == ("data.seed: was 0, is 1",)


def test_masked_targets_are_those_behind_a_separator(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "docs.jsonl", "ab", "c", "def")
    config = DataConfig(path=str(path), kind=SourceKind.JSONL, packing=PackingConfig(boundaries="masked"))
    windows = opened(config, sequence=8, batch=1)
    samples = windows.read(0)
    assert samples.tolist() == [[97, 98, 255, 99, 255, 100, 101, 102, 255]]
    assert targets_of(samples, windows.separator).tolist() == [[98, 255, -100, 255, -100, 101, 102, 255]]
    assert targets_of(samples, None).tolist() == [[98, 255, 99, 255, 100, 101, 102, 255]]
