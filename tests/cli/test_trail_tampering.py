"""What can be done to a stored trail, done on a real S3 server beside a real API server: `verify` names the record."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from control_plane_fixture import ControlPlane
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from object_store_fixture import ADMIN, ObjectStoreServer
from rollback_trail import TrailOptions, audit_objects, rewritten, rollback_trail
from trimtab_cli.__main__ import app
from trimtab_cli.access import Access, Bodies
from trimtab_contract.anchors import Anchor, anchor_name
from trimtab_contract.journal import parse_record, record_hash
from trimtab_contract.keys import RunId, journal_record
from trimtab_operator.resources import API_VERSION, anchor_spec, custom_resource_definitions
from trimtab_operator.signatures import AnchorSigner
from typer.testing import CliRunner

LENGTH = len(rollback_trail())
HELD = next(seq for seq, body in rollback_trail() if parse_record(body).action == "Held")
ANCHORED = LENGTH - 2
"""The record that the anchor knows: two are behind it."""


@dataclass
class Trail:
    """One run's trail, its signed anchor, and `trimtab` as a reviewer with the public key runs it."""

    plane: ControlPlane
    server: ObjectStoreServer
    folder: Path
    run: RunId
    bucket: str
    versioned: bool
    signer: AnchorSigner

    def __post_init__(self) -> None:
        self.client = self.server.client()
        if self.versioned:
            enabled = {"Status": "Enabled"}
            self.client.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration=enabled)
        self.bodies = rollback_trail(TrailOptions(run=self.run))
        for seq, body in self.bodies:
            self.put(seq, body)
        for key, body in audit_objects(self.run).items():
            self.client.put_object(Bucket=self.bucket, Key=key, Body=body)
        self.key = self.folder / "public.pem"
        self.key.write_bytes(self.signer.pem)
        self.anchor(self.signer.sign(Anchor(run=str(self.run), seq=ANCHORED, hash=self.hash(ANCHORED))))

    def hash(self, seq: int) -> str:
        return record_hash(self.bodies[seq - 1][1])

    def put(self, seq: int, body: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=journal_record(self.run, seq), Body=body)

    def delete(self, seq: int) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=journal_record(self.run, seq))

    def anchor(self, anchor: Anchor) -> None:
        self.plane.apply(
            {
                "apiVersion": API_VERSION,
                "kind": "JournalAnchor",
                "metadata": {"name": anchor_name(self.run), "namespace": self.run.namespace},
                "spec": {name: one for name, one in anchor_spec(anchor, self.run).items() if one is not None},
            }
        )

    def environment(self) -> Mapping[str, str]:
        return {
            "TRIMTAB_AUDIT_ENDPOINT": self.server.endpoint,
            "TRIMTAB_AUDIT_BUCKET": self.bucket,
            "TRIMTAB_AUDIT_ACCESS_KEY_ID": ADMIN.access_key,
            "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "KUBECONFIG": str(self.plane.kubeconfig),
        }

    def trimtab(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["audit", *arguments], env=dict(self.environment()))

    def verify(self, *options: str) -> tuple[int, dict[str, Any]]:
        keys = options or (f"--public-key={self.key}",)
        result = self.trimtab("verify", str(self.run), "--without-checkpoints", "-o", "json", *keys)
        assert result.exit_code in {0, 1}, result.output
        return result.exit_code, json.loads(result.stdout)


Make = Callable[[bool], Trail]


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    definitions = custom_resource_definitions()
    control_plane.apply(*definitions)
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    return control_plane


@pytest.fixture
def make(plane: ControlPlane, object_store: ObjectStoreServer, tmp_path: Path) -> Make:
    def made(versioned: bool) -> Trail:
        run = RunId(plane.create_namespace("trail"), "demo", "u-1")
        signer = AnchorSigner(Ed25519PrivateKey.generate())
        return Trail(plane, object_store, tmp_path, run, object_store.new_bucket("audit"), versioned, signer)

    return made


def edit(trail: Trail) -> None:
    trail.put(8, trail.bodies[7][1].replace(b"agrees", b"differs"))


def delete(trail: Trail) -> None:
    trail.delete(5)


def reorder(trail: Trail) -> None:
    trail.put(6, trail.bodies[6][1])
    trail.put(7, trail.bodies[5][1])


def cut(trail: Trail) -> None:
    for seq in range(ANCHORED, LENGTH + 1):
        trail.delete(seq)


def cut_behind_the_anchor(trail: Trail) -> None:
    for seq in range(ANCHORED + 1, LENGTH + 1):
        trail.delete(seq)


def write_anew(trail: Trail) -> None:
    for seq, body in rewritten(trail.bodies, 12, time="2026-01-01T00:00:00.000001+00:00")[11:]:
        trail.put(seq, body)


def write_again(trail: Trail) -> None:
    trail.put(4, trail.bodies[3][1])


def replace_evidence(trail: Trail) -> None:
    policy, _ = audit_objects(trail.run)
    trail.client.put_object(Bucket=trail.bucket, Key=policy, Body=b"a kinder policy")


def swap_evidence(trail: Trail) -> None:
    (one, first), (other, second) = audit_objects(trail.run).items()
    trail.client.put_object(Bucket=trail.bucket, Key=one, Body=second)
    trail.client.put_object(Bucket=trail.bucket, Key=other, Body=first)


def forge_the_anchor(trail: Trail) -> None:
    forged = rewritten(trail.bodies, 12, time="2026-01-01T00:00:00.000001+00:00")
    for seq, body in forged[11:]:
        trail.put(seq, body)
    signed = trail.signer.sign(Anchor(run=str(trail.run), seq=ANCHORED, hash=trail.hash(ANCHORED)))
    head = record_hash(forged[-1][1])
    trail.anchor(Anchor(run=signed.run, seq=LENGTH, hash=head, signature=signed.signature))


POLICY, FROZEN = audit_objects(RunId("n", "demo", "u-1"))
PLAIN = (
    (edit, ("record 8: it was altered",)),
    (delete, ("record 5 is missing",)),
    (reorder, ("record 6: its content says sequence number 7", "record 7: its content says sequence number 6")),
    (cut, (f"record {ANCHORED} is missing, and its JournalAnchor knows its hash",)),
    (write_anew, (f"record {ANCHORED}: its hash is not the one in its JournalAnchor",)),
    (replace_evidence, (f"record 2: its evidence {POLICY} has another hash",)),
    (swap_evidence, (f"record 2: its evidence {POLICY} has another hash", f"record {HELD}: its evidence evidence/")),
    (forge_the_anchor, (f"the anchor of record {LENGTH} was forged: its signature is not by key",)),
)
VERSIONED = (
    (cut_behind_the_anchor, (f"record {ANCHORED + 1}: it was deleted", f"record {LENGTH}: it was deleted")),
    (write_again, ("record 4: it has 2 versions, and is written once",)),
    (write_anew, ("record 12: it has 2 versions", f"record {LENGTH}: it has 2 versions")),
    (replace_evidence, (f"object {POLICY}: it has 2 versions",)),
)


@pytest.mark.parametrize(("tamper", "named"), PLAIN, ids=lambda one: getattr(one, "__name__", ""))
def test_whatever_is_done_to_a_trail_is_found_and_the_record_named(
    make: Make, tamper: Callable[[Trail], None], named: tuple[str, ...]
) -> None:
    trail = make(False)
    tamper(trail)
    code, answer = trail.verify()
    assert (code, answer["verified"]) == (1, False)
    for words in named:
        assert any(words in problem for problem in answer["problems"]), answer["problems"]


@pytest.mark.parametrize(("tamper", "named"), VERSIONED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_bucket_that_keeps_versions_shows_what_the_anchor_cannot(
    make: Make, tamper: Callable[[Trail], None], named: tuple[str, ...]
) -> None:
    trail = make(True)
    code, honest = trail.verify()
    assert (code, honest["versioning"], honest["problems"]) == (0, "Enabled", [])
    tamper(trail)
    code, answer = trail.verify()
    assert (code, answer["verified"]) == (1, False)
    for words in named:
        assert any(words in problem for problem in answer["problems"]), answer["problems"]


def test_an_honest_trail_says_how_far_its_end_is_proved_and_what_a_bucket_without_versions_leaves_open(
    make: Make,
) -> None:
    trail = make(False)
    code, answer = trail.verify()
    assert (code, answer["problems"]) == (0, [])
    assert (answer["anchoredUntil"], answer["headSeq"]) == (ANCHORED, LENGTH)
    assert (answer["signature"], answer["signingKey"]) == ("Verified", trail.signer.key_id)
    shown = trail.trimtab("verify", str(trail.run), "--without-checkpoints").stdout
    assert f"record {ANCHORED} is vouched for by its JournalAnchor" in shown
    assert "the 2 behind it are known to the bucket alone" in shown
    assert "the bucket keeps no versions: that no record was replaced before it was anchored, or cut off" in shown
    assert f"the anchor names key {trail.signer.key_id}; give --public-key" in shown
    cut_behind_the_anchor(trail)
    code, answer = trail.verify()
    assert (code, answer["anchoredUntil"], answer["headSeq"], answer["versioning"]) == (0, ANCHORED, ANCHORED, "Off")


def test_after_a_change_of_keys_either_is_given_and_a_key_that_signed_nothing_is_not_enough(make: Make) -> None:
    trail = make(False)
    other = AnchorSigner(Ed25519PrivateKey.generate())
    path = trail.folder / "other.pem"
    path.write_bytes(other.pem)
    code, answer = trail.verify(f"--public-key={path}")
    assert code == 1
    assert f"is signed by key {trail.signer.key_id}, which is none of those given" in answer["problems"][0]
    assert trail.verify(f"--public-key={path}", f"--public-key={trail.key}")[0] == 0
    trail.anchor(Anchor(run=str(trail.run), seq=LENGTH, hash=trail.hash(LENGTH)))
    code, answer = trail.verify()
    assert (code, answer["problems"]) == (1, [f"the anchor of record {LENGTH} is not signed"])


@pytest.fixture
def growing(make: Make, monkeypatch: pytest.MonkeyPatch) -> Trail:
    """A trail that gets its last two records, and an anchor at the last one, just after somebody has read it."""
    trail, read = make(False), Access.journal
    cut_behind_the_anchor(trail)

    def journal(access: Access, run: RunId) -> Bodies:
        bodies = read(access, run)
        for seq, body in trail.bodies[ANCHORED:]:
            trail.put(seq, body)
        trail.anchor(trail.signer.sign(Anchor(run=str(trail.run), seq=LENGTH, hash=trail.hash(LENGTH))))
        return bodies

    monkeypatch.setattr(Access, "journal", journal)
    return trail


def test_a_run_that_goes_on_while_its_trail_is_read_is_not_taken_for_one_that_was_cut(growing: Trail) -> None:
    code, answer = growing.verify()
    assert (code, answer["problems"]) == (0, [])
    assert (answer["anchoredUntil"], answer["headSeq"]) == (ANCHORED, ANCHORED)
    code, answer = growing.verify()
    assert (code, answer["anchoredUntil"], answer["headSeq"]) == (0, LENGTH, LENGTH)


def test_the_file_of_a_run_that_goes_on_proves_itself(growing: Trail) -> None:
    file = growing.folder / "growing.zip"
    exported = growing.trimtab("export", str(growing.run), "-o", str(file), "--without-checkpoints")
    assert exported.exit_code == 0, exported.output
    result = growing.trimtab("verify", str(file), f"--public-key={growing.key}", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["problems"]) == (0, [])


def test_an_exported_trail_is_one_file_of_the_same_bytes_that_proves_itself_with_nothing_else(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = make(True)
    files = [trail.folder / f"{number}.zip" for number in range(2)]
    for file in files:
        options = ("--without-checkpoints", f"--public-key={trail.key}", "--json")
        result = trail.trimtab("export", str(trail.run), "-o", str(file), *options)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["records"] == LENGTH
    assert files[0].read_bytes() == files[1].read_bytes()
    alone = {"KUBECONFIG": "/nonexistent", "TRIMTAB_AUDIT_ENDPOINT": "http://127.0.0.1:9"}
    for keys in ([f"--public-key={trail.key}"], []):
        result = CliRunner().invoke(app, ["audit", "verify", str(files[0]), "-o", "json", *keys], env=alone)
        answer = json.loads(result.stdout)
        assert (result.exit_code, answer["problems"]) == (0, [])
        assert (answer["signature"], answer["anchoredUntil"], answer["versioning"]) == ("Verified", ANCHORED, "Enabled")
    edit(trail)
    swap_evidence(trail)
    trail.trimtab("export", str(trail.run), "-o", str(files[0]), "--without-checkpoints")
    result = CliRunner().invoke(app, ["audit", "verify", str(files[0]), "-o", "json"], env=alone)
    problems = " ".join(json.loads(result.stdout)["problems"])
    assert result.exit_code == 1
    for words in ("record 8: it was altered", f"{POLICY} has another hash", "record 8: it has 2 versions"):
        assert words in problems
