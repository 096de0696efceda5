"""Ranks of a world start when their pods do, minutes apart perhaps: no exchange's time-out bounds that."""

import os
import socket
import subprocess
import sys

TIMEOUT_SECONDS = 1.0
RANK = f"""
import os, time
from trimtab_trainer.collectives import World
time.sleep(3 * {TIMEOUT_SECONDS} * int(os.environ["RANK"]))
world = World({TIMEOUT_SECONDS})
print(world.agree([world.rank]))
"""


def test_a_rank_that_starts_later_than_an_exchange_may_take_still_joins() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environment = {**os.environ, **place, "PYTHONPATH": os.pathsep.join(sys.path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [output for output, _ in ended] == ["[1]\n", "[1]\n"], [errors for _, errors in ended]
