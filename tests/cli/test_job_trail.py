"""The trail of a job is found through the operator's Deployment and held against the job's status and checkpoints."""

from dataclasses import replace
from pathlib import Path

import pytest
from job_laboratory import Laboratory
from operator_objects import training_job
from rollback_trail import going, rollback_trail
from trimtab_cli.access import Access, Bodies
from trimtab_contract.keys import RunId, journal_record


def test_the_audit_bucket_is_found_through_the_operator(laboratory: Laboratory) -> None:
    answer = laboratory.json("audit", "verify", "demo")
    assert answer["problems"] == []
    assert answer["vouchedUntil"] == answer["headSeq"]
    assert answer["evidenceFetched"] == 5


@pytest.mark.parametrize("packed", [False, True])
def test_a_checkpoint_that_is_deleted_while_its_trail_is_read_is_not_missed(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packed: bool
) -> None:
    read, client = Access.journal, laboratory.store.client()

    def journal(access: Access, run: RunId) -> Bodies:
        bodies = read(access, run)
        if len(bodies) == len(rollback_trail()):
            seq, body = going(list(bodies), 300)[-1]
            client.put_object(Bucket=laboratory.audit, Key=journal_record(run, seq), Body=body)
            client.delete_object(Bucket=laboratory.training, Key=laboratory.manifests[1][0])
        return bodies

    monkeypatch.setattr(Access, "journal", journal)
    trail = "demo"
    if packed:
        trail = str(tmp_path / "trail.zip")
        assert laboratory.trimtab("audit", "export", "demo", f"--output={trail}").exit_code == 0
    answer = laboratory.json("audit", "verify", trail)
    assert (answer["problems"], answer["evidenceDeleted"], answer["evidenceFetched"]) == ([], 1, 4)


@pytest.mark.parametrize("newer", [False, True])
def test_the_trail_of_a_deleted_job_is_verified_but_for_its_checkpoints(laboratory: Laboratory, newer: bool) -> None:
    namespace = laboratory.namespace
    laboratory.plane.kubectl("delete", "tj", "demo", f"-n={namespace}")
    if newer:
        laboratory.plane.apply(training_job(namespace=namespace))
    # Given as a run, it is looked for in its own namespace and not in the chosen one.
    elsewhere = replace(laboratory, namespace="default")
    answer = elsewhere.json("audit", "verify", str(laboratory.run))
    (problem,) = answer["problems"]
    assert answer["verified"] is False
    assert ("is a newer one" if newer else f"in namespace {namespace}") in problem
    assert "--without-checkpoints" in problem
    audited = elsewhere.trimtab("audit", "verify", str(laboratory.run), "--without-checkpoints")
    assert audited.exit_code == 0, audited.stdout


def test_the_run_of_another_namespace_is_verified_with_its_own_job(laboratory: Laboratory) -> None:
    answer = replace(laboratory, namespace="default").json("audit", "verify", str(laboratory.run))
    assert answer["problems"] == []
    assert answer["vouchedUntil"] == answer["headSeq"]


def test_a_trail_whose_end_was_cut_off_is_found_through_the_status(laboratory: Laboratory) -> None:
    last = len(rollback_trail())
    laboratory.store.client().delete_object(Bucket=laboratory.audit, Key=journal_record(laboratory.run, last))
    answer = laboratory.json("audit", "verify", "demo")
    assert answer["verified"] is False
    assert f"record {last} is missing" in str(answer["problems"])
