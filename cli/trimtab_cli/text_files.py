"""Small text files that people write: read whole, or one finding that says why not."""

from pathlib import Path

from trimtab_cli.yaml_documents import PolicyFinding

MOST_BYTES = 16 * 1024 * 1024
"""No policy and no test of one is larger."""


def read_text(file: Path) -> str | PolicyFinding:
    """A file's text, or why it cannot be read."""
    try:
        if file.is_file() and file.stat().st_size > MOST_BYTES:
            return PolicyFinding(str(file), 0, "", f"has {file.stat().st_size} bytes; at most {MOST_BYTES} are read")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return PolicyFinding(str(file), 0, "", f"is not UTF-8 text: {error.reason} at byte {error.start}")
    except OSError as error:
        return PolicyFinding(str(file), 0, "", f"cannot be read: {error.strerror or error}")
