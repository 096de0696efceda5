"""Makes the demo's data: real text that every machine has, and real damage in it.

python prepare.py corpus FILE    the standard library's sources, cut into windows and shuffled once
python prepare.py damage FILE    overwrite a stretch of it with noise, as bit rot or a bad shard does

Both are repeatable: the same Python gives the same file. Nothing is told to the trainer or the operator.
"""

import argparse
import os
import random
import sysconfig
from pathlib import Path

WINDOW_BYTES = 128
SEED = 7
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def sources() -> list[Path]:
    """The standard library's Python files, without its tests, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if not LEFT_OUT & set(path.relative_to(root).parts))


def write_corpus(target: Path) -> int:
    """Shuffle the files, cut them into windows, shuffle the windows; the number of bytes written."""
    files = sources()
    order = random.Random(SEED)  # noqa: S311 - repeatable, and nothing secret
    order.shuffle(files)
    text = b"".join(path.read_bytes() for path in files)
    windows = [text[start : start + WINDOW_BYTES] for start in range(0, len(text) - WINDOW_BYTES + 1, WINDOW_BYTES)]
    order.shuffle(windows)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_bytes(b"".join(windows))
    unfinished.chmod(0o644)
    unfinished.replace(target)
    return len(windows) * WINDOW_BYTES


def damage(target: Path, first: int, count: int, global_batch: int) -> tuple[int, int]:
    """Overwrite `count` global batches from `first` on with random bytes; the byte range [begin, end)."""
    batch_bytes = global_batch * WINDOW_BYTES
    begin, end = first * batch_bytes, (first + count) * batch_bytes
    if end > target.stat().st_size:
        message = f"{target} has {target.stat().st_size} bytes; the damage would end at byte {end}"
        raise SystemExit(message)
    with target.open("r+b") as file:
        file.seek(begin)
        file.write(random.Random(SEED + 1).randbytes(end - begin))  # noqa: S311 - likewise
        file.flush()
        os.fsync(file.fileno())
    return begin, end


def main() -> None:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("corpus")
    make.add_argument("file", type=Path)
    spoil = commands.add_parser("damage")
    spoil.add_argument("file", type=Path)
    spoil.add_argument("--first", type=int, default=320, help="first global batch that is overwritten")
    spoil.add_argument("--count", type=int, default=12, help="how many global batches")
    spoil.add_argument("--global-batch", type=int, default=16, help="windows in a global batch")
    options = parser.parse_args()
    if options.command == "corpus":
        print(f"{options.file}: {write_corpus(options.file)} bytes from {len(sources())} files")
    else:
        begin, end = damage(options.file, options.first, options.count, options.global_batch)
        print(f"{options.file}: bytes {begin} to {end - 1} are noise now")


if __name__ == "__main__":
    main()
