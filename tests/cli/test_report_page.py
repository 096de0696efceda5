"""`trimtab report` on a real S3 server: one page from a journal, an archive and a proof, read as a browser reads it."""

import json
import math
import uuid
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from object_store_fixture import ADMIN, ObjectStoreServer
from rollback_trail import INCIDENT, TrailOptions, audit_objects, rewritten, rollback_trail
from trimtab_cli.__main__ import app
from trimtab_contract import keys
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import MetricRecord, Vector, encode_archive
from typer.testing import CliRunner, Result

HOSTILE = '</p><script>alert("x")</script><img src="http://evil.example/x" onerror=alert(1)>'
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Every element with its attributes, the text, and tags that were left open."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def record(attempt: int, step: int, *, bad: bool = False) -> MetricRecord:
    heads = [20.0] * 12
    heads[7] = 140.0 if bad else 20.0
    loss = 8.1 if bad else 2.0 + step % 7 / 100
    grad_norm = math.nan if bad and step == 322 else 0.5 + step / 1e4
    return MetricRecord(
        attempt=attempt,
        step=step,
        window=step - 1,
        samples_seen=step,
        tokens_seen=step,
        time=1e9 + step,
        scalars={"loss": loss, "grad_norm": grad_norm},
        vectors={"qk_max_logit": Vector.pack((3, 4), heads)},
    )


RECORDS = ([record(1, step, bad=step >= 321) for step in range(1, 324)], [record(2, step) for step in range(301, 601)])


class Reviewer:
    """A run's journal and archive in buckets of their own; the job is deleted, and no cluster is there."""

    def __init__(self, server: ObjectStoreServer, folder: Path) -> None:
        self.run = RunId("default", "demo", str(uuid.uuid4()))
        self.client = server.client()
        self.audit, self.training = server.new_bucket("audit"), server.new_bucket("training")
        self.path = folder / "report.html"
        self.environment = {
            "TRIMTAB_AUDIT_ENDPOINT": server.endpoint,
            "TRIMTAB_AUDIT_BUCKET": self.audit,
            "TRIMTAB_AUDIT_ACCESS_KEY_ID": ADMIN.access_key,
            "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "TRIMTAB_CHECKPOINT_ENDPOINT": server.endpoint,
            "AWS_ACCESS_KEY_ID": ADMIN.access_key,
            "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "KUBECONFIG": "/nonexistent/kubeconfig",
        }
        manifests = tuple((f"{step}/manifest.json", str(step).encode()) for step in (0, 300, 320))
        for key, body in manifests:
            self.client.put_object(Bucket=self.training, Key=key, Body=body)
        self.bodies = rollback_trail(TrailOptions(run=self.run, manifests=manifests))
        self.keep(self.bodies)
        for key, body in audit_objects(self.run).items():
            self.client.put_object(Bucket=self.audit, Key=key, Body=body)

    def keep(self, bodies: Sequence[tuple[int, bytes]]) -> None:
        for seq, body in bodies:
            self.client.put_object(Bucket=self.audit, Key=keys.journal_record(self.run, seq), Body=body)

    def archive(self) -> None:
        for segment in RECORDS:
            first = segment[0]
            key = keys.records_segment("root", self.run, first.attempt, first.step, segment[-1].step)
            self.client.put_object(Bucket=self.training, Key=key, Body=encode_archive(segment))

    def report(self, name: str, *options: str) -> Result:
        arguments = ["report", name, "-o", str(self.path), "--checkpoints", f"s3://{self.training}/root", *options]
        result = CliRunner().invoke(app, arguments, env=self.environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def page(self) -> Page:
        return Page(self.path.read_text(encoding="utf-8"))


@pytest.fixture
def reviewer(object_store: ObjectStoreServer, tmp_path: Path) -> Reviewer:
    return Reviewer(object_store, tmp_path)


def test_a_page_tells_an_incident_of_a_deleted_job_with_its_numbers(reviewer: Reviewer) -> None:
    reviewer.archive()
    result = reviewer.report(INCIDENT)
    assert result.exit_code == 0, result.output
    page = reviewer.page()
    assert page.open == []
    for said in (
        "fired at step 323 (loss 8.1 is above 2.25 for 3 records)",
        "step 300 was restored",
        "windows 319 to 333 were skipped (12 measured as bad)",
        "the incident closed as Recovered (all rules green up to step 383)",
        "plan 1, then Quarantined: not chosen, newer than step 301",
        "layer 1 head 3",
        "1 not finite, the first at step 322",
        "attempt 1, abandoned",
        "Trail verified",
        "5 objects of evidence hashed",
    ):
        assert said in page.text, said
    drawings = [attributes["aria-label"] for tag, attributes in page.elements if tag == "svg"]
    assert all(drawings)
    assert any("grad_norm" in str(label) for label in drawings)


def test_a_page_needs_nothing_but_itself(reviewer: Reviewer) -> None:
    reviewer.archive()
    reviewer.report(str(reviewer.run))
    page = reviewer.page()
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not [attributes for _, attributes in page.elements if {"src", "href"} & attributes.keys()]
    content = reviewer.path.read_text()
    assert not [word for word in ("http://", "https://", "url(", "@import") if word in content]
    policy = next(one["content"] for tag, one in page.elements if tag == "meta" and "http-equiv" in one)
    assert str(policy).startswith("default-src 'none'")


def test_what_trainers_and_policies_say_is_text_and_never_markup(reviewer: Reviewer) -> None:
    restored = next(seq for seq, body in reviewer.bodies if b'"action":"Restored"' in body)
    reviewer.keep(rewritten(reviewer.bodies, restored, reason={"message": HOSTILE}))
    reviewer.archive()
    reviewer.report(INCIDENT)
    page = reviewer.page()
    assert HOSTILE in page.text
    assert not {tag for tag, _ in page.elements} & {"script", "img"}


def test_what_is_wrong_with_the_trail_stands_first_and_the_answer_is_no(reviewer: Reviewer) -> None:
    seq, body = reviewer.bodies[7]
    reviewer.keep([(seq, body.replace(b"agrees", b"differs"))])
    result = reviewer.report(INCIDENT)
    assert result.exit_code == 1
    page = reviewer.page()
    classes = [attributes.get("class") for tag, attributes in page.elements if tag in {"section", "header"}]
    assert classes[0] == "alarm"
    assert page.text.index("not verified") < page.text.index("Incident demo-a1-s321 of run")


def test_a_key_that_is_given_must_have_signed_the_anchor(reviewer: Reviewer, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    path = tmp_path / "anchors.pem"
    path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert reviewer.report(INCIDENT, "--public-key", str(path)).exit_code == 1
    text = reviewer.page().text
    assert "there is no JournalAnchor whose signature could be checked" in text
    assert "nothing outside the bucket vouches for the end" in text
    assert "the bucket keeps no versions" in text


def test_without_an_archive_the_page_says_so_and_tells_the_rest(reviewer: Reviewer) -> None:
    result = reviewer.report("demo", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["outcome"] == "Recovered"
    assert answer["charts"] == []
    assert {"name": "Fired at step", "value": "323"} in answer["facts"]
    assert [one["phase"] for one in answer["phases"]][:2] == ["Holding", "Diagnosing"]
    assert any("only those that were frozen" in note for note in answer["notes"])
    assert answer["bytes"] == reviewer.path.stat().st_size


def test_an_incident_that_is_not_there_is_named_with_those_that_are(reviewer: Reviewer) -> None:
    result = CliRunner().invoke(app, ["report", str(reviewer.run), "--incident", "x"], env=reviewer.environment)
    assert INCIDENT in str(result.exception)
