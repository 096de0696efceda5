"""From the configuration to open sources: what is wrong with any of them is said of all at once."""

import fnmatch
import glob
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from trimtab_contract.data_description import DataDescription, SourceDescription

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.config import DataConfig, SourceConfig, SourceKind
from trimtab_trainer.data.blobs import Blob, FileBlob
from trimtab_trainer.data.documents import JsonLines, TextFiles
from trimtab_trainer.data.object_blobs import (
    SEQUENTIAL_BLOCK_BYTES,
    SHUFFLED_BLOCK_BYTES,
    BlockCache,
    ObjectBlob,
    Patience,
)
from trimtab_trainer.data.sources import Source, StreamSource
from trimtab_trainer.data.streams import DocumentTokens, FlatTokens, TokenStream
from trimtab_trainer.errors import BadConfig, StoreRefused

S3_SCHEME = "s3://"
_UINT16_BYTES = 2

StoreOf = Callable[[str], ObjectStore]
"""The store of a bucket, with the job's own credentials."""


def open_store(bucket: str) -> ObjectStore:
    """A bucket where the environment says that S3 is."""
    return ObjectStore(bucket)


class DataReader:
    """Opens the sources of a configuration."""

    def __init__(
        self,
        config: DataConfig,
        *,
        sequence: int,
        global_batch: int,
        world_size: int = 1,
        vocabulary: int = 256,
        store_of: StoreOf = open_store,
        patience: Patience | None = None,
    ) -> None:
        self._config = config
        self._sequence, self._global_batch, self._world_size = sequence, global_batch, world_size
        self._vocabulary = vocabulary
        self._store_of, self._patience = store_of, patience or Patience(0.0)
        self._cache = BlockCache(SEQUENTIAL_BLOCK_BYTES if config.sequential else SHUFFLED_BLOCK_BYTES)

    def opened(self) -> tuple[tuple[Source, ...], DataDescription]:
        """The sources and what they are.

        Raises:
            BadConfig: with every wrong field.
            DataUnreadable: the object store stayed away, or a file changed meanwhile.
        """
        problems: list[str] = []
        if self._sequence < 1:
            problems.append(f"model.sequence: {self._sequence} must be at least 1")
        if self._global_batch < 1 or self._global_batch % self._world_size:
            problems.append(f"globalBatch: {self._global_batch} must be a multiple of the {self._world_size} ranks")
        sources: list[Source] = []
        try:
            for field, source in self._config.fields_of_sources():
                try:
                    sources.append(self._source(field, source))
                except BadConfig as error:
                    problems += error.problems
            _raise_if_any(problems)
            return tuple(sources), self._description(sources)
        except BaseException:
            for source in sources:
                source.close()
            raise

    def _description(self, sources: Sequence[Source]) -> DataDescription:
        described: list[SourceDescription] = []
        for (_, config), source in zip(self._config.fields_of_sources(), sources, strict=True):
            identity = source.identity()
            described.append(
                SourceDescription(
                    name=source.name,
                    kind=config.identifying_kind,
                    weight=config.weight,
                    samples=source.samples,
                    size=identity.size,
                    sha256=identity.sha256,
                )
            )
        return DataDescription(
            order=self._config.order,
            seed=self._config.seed,
            global_batch=self._global_batch,
            sequence=self._sequence,
            sources=tuple(described),
            separator=self._config.masked_separator,
            attention_separator=self._config.attention_separator,
        )

    def _source(self, field: str, config: SourceConfig) -> Source:
        blobs = self._blobs(f"{field}.path", config.path)
        try:
            stream = self._stream(f"{field}.path", config, blobs)
            _raise_if_any(self._size_problems(field, config, stream))
        except BaseException:
            _close(blobs)
            raise
        return StreamSource(config.shown_name, blobs, stream, max(1, self._sequence), self._vocabulary)

    def _size_problems(self, field: str, config: SourceConfig, stream: TokenStream) -> list[str]:
        if self._sequence < 1 or stream.size > self._sequence:
            return []
        unit = "bytes" if config.kind is SourceKind.BYTES else "tokens"
        needs = f"one sample of {self._sequence} and its target do not fit"
        return [f"{field}.path: {config.path} has {stream.size} {unit}; {needs}"]

    def _stream(self, field: str, config: SourceConfig, blobs: Sequence[Blob]) -> TokenStream:
        if config.kind is SourceKind.BYTES:
            return FlatTokens(blobs, np.uint8)
        if config.kind is SourceKind.UINT16:
            _raise_if_any(
                f"{field}: {blob.name} has {blob.size} bytes, which are no whole number of uint16 tokens"
                for blob in blobs
                if blob.size % _UINT16_BYTES
            )
            return FlatTokens(blobs, np.uint16)
        separator = self._config.packing.separator
        if config.kind is SourceKind.JSONL:
            return DocumentTokens(JsonLines(blobs, config.text_field, field), separator)
        return DocumentTokens(TextFiles(blobs), separator)

    def _blobs(self, field: str, path: str) -> tuple[Blob, ...]:
        """The files that a path or pattern names, in the order of their names."""
        if path.startswith(S3_SCHEME):
            return self._objects(field, path)
        names = sorted(glob.glob(path)) if glob.has_magic(path) else [path]  # noqa: PTH207 a pattern from the root on
        if not names:
            raise BadConfig((f"{field}: no file fits {path}",))
        blobs: list[Blob] = []
        for name in names:
            try:
                blobs.append(FileBlob(Path(name)))
            except OSError as error:
                _close(blobs)
                raise BadConfig((f"{field}: {name} cannot be read: {error.strerror}",)) from error
        return tuple(blobs)

    def _objects(self, field: str, path: str) -> tuple[Blob, ...]:
        bucket, _, pattern = path.removeprefix(S3_SCHEME).partition("/")
        store = self._store_of(bucket)
        literal = re.split(r"[*?[]", pattern, maxsplit=1)[0]
        listed = self._patience.of(lambda: _listed(store, literal, field, path), path)
        keys = [key for key in listed if key == pattern or (literal != pattern and _fits(key, pattern))]
        if not keys:
            raise BadConfig((f"{field}: there is no object {path}",))
        return tuple(ObjectBlob(store, key, listed[key], self._cache, self._patience) for key in sorted(keys))


def _listed(store: ObjectStore, prefix: str, field: str, path: str) -> dict[str, int]:
    try:
        return store.list(prefix)
    except StoreRefused as error:
        reason = str(error).removeprefix("checkpoint.uri: ")
        raise BadConfig((f"{field}: {path} cannot be read: {reason}",)) from error


def _fits(key: str, pattern: str) -> bool:
    """Whether a key fits a pattern; as with files, `*` is no part of two folders."""
    return key.count("/") == pattern.count("/") and fnmatch.fnmatchcase(key, pattern)


def _raise_if_any(problems: Iterable[str]) -> None:
    if found := list(problems):
        raise BadConfig(found)


def _close(blobs: Sequence[Blob]) -> None:
    for blob in blobs:
        blob.close()
