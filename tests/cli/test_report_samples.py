"""The batches of the suspect steps on an incident's page: which samples, of which source, and what was read."""

import json
from typing import Any

from trimtab_cli.report.samples import MOST_SAMPLES_NAMED, decode_batches, sample_views
from trimtab_cli.report.views import Block


def body(*steps: dict[str, Any]) -> bytes:
    return json.dumps({"kind": "Batches", "attempt": 2, "ranks": 1, "data": None, "order": {}, "steps": steps}).encode()


def shown(*steps: dict[str, Any]) -> Block:
    found = decode_batches(body(*steps))
    assert found is not None
    (view,) = sample_views([found, found])
    return view


def test_samples_are_named_by_source_in_batch_order_with_the_hash_of_what_each_rank_read() -> None:
    step = {"step": 7, "window": 9, "samples": [["web", 5], ["books", 0], ["web", 3]], "positions": [27, 29]}
    view = shown({**step, "sha256ByRank": {"10": "cd" * 32, "2": "ab" * 32}})
    assert view.facts[0].value == "2"
    assert view.tables[0].rows == (("7", "9", "web: 5, 3; books: 0", f"rank 2 {'ab' * 8}; rank 10 {'cd' * 8}"),)


def test_what_was_not_logged_is_said() -> None:
    view = shown({"step": 7, "window": 9, "samples": None, "sha256ByRank": {}})
    assert view.tables[0].rows[0][2:] == ("not named", "not logged")


def test_of_a_large_batch_the_first_samples_are_named_and_the_rest_is_counted() -> None:
    many = [["web", number] for number in range(MOST_SAMPLES_NAMED + 3)]
    hashes = {str(rank): "ab" * 32 for rank in range(9)}
    _, _, samples, read = shown({"step": 7, "window": 9, "samples": many, "sha256ByRank": hashes}).tables[0].rows[0]
    assert samples.endswith(f"{MOST_SAMPLES_NAMED - 1}; 3 more")
    assert read.endswith("; 5 more ranks")


def test_evidence_of_another_kind_is_none_of_this() -> None:
    for other in (b"{", b'{"kind": "Placement", "pods": []}', b'{"attempt": 1}\n{"attempt": 2}', b"[]"):
        assert decode_batches(other) is None
