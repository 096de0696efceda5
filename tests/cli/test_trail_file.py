"""A packed trail: the same bytes every time, and nothing in a stranger's file is believed before it is checked."""

import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rollback_trail import RUN, audit_objects, rollback_trail
from trimtab_cli import trail_file
from trimtab_cli.__main__ import main
from trimtab_cli.bucket_versions import Versioning, storage_report
from trimtab_cli.errors import CliError, NotFound
from trimtab_cli.trail_file import Refused, TrailFile, names_file, pack, unpack
from trimtab_contract.anchors import Anchor
from trimtab_contract.journal import record_hash
from trimtab_operator.signatures import AnchorSigner, AnchorVerifier

BODIES = tuple(rollback_trail())
SIGNER = AnchorSigner(Ed25519PrivateKey.generate())


def trail() -> TrailFile:
    return TrailFile(
        run=RUN,
        bodies=BODIES,
        objects={("audit", key): body for key, body in audit_objects(RUN).items()},
        anchor=SIGNER.sign(Anchor(run=str(RUN), seq=len(BODIES), hash=record_hash(BODIES[-1][1]))),
        keys=(AnchorVerifier.of_pem(SIGNER.pem),),
        vouched=(3, record_hash(BODIES[2][1])),
        storage=storage_report(Versioning.OFF, {}),
        checkpoints=False,
    )


def test_what_is_packed_is_read_back_and_the_same_trail_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.zip", tmp_path / "other.zip"
    assert pack(one, trail()) == len(one.read_bytes())
    pack(other, trail())
    assert one.read_bytes() == other.read_bytes()
    read, packed = unpack(one), trail()
    for name in ("run", "bodies", "objects", "anchor", "vouched", "storage", "checkpoints"):
        assert getattr(read, name) == getattr(packed, name)
    assert [key.key_id for key in read.keys] == [SIGNER.key_id]


def test_what_is_too_large_for_any_trail_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_file, "MAX_MEMBER_BYTES", 100)
    with pytest.raises(CliError, match="no part of a trail may have over 100"):
        pack(tmp_path / "trail.zip", trail())


Change = Callable[[zipfile.ZipFile], None]


def member(name: str, body: bytes = b"x", **fields: int) -> Change:
    def add(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = 0o100644 << 16
        for field, value in fields.items():
            setattr(info, field, value)
        archive.writestr(info, body)

    return add


def absolute(archive: zipfile.ZipFile) -> None:
    member("/etc/passwd")(archive)


LINK = 0o120777 << 16
HOSTILE = {
    "path traversal": (member("journal/../../etc/passwd"), "no trail has a member called"),
    "absolute path": (absolute, "no trail has a member called '/etc/passwd'"),
    "another name": (member("contents.json.exe"), "no trail has a member called"),
    "twice": (member("journal/000000000003.json"), "two members called journal/000000000003.json"),
    "link": (member(f"objects/{'a' * 64}", external_attr=LINK), "is no plain file"),
    "bomb": (member(f"objects/{'a' * 64}", b"0" * 10**7, compress_type=zipfile.ZIP_DEFLATED), "is compressed"),
    "not listed": (member(f"objects/{'a' * 64}"), "is not what it is called by"),
    "one record more": (member("journal/000000000099.json"), "records were packed"),
    "no key": (member(f"keys/{'a' * 64}.pem"), "cannot be read"),
}


@pytest.mark.parametrize(("change", "says"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_file_is_refused_in_one_sentence(
    tmp_path: Path, change: Change, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trail.zip"
    pack(path, trail())
    with zipfile.ZipFile(path, "a") as archive:
        change(archive)
    with pytest.raises(Refused, match=says):
        unpack(path)
    monkeypatch.setattr(sys, "argv", ["trimtab", "audit", "verify", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert len([line for line in capsys.readouterr().err.splitlines() if line]) == 1


def test_members_that_claim_more_than_the_file_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trail.zip"
    pack(path, trail())
    whole = path.read_bytes()
    at = whole.rindex(b"PK\x01\x02")
    size = (2**31).to_bytes(4, "little")
    path.write_bytes(whole[: at + 20] + size + size + whole[at + 28 :])
    with pytest.raises(Refused, match="which is too many"):
        unpack(path)
    path.write_bytes(whole)
    monkeypatch.setattr(trail_file, "MAX_MEMBERS", 3)
    with pytest.raises(Refused, match="over 3 members"):
        unpack(path)


def test_a_name_that_ends_early_for_some_readers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trail.zip"
    pack(path, trail())
    path.write_bytes(path.read_bytes().replace(b"anchor.json", b"anchor\x00json"))
    with pytest.raises(Refused, match="no trail has a member called"):
        unpack(path)


@pytest.mark.parametrize("body", [b"", b"no archive", b"PK\x05\x06" + bytes(10)])
def test_what_is_no_archive_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "trail.zip"
    path.write_bytes(body)
    with pytest.raises(Refused, match="is damaged, or no archive"):
        unpack(path)
    with pytest.raises(NotFound, match="There is no file"):
        unpack(tmp_path / "gone.zip")


def test_every_flipped_bit_is_either_refused_or_leaves_the_trail_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "trail.zip"
    pack(path, trail())
    whole, honest = path.read_bytes(), unpack(path)
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            read = unpack(path)
        except CliError:
            continue
        assert (read.bodies, read.objects, read.anchor) == (honest.bodies, honest.objects, honest.anchor)


def test_a_file_of_a_newer_format_is_named_as_one(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member("contents.json", json.dumps({"format": "trimtab-trail/2"}).encode())(archive)
    path = tmp_path / "trail.zip"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(Refused, match="its format is 'trimtab-trail/2', and this version reads trimtab-trail/1"):
        unpack(path)


def test_a_file_is_told_from_a_job_and_from_a_run(tmp_path: Path) -> None:
    path = tmp_path / "trail"
    path.write_bytes(b"")
    assert names_file(str(path))
    assert names_file("demo-trail.zip")
    assert not names_file("demo")
    assert not names_file("default/demo/0b5c-uid")
