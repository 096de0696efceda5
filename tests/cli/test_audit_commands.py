"""`trimtab audit` on a real S3 server, as a reviewer uses it: with the bucket and nothing else."""

import json
import re
import sys
import uuid
from collections.abc import Callable, Mapping

import pytest
from click.testing import Result
from object_store_fixture import ADMIN, ObjectStoreServer
from rollback_trail import INCIDENT, TrailOptions, audit_objects, rollback_trail
from trimtab_cli.__main__ import app, main
from trimtab_contract.journal import record_hash
from trimtab_contract.keys import RunId, journal_record
from typer.testing import CliRunner


class Audit:
    """One run's trail in a bucket of its own, and the command line pointed at it."""

    def __init__(self, server: ObjectStoreServer) -> None:
        self.run = RunId("default", "demo", str(uuid.uuid4()))
        self.bucket = server.new_bucket("audit")
        self.client = server.client()
        self.environment: Mapping[str, str] = {
            "TRIMTAB_AUDIT_ENDPOINT": server.endpoint,
            "TRIMTAB_AUDIT_BUCKET": self.bucket,
            "TRIMTAB_AUDIT_ACCESS_KEY_ID": ADMIN.access_key,
            "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "KUBECONFIG": "/nonexistent/kubeconfig",
        }
        for seq, body in rollback_trail(TrailOptions(run=self.run)):
            self.put(journal_record(self.run, seq), body)
        for key, body in audit_objects(self.run).items():
            self.put(key, body)

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=body)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def trimtab(self, *arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={**self.environment, **environment})


Program = Callable[..., tuple[int, str]]


@pytest.fixture
def program(audit: Audit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The program as a shell starts it: exit code and standard error."""

    def run(*arguments: str, **environment: str) -> tuple[int, str]:
        for name, value in {**audit.environment, **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["trimtab", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture
def audit(object_store: ObjectStoreServer) -> Audit:
    return Audit(object_store)


def verify(audit: Audit) -> tuple[int, dict[str, object]]:
    result = audit.trimtab("audit", "verify", str(audit.run), "--without-checkpoints", "-o", "json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def test_an_honest_trail_is_verified(audit: Audit) -> None:
    code, answer = verify(audit)
    assert code == 0
    assert answer["verified"] is True
    assert answer["evidenceFetched"] == 2
    assert answer["evidenceUnchecked"] == 3
    assert answer["intactUntil"] == answer["headSeq"] == answer["records"]


def test_a_trail_whose_checkpoints_nobody_can_find_is_proved_as_far_as_it_goes_and_not_called_verified(
    audit: Audit,
) -> None:
    result = audit.trimtab("audit", "verify", str(audit.run), "-o", "json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (answer["verified"], answer["evidenceFetched"], answer["evidenceUnchecked"]) == (False, 2, 3)
    assert answer["intactUntil"] == answer["headSeq"]
    (problem,) = answer["problems"]
    assert problem.startswith("3 objects in the checkpoint bucket are not proved")
    assert "--without-checkpoints" in problem


def test_a_record_changed_in_the_bucket_is_found(audit: Audit) -> None:
    key = journal_record(audit.run, 8)
    body = audit.client.get_object(Bucket=audit.bucket, Key=key)["Body"].read()
    audit.put(key, body.replace(b"agrees", b"differs"))
    code, answer = verify(audit)
    assert code == 1
    assert answer["intactUntil"] == 7
    told = audit.trimtab("audit", "show", str(audit.run)).stderr
    assert "the chain is broken behind record 7: do not trust what is told of it and of what follows" in told


def test_a_record_taken_out_of_the_bucket_is_found(audit: Audit) -> None:
    audit.delete(journal_record(audit.run, 5))
    code, answer = verify(audit)
    assert code == 1
    assert "record 5 is missing" in str(answer["problems"])


def test_evidence_that_was_changed_or_lost_is_found(audit: Audit) -> None:
    policy, frozen = audit_objects(audit.run)
    audit.put(policy, b"another text")
    audit.delete(frozen)
    code, answer = verify(audit)
    assert code == 1
    assert f"{policy} has another hash" in str(answer["problems"])
    assert f"{frozen} is gone" in str(answer["problems"])


def test_the_trail_of_a_deleted_job_is_found_by_its_name(audit: Audit) -> None:
    result = audit.trimtab("audit", "show", "demo")
    assert result.exit_code == 0, result.stderr
    assert "operator operator-1 leads this run" in result.stdout
    assert "broken" not in result.stderr
    assert len(result.stdout.splitlines()) == len(rollback_trail())


def test_a_trail_as_json_holds_what_a_reviewer_would_check(audit: Audit) -> None:
    shown = audit.trimtab("audit", "show", str(audit.run), "-o", "json").stdout
    rows = json.loads(shown)
    bodies = rollback_trail(TrailOptions(run=audit.run))
    assert [row["seq"] for row in rows] == [seq for seq, _ in bodies]
    assert [row["hash"] for row in rows] == [record_hash(body) for _, body in bodies]
    assert [row["prev"] for row in rows[1:]] == [row["hash"] for row in rows[:-1]]
    fired = next(row for row in rows if row["action"] == "IncidentOpened")
    assert fired["after"]["latch"]["firstBadStep"] == 321
    assert fired["actor"]["podUid"] == "p-1"
    assert fired["says"]
    assert not [name for name in re.findall(r'"(\w+)":', shown) if "_" in name]


def test_a_run_without_incidents_says_so(audit: Audit, program: Program) -> None:
    calm = RunId("default", "calm", str(uuid.uuid4()))
    first = rollback_trail(TrailOptions(run=calm))[0][1]
    audit.put(journal_record(calm, 1), first)
    for which, says in (("last", "has had no incident."), ("x", "has had no incident x; it has had none.")):
        code, error = program("audit", "show", str(calm), "--incident", which)
        assert (code, says in error) == (1, True), error


def test_an_incident_is_told_as_a_story(audit: Audit) -> None:
    result = audit.trimtab("audit", "show", str(audit.run), "--incident", "last")
    assert result.exit_code == 0, result.stderr
    assert "Windows 319 to 333 are skipped" in result.stdout
    answer = json.loads(audit.trimtab("audit", "show", str(audit.run), "--incident", INCIDENT, "-o", "json").stdout)
    assert answer["incident"] == INCIDENT


def test_two_deleted_jobs_of_one_name_must_be_told_apart(audit: Audit, program: Program) -> None:
    other = RunId("default", "demo", str(uuid.uuid4()))
    audit.put(journal_record(other, 1), rollback_trail()[0][1])
    code, error = program("audit", "show", "demo")
    assert code == 2
    assert str(audit.run) in error
    assert str(other) in error


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "says"),
    [
        (("default/gone/u-9",), {}, 1, "Run default/gone/u-9 has no journal"),
        (("a/b",), {}, 2, "neither a TrainingJob's name nor NAMESPACE/NAME/UID"),
        (("demo", "--incident", "x"), {}, 1, "has had no incident x; it has had demo-a1-s321"),
        (("demo",), {"TRIMTAB_AUDIT_BUCKET": "nowhere"}, 1, "The bucket nowhere does not exist"),
        (("demo",), {"TRIMTAB_AUDIT_SECRET_ACCESS_KEY": "wrong"}, 1, "the secret key is wrong"),
        (("demo",), {"TRIMTAB_AUDIT_ACCESS_KEY_ID": "wrong"}, 1, "the access key is wrong"),
        (("demo",), {"TRIMTAB_AUDIT_ENDPOINT": "http://127.0.0.1:9"}, 1, "does not answer"),
        (("demo",), {"TRIMTAB_AUDIT_BUCKET": ""}, 2, "give --audit-bucket"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    program: Program, arguments: tuple[str, ...], environment: dict[str, str], code: int, says: str
) -> None:
    ended, error = program("audit", "show", *arguments, **environment)
    assert ended == code, error
    errors = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert says in errors[0]
    assert "Traceback" not in error
