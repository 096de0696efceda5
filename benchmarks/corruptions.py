"""How many of a thousand damaged checkpoints are restored, by us and by a reader without hashes.

`python -m benchmarks.corruptions`. Real checkpoints of two ranks from a real S3 server: flipped bits, zeroed pages,
shards of another step or rank, truncated and missing objects, stale, edited and reverted manifests, indexes that are
damaged, edited or those of other objects, drawn at random. torch's reader reads no index, and is not given the latter.
"""

import argparse
import logging
import tempfile
from pathlib import Path

from corruption_trials import saved_checkpoints, trials
from object_store_fixture import ObjectStoreServer

from benchmarks.figures import Figure, Measurement, write

CASES, SEED = 1000, 20261130


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # torch's reader logs a trace for much of what it stumbles over
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as name:
        folder = Path(name)
        (folder / "s3").mkdir()
        server = ObjectStoreServer(folder / "s3")
        server.start()
        try:
            checkpoints = saved_checkpoints(server, folder / "world")
        finally:
            server.stop()
        found = list(trials(checkpoints, arguments.cases, arguments.seed, folder / "trials"))
    restored = sum(not trial.refused for trial in found)
    compared = [trial.naive for trial in found if trial.naive is not None]
    write(
        "corruptions",
        Measurement(
            title="Damaged checkpoints",
            about=(
                f"{len(found)} random corruptions of real checkpoints, {len({trial.kind for trial in found})} kinds in "
                f"turn, seed {arguments.seed}."
            ),
            figures=(
                Figure(f"restored, of {len(found)}", (float(restored),), goal=0),
                Figure("taken without a word by torch's own reader, of all that it was given", (_share(compared),)),
            ),
        ),
    )


def _share(taken: list[bool]) -> float:
    return sum(taken) / max(len(taken), 1)


if __name__ == "__main__":
    main()
