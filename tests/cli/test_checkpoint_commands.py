"""`trimtab checkpoint` on a real S3 server: which checkpoints a run has, and whether they are what was saved."""

import pytest
from job_laboratory import SHARD, Laboratory


def test_checkpoints_are_listed_with_state_size_and_the_reason_against_them(laboratory: Laboratory) -> None:
    rows = {row["step"]: row for row in laboratory.json("checkpoint", "list", "demo")}
    assert [row["state"] for row in rows.values()] == ["Committed", "Committed", "Quarantined"]
    assert rows[300]["size"] == len(SHARD) + len(laboratory.manifests[1][1])
    assert rows[300]["chosen"] is True
    assert rows[300]["knownSince"] < rows[320]["knownSince"]
    assert rows[320]["why"] == "newer than step 301"
    assert "the run is over" in rows[300]["kept"]
    assert rows[300]["mayBeDeleted"] is False
    assert "chosen: the newest one old enough" in laboratory.trimtab("checkpoint", "list", "demo").stdout


def test_whole_checkpoints_are_verified(laboratory: Laboratory) -> None:
    result = laboratory.trimtab("checkpoint", "verify", "demo")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("every hash agrees with the journal") == 2


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("shard-0.bin", SHARD[:-1] + b"x", "object shard-0.bin has another SHA-256"),
        ("shard-0.bin", SHARD[:-1], "has 699 bytes instead of 700"),
        ("shard-0.bin", None, "object shard-0.bin is gone"),
        ("manifest.json", b"{}", "its manifest is not the one whose hash the journal holds"),
        ("manifest.json", None, "its manifest is gone"),
    ],
)
def test_damage_to_a_checkpoint_is_found(laboratory: Laboratory, name: str, body: bytes | None, says: str) -> None:
    key = laboratory.manifests[1][0].replace("manifest.json", name)
    client = laboratory.store.client()
    if body is None:
        client.delete_object(Bucket=laboratory.training, Key=key)
    else:
        client.put_object(Bucket=laboratory.training, Key=key, Body=body)
    assert laboratory.trimtab("checkpoint", "verify", "demo", "0").exit_code == 0
    result = laboratory.trimtab("checkpoint", "verify", "demo", "300")
    assert result.exit_code == 1
    assert says in result.stdout
