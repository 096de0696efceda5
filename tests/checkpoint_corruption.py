"""Ways in which a checkpoint goes wrong in a store, drawn at random; each changes what a reader would get."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
from trimtab_contract import keys
from trimtab_contract.checkpoints import decode_manifest, encode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.slice_index import SliceIndex, decode_index, encode_index, index_name
from trimtab_trainer.adapters.s3 import Destination, ObjectStore
from trimtab_trainer.errors import ObjectMissing

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint as it was saved: its reference, and every object by its name below the prefix."""

    reference: CheckpointReference
    objects: Mapping[str, bytes]

    @property
    def prefix(self) -> str:
        """What stands before the names of its objects."""
        return self.reference.key.removesuffix(keys.MANIFEST_NAME)

    @property
    def shards(self) -> list[str]:
        """The objects that hold tensors."""
        return [name for name in self.objects if name.endswith(".distcp")]

    @property
    def indexes(self) -> list[str]:
        """The objects that say which slices those have."""
        return [index_name(name) for name in self.shards]

    @property
    def others(self) -> list[str]:
        """All objects but those: their damage is of a kind of its own."""
        return [name for name in self.objects if name not in self.indexes]


def kept(store: ObjectStore, reference: CheckpointReference) -> Kept:
    """Everything of a checkpoint, read from the store."""
    prefix = reference.key.removesuffix(keys.MANIFEST_NAME)
    return Kept(reference, {key.removeprefix(prefix): store.get(key) for key in store.list(prefix)})


class AlteredStore(ObjectStore):
    """A store that holds what it is given: the part of the real one that restores ask."""

    def __init__(self) -> None:
        super().__init__("altered", endpoint="http://127.0.0.1:9", access_key="a", secret_key="b")
        self.content: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        if key not in self.content:
            raise ObjectMissing(f"there is no object {key}")
        return self.content[key]

    def fill(self, key: str, offset: int, length: int, into: Destination) -> int:
        """See `ObjectStore.fill`."""
        body = self.get(key)
        coming = memoryview(body)[offset : offset + length]
        while (room := into.room()) and coming:
            count = min(len(room), len(coming))
            room[:count] = coming[:count]
            into.take(count)
            coming = coming[count:]
        return len(body)


Objects = dict[str, bytes]
Corruption = Callable[[Random, Kept, Kept], Objects]
"""The objects of the first checkpoint after the accident; the second is another one of the same run."""


def _flipped_bit(random: Random, whole: Kept, _other: Kept) -> Objects:
    name = random.choice([name for name in whole.others if name != keys.MANIFEST_NAME])
    body = bytearray(whole.objects[name])
    body[random.randrange(len(body))] ^= 1 << random.randrange(8)
    return {**whole.objects, name: bytes(body)}


def _zeroed_page(random: Random, whole: Kept, _other: Kept) -> Objects:
    name = random.choice(whole.shards)
    body = whole.objects[name]
    pages = [begin for begin in range(0, len(body), PAGE_BYTES) if any(body[begin : begin + PAGE_BYTES])]
    begin = random.choice(pages)
    end = min(begin + PAGE_BYTES, len(body))
    return {**whole.objects, name: body[:begin] + bytes(end - begin) + body[end:]}


def _shard_of_another_step(random: Random, whole: Kept, other: Kept) -> Objects:
    name = random.choice(whole.shards)
    return {**whole.objects, name: other.objects[name]}


def _shards_exchanged_between_ranks(random: Random, whole: Kept, _other: Kept) -> Objects:
    first, second = random.sample(whole.shards, 2)
    return {**whole.objects, first: whole.objects[second], second: whole.objects[first]}


def _truncated(random: Random, whole: Kept, _other: Kept) -> Objects:
    name = random.choice(whole.others)
    body = whole.objects[name]
    return {**whole.objects, name: body[: random.randrange(len(body))]}


def _missing_object(random: Random, whole: Kept, _other: Kept) -> Objects:
    name = random.choice(whole.others)
    return {key: body for key, body in whole.objects.items() if key != name}


def _stale_manifest(_random: Random, whole: Kept, other: Kept) -> Objects:
    return {**whole.objects, keys.MANIFEST_NAME: other.objects[keys.MANIFEST_NAME]}


def _edited_manifest(random: Random, whole: Kept, other: Kept) -> Objects:
    """A shard of another step with a manifest that was rewritten to fit it, or a manifest that only says otherwise."""
    manifest = decode_manifest(whole.objects[keys.MANIFEST_NAME])
    name = random.choice(whole.shards)
    theirs = decode_manifest(other.objects[keys.MANIFEST_NAME]).objects[name]
    edited = random.choice(
        [
            msgspec.structs.replace(manifest, objects={**manifest.objects, name: theirs}),
            msgspec.structs.replace(manifest, learning_rate=manifest.learning_rate * random.uniform(1.1, 9)),
            msgspec.structs.replace(manifest, optimizer_steps=manifest.optimizer_steps + random.randrange(1, 99)),
            msgspec.structs.replace(manifest, skip=((0, random.randrange(1, 9)),)),
        ]
    )
    return {**whole.objects, name: other.objects[name], keys.MANIFEST_NAME: encode_manifest(edited)}


def _reverted_version(random: Random, whole: Kept, other: Kept) -> Objects:
    """The whole checkpoint, or all of it but the manifest, as of another step."""
    return (
        {**other.objects}
        if random.random() < 0.5
        else {**other.objects, keys.MANIFEST_NAME: whole.objects[keys.MANIFEST_NAME]}
    )


def _damaged_index(random: Random, whole: Kept, _other: Kept) -> Objects:
    """An index with a flipped bit, cut short, or gone."""
    name = random.choice(whole.indexes)
    body = whole.objects[name]
    if random.random() < 1 / 3:
        return {key: kept_body for key, kept_body in whole.objects.items() if key != name}
    if random.random() < 1 / 2:
        return {**whole.objects, name: body[: random.randrange(len(body))]}
    flipped = bytearray(body)
    flipped[random.randrange(len(body))] ^= 1 << random.randrange(8)
    return {**whole.objects, name: bytes(flipped)}


def _index_of_another_object(random: Random, whole: Kept, other: Kept) -> Objects:
    """An index that is sound, and that of another rank or step."""
    own, another = random.sample(whole.indexes, 2)
    source, name = (whole, another) if random.random() < 1 / 2 else (other, random.choice(whole.indexes))
    return {**whole.objects, own: source.objects[name]}


def _edited_index(random: Random, whole: Kept, _other: Kept) -> Objects:
    """An index that leaves a slice out, or says of one that it begins or ends elsewhere, or is another one.

    Half of the manifests say that this is the index that was saved.
    """
    shard = random.choice(whole.shards)
    name, manifest = index_name(shard), decode_manifest(whole.objects[keys.MANIFEST_NAME])
    slices = list(decode_index(whole.objects[name], shard, manifest.objects[shard]))
    one, by = random.randrange(len(slices)), random.choice([-1, 1]) * random.randrange(1, 1 << 20)
    part = slices[one]
    slices[one : one + 1] = random.choice(
        [
            [],
            [msgspec.structs.replace(part, offset=part.offset + by)],
            [msgspec.structs.replace(part, length=part.length + by)],
            [msgspec.structs.replace(part, sha256=slices[one - 1].sha256)],
            [part, part],
        ]
    )
    body = encode_index(SliceIndex(name=shard, sha256=manifest.objects[shard].sha256, slices=tuple(slices)))
    if random.random() < 1 / 2:
        return {**whole.objects, name: body}
    stored = msgspec.structs.replace(manifest.objects[name], size=len(body), sha256=sha256_hex(body))
    fitting = msgspec.structs.replace(manifest, objects={**manifest.objects, name: stored})
    return {**whole.objects, name: body, keys.MANIFEST_NAME: encode_manifest(fitting)}


INDEX_CORRUPTIONS: dict[str, Corruption] = {
    "damaged index": _damaged_index,
    "index of another object": _index_of_another_object,
    "edited index": _edited_index,
}
"""What torch's own reader does not read: it takes these for sound, and the tensors are."""

CORRUPTIONS: dict[str, Corruption] = {
    "flipped bit": _flipped_bit,
    "zeroed page": _zeroed_page,
    "shard of another step": _shard_of_another_step,
    "shards exchanged between ranks": _shards_exchanged_between_ranks,
    "truncated object": _truncated,
    "missing object": _missing_object,
    "stale manifest": _stale_manifest,
    "edited manifest": _edited_manifest,
    "reverted version": _reverted_version,
    **INDEX_CORRUPTIONS,
}


def written(objects: Objects, folder: Path) -> Path:
    """The same objects as files, for a reader of files."""
    for path in folder.iterdir():
        path.unlink()
    for name, body in objects.items():
        (folder / name).write_bytes(body)
    return folder
