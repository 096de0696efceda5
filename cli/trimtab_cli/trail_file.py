"""A trail in one file: a ZIP archive of plainly stored members, so that the same trail gives the same bytes anywhere.

Reading trusts nothing in it: only members that `pack` writes are known, each once, none compressed, so that nothing in
the file can unfold to more than the file's own size; nothing is ever written to disk under a member's name.
"""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from trimtab_contract.anchors import Anchor, decode_anchor, encode_anchor
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.errors import UNREADABLE, ContractError
from trimtab_contract.keys import RunId
from trimtab_operator.signatures import AnchorVerifier

from trimtab_cli.bucket_versions import StorageReport
from trimtab_cli.errors import CliError, NotFound

FORMAT = "trimtab-trail/1"
MAX_MEMBER_BYTES = 64 * 1024 * 1024
"""No record, evidence or manifest is larger."""
MAX_MEMBERS = 1_000_000

_CONTENTS, _ANCHOR = "contents.json", "anchor.json"
_MEMBER = re.compile(
    r"contents\.json|anchor\.json|journal/[0-9]{12}\.json|objects/[0-9a-f]{64}|keys/[0-9a-f]{64}\.pem", re.ASCII
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644 << 16


class Refused(CliError):
    """A file that is no trail, or not as it was packed."""


class PackedObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an object lay, and under which hash of its bytes the file has it."""

    store: str
    key: str
    sha256: str


class _Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    run: str
    records: int
    objects: tuple[PackedObject, ...]
    vouched: tuple[int, str] | None = None
    """The record that the TrainingJob's status knew."""
    storage: StorageReport | None = None
    """What the bucket's versions said when the trail was packed."""
    checkpoints: bool = True
    """Whether what lies in the checkpoint bucket was packed, too."""


@dataclass(frozen=True, slots=True)
class TrailFile:
    """All of a trail that a reviewer needs without the cluster and without S3."""

    run: RunId
    bodies: tuple[tuple[int, bytes], ...]
    objects: Mapping[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])
    """Bytes by store and key."""
    anchor: Anchor | None = None
    keys: tuple[AnchorVerifier, ...] = ()
    vouched: tuple[int, str] | None = None
    storage: StorageReport | None = None
    checkpoints: bool = True


def pack(path: Path, trail: TrailFile) -> int:
    """Write the file and return its size in bytes; raises CliError for a part that is too large, or where it cannot."""
    digests = {name: sha256_hex(body) for name, body in trail.objects.items()}
    contents = _Contents(
        format=FORMAT,
        run=str(trail.run),
        records=len(trail.bodies),
        objects=tuple(
            PackedObject(store=store, key=key, sha256=digests[store, key]) for store, key in sorted(trail.objects)
        ),
        vouched=trail.vouched,
        storage=trail.storage,
        checkpoints=trail.checkpoints,
    )
    members = {_CONTENTS: msgspec.json.format(msgspec.json.encode(contents, order="deterministic"), indent=1)}
    members |= {_ANCHOR: encode_anchor(trail.anchor)} if trail.anchor is not None else {}
    members |= {f"keys/{key.key_id}.pem": key.pem for key in trail.keys}
    members |= {f"journal/{seq:012d}.json": body for seq, body in trail.bodies}
    members |= {f"objects/{digests[name]}": body for name, body in trail.objects.items()}
    for name, body in members.items():
        if len(body) > MAX_MEMBER_BYTES:
            raise CliError(f"{name} has {len(body)} bytes, and no part of a trail may have over {MAX_MEMBER_BYTES}.")
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(members):
                archive.writestr(_member(name), members[name])
        return path.stat().st_size
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.") from error


def unpack(path: Path) -> TrailFile:
    """Read a file that `pack` wrote; raises Refused with one sentence for every other, NotFound for none."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = _checked_members(path, archive)
            return _read(path, {name: archive.read(info) for name, info in members.items()})
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {path}.") from error
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}.") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise Refused(f"{path} is no trail that `trimtab audit export` wrote: it is damaged, or no archive.") from error


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr = 3, _REGULAR_FILE
    return info


def _checked_members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Every member, before a byte of it is read."""
    members: dict[str, zipfile.ZipInfo] = {}
    left = path.stat().st_size
    if len(archive.infolist()) > MAX_MEMBERS:
        raise _refusal(path, f"it has over {MAX_MEMBERS} members")
    for info in archive.infolist():
        name = info.filename
        if not _MEMBER.fullmatch(info.orig_filename):
            raise _refusal(path, f"no trail has a member called {info.orig_filename[:100]!r}")
        if name in members:
            raise _refusal(path, f"it has two members called {name}")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise _refusal(path, f"its member {name} is compressed, which none of a trail is")
        if info.external_attr != _REGULAR_FILE:
            raise _refusal(path, f"its member {name} is no plain file")
        left -= info.file_size
        if info.file_size > MAX_MEMBER_BYTES or left < 0:
            raise _refusal(path, f"its member {name} says that it has {info.file_size} bytes, which is too many")
        members[name] = info
    return members


def _read(path: Path, members: Mapping[str, bytes]) -> TrailFile:
    if _CONTENTS not in members:
        raise _refusal(path, f"it has no {_CONTENTS}")
    contents = _decoded(path, members[_CONTENTS])
    try:
        run = RunId.parse(contents.run)
        anchor = decode_anchor(members[_ANCHOR]) if _ANCHOR in members else None
        keys = tuple(AnchorVerifier.of_pem(body) for body in _under("keys/", members).values())
    except (ContractError, ValueError) as error:
        raise _refusal(path, f"its run, anchor or public key cannot be read ({error})") from error
    bodies = tuple((int(name[:12]), body) for name, body in _under("journal/", members).items())
    if len(bodies) != contents.records:
        raise _refusal(path, f"{contents.records} records were packed, and {len(bodies)} are there")
    objects = _under("objects/", members)
    if any(sha256_hex(body) != name for name, body in objects.items()):
        raise _refusal(path, "an object in it is not what it is called by")
    if missing := {one.sha256 for one in contents.objects} ^ set(objects):
        raise _refusal(path, f"object {min(missing)} is in it and not in its contents, or the other way round")
    return TrailFile(
        run=run,
        bodies=bodies,
        objects={(one.store, one.key): objects[one.sha256] for one in contents.objects},
        anchor=anchor,
        keys=keys,
        vouched=contents.vouched,
        storage=contents.storage,
        checkpoints=contents.checkpoints,
    )


def _decoded(path: Path, body: bytes) -> _Contents:
    try:
        head: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        if head.get("format") != FORMAT:
            raise _refusal(path, f"its format is {head.get('format')!r:.50}, and this version reads {FORMAT}")
        return msgspec.json.decode(body, type=_Contents)
    except UNREADABLE as error:
        raise _refusal(path, f"its {_CONTENTS} cannot be read ({error})") from error


def _under(prefix: str, members: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name.removeprefix(prefix): members[name] for name in sorted(members) if name.startswith(prefix)}


def _refusal(path: Path, why: str) -> Refused:
    return Refused(f"{path} is no trail that `trimtab audit export` wrote: {why}.")


def names_file(argument: str) -> bool:
    """Whether an argument means a file: no name of a TrainingJob has a dot, and a run is rarely a path that exists."""
    return Path(argument).is_file() if "/" in argument else "." in argument
