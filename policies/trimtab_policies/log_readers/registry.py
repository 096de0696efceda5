"""The formats, and which of them a log is."""

from pathlib import PurePath

from trimtab_policies.errors import UnknownLogFormat
from trimtab_policies.log_readers import (
    archive,
    csv_table,
    hugging_face,
    json_array,
    jsonl,
    llm_c,
    megatron,
    mlflow,
    modded_nanogpt,
    nanogpt,
    redis_dump,
    tensorboard,
    text,
    wandb,
)
from trimtab_policies.log_readers.reading import Confidence, LogReader

HEAD_BYTES = 4 * 1024 * 1024
"""How much of a log is looked at: training programs print megabytes before their first step."""

READERS: tuple[LogReader, ...] = (
    tensorboard.READER,
    archive.READER,
    redis_dump.READER,
    hugging_face.READER,
    mlflow.READER,
    wandb.READER,
    jsonl.READER,
    json_array.READER,
    megatron.READER,
    llm_c.READER,
    nanogpt.READER,
    modded_nanogpt.READER,
    csv_table.READER,
    text.READER,
)


def reader_named(name: str) -> LogReader:
    """The reader of that name; raises UnknownLogFormat listing the names."""
    for reader in READERS:
        if reader.name == name:
            return reader
    names = ", ".join(reader.name for reader in READERS)
    raise UnknownLogFormat(f"there is no log format {name!r}; the formats are {names}")


def choose(head: bytes, filename: str) -> LogReader:
    """The reader that is surest of a log, the earlier one where two are; raises UnknownLogFormat.

    `head` is what the (uncompressed) log begins with, up to HEAD_BYTES.
    """
    path = PurePath(filename.removesuffix(".gz"))
    if not head.strip():
        raise UnknownLogFormat("the log is empty")
    best, surest = None, Confidence.NO
    for reader in READERS:
        confidence = reader.recognises(head, path)
        if confidence > surest:
            best, surest = reader, confidence
        if surest is Confidence.CERTAIN:
            break
    if best is None:
        names = ", ".join(reader.name for reader in READERS)
        raise UnknownLogFormat(f"this is no log that any reader knows; if it is one, name its format: {names}")
    return best
