"""Where the training data lie, in which order they are read, and how documents are packed into samples."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from trimtab_contract.data_position import Order
from trimtab_contract.errors import InvalidPosition
from trimtab_contract.mixture import Mixture

from trimtab_trainer.fields import SEEDS, raise_if_any, within
from trimtab_trainer.mapping import UNLESS

LARGEST_TOKEN = 65_535
FIRST_BYTE_BEYOND_TEXT = 0xF5
"""Bytes from here on are no part of any UTF-8 text (RFC 3629)."""


class SourceKind(StrEnum):
    """What the files of a source hold."""

    BYTES = "bytes"
    UINT16 = "uint16"
    JSONL = "jsonl"
    TEXT = "text"

    @property
    def has_documents(self) -> bool:
        """Whether documents are put behind each other with a separator."""
        return self in {SourceKind.JSONL, SourceKind.TEXT}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One source of a mixture."""

    path: str
    """A file or a pattern such as `/data/part-*.bin`, on disk or `s3://bucket/key`; the files in order of their names
    are one source."""

    kind: SourceKind = SourceKind.BYTES
    """`bytes`: each byte is a token. `uint16`: little-endian token ids. `jsonl`: a JSON object a line, whose text is a
    document. `text`: each file is a document."""

    weight: float = 1.0
    """Share of the samples, relative to the other sources' weights."""

    name: str = ""
    """What reports call it; the path if nothing is given."""

    text_field: str = "text"
    """The field of a `jsonl` line that has the text."""

    def __post_init__(self) -> None:
        raise_if_any(
            (
                None if self.path else "path: empty; name a file, a pattern or s3://bucket/key",
                None if 0 < self.weight < float("inf") else f"weight: {self.weight} must be a number above 0",
                None if self.text_field else "text_field: empty; name the field that has the text",
            )
        )

    @property
    def shown_name(self) -> str:
        """What people know the source by."""
        return self.name or self.path

    @property
    def identifying_kind(self) -> str:
        """The kind, and of lines the field that is read: with another one it is another source."""
        return f"{self.kind}:{self.text_field}" if self.kind is SourceKind.JSONL else str(self.kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingConfig:
    """How documents share a sample."""

    boundaries: Literal["open", "masked"] = "open"
    """`masked`: the first token of a document is no target of the token before it."""

    separator: int = 255
    """The token behind every document of `jsonl` and `text`, and with `masked` of `uint16` files too."""

    attention: Literal["open", "masked"] = "open"
    """`masked`: a token attends to its own document only; else, within a sample, to earlier ones too."""

    def __post_init__(self) -> None:
        raise_if_any(
            (
                None
                if 0 <= self.separator <= LARGEST_TOKEN
                else f"separator: {self.separator} must be a token from 0 to {LARGEST_TOKEN}",
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What is trained on: one source by `path`, or several by `sources`."""

    path: str | None = field(default=None, metadata={UNLESS: "sources"})
    """The files of the only source; see `SourceConfig.path`."""

    kind: SourceKind = SourceKind.BYTES
    """What they hold."""

    text_field: str = "text"
    """The field of a `jsonl` line that has the text."""

    sources: tuple[SourceConfig, ...] = ()
    """Several sources, mixed by weight."""

    order: Order = Order.SEQUENTIAL
    """`sequential`, or `shuffled` by a keyed permutation of each source."""

    seed: int = 0
    """Key of the permutations."""

    packing: PackingConfig = field(default_factory=PackingConfig)

    def __post_init__(self) -> None:
        raise_if_any((within("seed", self.seed, *SEEDS),))

    def problems(self, vocabulary: int) -> list[str]:
        """What is wrong with the fields together, beside a model that knows so many tokens."""
        missing = self._missing()
        if missing is not None:
            return [f"data.{missing}"]
        found = [*self._names(), self._weights(), *self._packing(), self._separator(vocabulary)]
        return [f"data.{problem}" for problem in found if problem is not None]

    def fields_of_sources(self) -> tuple[tuple[str, SourceConfig], ...]:
        """Every source with the field that it is configured by."""
        if self.sources:
            return tuple((f"data.sources[{number}]", source) for number, source in enumerate(self.sources))
        assert self.path is not None
        return (("data", SourceConfig(path=self.path, kind=self.kind, text_field=self.text_field)),)

    @property
    def sequential(self) -> bool:
        """Whether samples of a source are read as they follow each other."""
        return self.order is Order.SEQUENTIAL

    @property
    def masked_separator(self) -> int | None:
        """The token behind which no target is counted, or None where all are."""
        return self.packing.separator if self.packing.boundaries == "masked" else None

    @property
    def attention_separator(self) -> int | None:
        """The token behind which attention sees nothing of what came before it, or None where it sees all."""
        return self.packing.separator if self.packing.attention == "masked" else None

    def _missing(self) -> str | None:
        if self.sources and self.path is not None:
            return "path: give it or sources, not both"
        if not self.sources and not self.path:
            return "path: missing; it must be given, or sources"
        if self.sources and (self.kind, self.text_field) != (SourceKind.BYTES, "text"):
            return "kind: with sources, kind and textField belong to each of them"
        return None

    def _names(self) -> list[str]:
        names = [source.shown_name for source in self.sources]
        return [
            f"sources[{number}].name: {name!r} is the name of sources[{names.index(name)}], too; give each its own"
            for number, name in enumerate(names)
            if names.index(name) < number
        ]

    def _weights(self) -> str | None:
        try:
            Mixture.of([source.weight for source in self.sources] or [1.0])
        except InvalidPosition as error:
            return f"sources: {error}"
        return None

    def _packing(self) -> list[str]:
        kinds = [(place.removeprefix("data."), source.kind) for place, source in self.fields_of_sources()]
        problems = [
            f"packing.{field}: masked needs documents, and {place} is plain bytes"
            for field, separator in (("boundaries", self.masked_separator), ("attention", self.attention_separator))
            if separator is not None
            for place, kind in kinds
            if kind is SourceKind.BYTES
        ]
        separator = self.packing.separator
        if separator < FIRST_BYTE_BEYOND_TEXT and any(kind.has_documents for _, kind in kinds):
            problems.append(
                f"packing.separator: {separator} may be a byte of a text: choose {FIRST_BYTE_BEYOND_TEXT} to 255, "
                "which UTF-8 does not use, or a token from 256 on"
            )
        return problems

    def _separator(self, vocabulary: int) -> str | None:
        kinds = [source.kind for _, source in self.fields_of_sources()]
        masked = self.packing.boundaries == "masked" or self.packing.attention == "masked"
        used = masked or any(kind.has_documents for kind in kinds)
        separator = self.packing.separator
        if not used or separator < vocabulary:
            return None
        return f"packing.separator: {separator} must be below model.vocabSize, which is {vocabulary}"
