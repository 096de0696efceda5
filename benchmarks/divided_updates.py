"""What dividing Newton-Schulz work between two ranks saves of an update of 50 million parameters.

`python -m benchmarks.divided_updates`. Two processes, each on a core and a thread of its own, exchange through gloo.
Alone, one of them does all the work while the other waits; divided, each does its part. Both take turns in a round.
Sharded, each has half of the rows of every matrix; the exchange overlaps the computation or is waited for.
"""

import argparse
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from trimtab_trainer.collectives import GroupPeers, World
from trimtab_trainer.optim import ShardedMuonClip, shard_plan
from trimtab_trainer.optim.coefficients import QUINTIC
from trimtab_trainer.optim.division import Task, assigned, matrix_cost
from trimtab_trainer.optim.newton_schulz import COMPUTE_TYPES, newton_schulz
from trimtab_trainer.optim.shared_results import SharedResults

from benchmarks.figures import Figure, Measurement, ratios, write
from benchmarks.optimizer import LAYERS, SETTINGS, SHAPES, Matrices, logits, random_gradients

RANKS = 2
ROUNDS, WARM_UP = 9, 1
GOAL = 0.6
TIMEOUT_SECONDS = 300.0


def tasks() -> list[Task]:
    """The matrices, as the optimizer deals them out."""
    return [
        Task(matrix_cost(rows, columns, SETTINGS), rows * columns)
        for _ in range(LAYERS)
        for rows, columns in SHAPES.values()
    ]


def largest_share() -> float:
    """The part of all work that the rank with most of it has."""
    costs = [task.cost for task in tasks()]
    owners = assigned(costs, RANKS)
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(RANKS)]
    return max(loads) / sum(loads)


class WaitingPeers(GroupPeers):
    """Peers with whom nothing is done while an exchange is under way."""

    def trade_later(
        self, outgoing: Tensor, sent: Sequence[int], incoming: Tensor, received: Sequence[int]
    ) -> Callable[[], None]:
        """Trade, and be done."""
        super().trade_later(outgoing, sent, incoming, received)()
        return lambda: None


def sharded(gradients: dict[str, Tensor], mesh: DeviceMesh, peers: GroupPeers, round_bytes: int) -> ShardedMuonClip:
    """An optimizer of the same matrices, of whose rows each rank has a part."""
    parameters: dict[str, Tensor] = {}
    for name, gradient in gradients.items():
        parameters[name] = distribute_tensor(torch.zeros_like(gradient), mesh, [Shard(0)]).requires_grad_()
        parameters[name].grad = distribute_tensor(gradient, mesh, [Shard(0)])
    with patch.object(shard_plan, "ROUND_BYTES", round_bytes):
        return ShardedMuonClip(parameters.items(), Matrices(parameters).attention(), SETTINGS, peers)


class Rank:
    """One process: its optimizers, and what it orthogonalises."""

    def __init__(self, world: World) -> None:
        gradients = random_gradients()
        self.world = world
        self.directions: list[Tensor] = list(gradients.values())
        self.alone = Matrices.with_gradients(gradients).muon_clip(gram=False)
        self.divided = Matrices.with_gradients(gradients).muon_clip(gram=False)
        self.divided.divide(world)
        mesh, usual = init_device_mesh("cpu", (RANKS,)), shard_plan.ROUND_BYTES
        self.overlapping = sharded(gradients, mesh, GroupPeers(), usual)
        self.in_rounds = sharded(gradients, mesh, WaitingPeers(), usual)
        self.at_once = sharded(gradients, mesh, WaitingPeers(), 1 << 40)
        dtype = COMPUTE_TYPES[SETTINGS.newton_schulz_dtype]
        self.shared = SharedResults(tasks(), world, dtype, torch.device("cpu"))

    def orthogonalise(self, index: int) -> Tensor:
        """The update that follows from one direction."""
        return newton_schulz(self.directions[index][None], QUINTIC, COMPUTE_TYPES[SETTINGS.newton_schulz_dtype])

    def orthogonalise_all(self) -> None:
        """Every matrix."""
        for index in range(len(self.directions)):
            self.orthogonalise(index)

    def orthogonalise_own(self) -> None:
        """This rank's matrices, until it has the results of all."""
        for _ in self.shared.each(self.orthogonalise, lambda: None):
            pass

    def seconds(self, act: Callable[[], object], *, by_all: bool) -> float:
        """From a common start until the last rank is done."""
        self.world.agree([1])
        begun = time.perf_counter()
        if by_all or self.world.rank == 0:
            act()
        self.world.agree([1])
        return time.perf_counter() - begun

    def measured(self, count: int) -> dict[str, list[float]]:
        """The seconds of every variant, round by round."""
        cold = logits(0)
        variants: dict[str, tuple[Callable[[], object], bool]] = {
            "orthogonalised alone": (self.orthogonalise_all, False),
            "orthogonalised divided": (self.orthogonalise_own, True),
            "updated alone": (partial(self.alone.step, cold), False),
            "updated divided": (partial(self.divided.step, cold), True),
            "updated twice": (partial(self.alone.step, cold), True),
            "sharded, overlapping": (partial(self.overlapping.step, cold), True),
            "sharded, in rounds": (partial(self.in_rounds.step, cold), True),
            "sharded, at once": (partial(self.at_once.step, cold), True),
        }
        taken: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(WARM_UP + count):
            for name, (act, by_all) in variants.items():
                taken[name].append(self.seconds(act, by_all=by_all))
        return {name: each[WARM_UP:] for name, each in taken.items()}


def rank_main(rank: int, port: int, count: int, path: str) -> None:
    """One process, pinned to a core; the first one leaves what was measured."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    taken = Rank(World(TIMEOUT_SECONDS)).measured(count)
    if rank == 0:
        Path(path).write_text(json.dumps(taken))


def measure(count: int) -> dict[str, list[float]]:
    """Start both processes and wait for what they measured."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        path = Path(folder) / "seconds.json"
        processes = [
            multiprocessing.get_context("spawn").Process(target=rank_main, args=(rank, port, count, str(path)))
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return json.loads(path.read_text())


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    taken = measure(parser.parse_args().rounds)
    orthogonalised = ratios(taken["orthogonalised divided"], taken["orthogonalised alone"])
    write(
        "divided_updates",
        Measurement(
            title="Divided updates",
            about=(
                f"The matrices of the optimizer's benchmark on {RANKS} ranks, which exchange through gloo, and on one; "
                "each process has one thread, on a core of its own. Time on the clock, until the last rank is done."
            ),
            figures=(
                Figure(f"orthogonalisation on {RANKS} ranks ÷ on one", orthogonalised, goal=GOAL),
                Figure(
                    f"whole update on {RANKS} ranks ÷ on one alone",
                    ratios(taken["updated divided"], taken["updated alone"]),
                ),
                Figure(
                    f"the same ÷ on {RANKS} ranks that each do all",
                    ratios(taken["updated divided"], taken["updated twice"]),
                ),
                Figure(
                    f"update of sharded matrices on {RANKS} ranks ÷ the same, waiting for each exchange",
                    ratios(taken["sharded, overlapping"], taken["sharded, in rounds"]),
                ),
                Figure(
                    "the same ÷ one that gathers all, computes all and deals all out",
                    ratios(taken["sharded, overlapping"], taken["sharded, at once"]),
                ),
                Figure(
                    "the same ÷ an update of whole matrices on one rank alone",
                    ratios(taken["sharded, overlapping"], taken["updated alone"]),
                ),
                Figure("multiplications of the rank that has most to do ÷ all", (largest_share(),)),
                Figure("orthogonalisation on one rank", tuple(taken["orthogonalised alone"]), "s"),
            ),
            notes=("The products are computed in bfloat16, in which the results travel, too.",),
        ),
    )


if __name__ == "__main__":
    main()
