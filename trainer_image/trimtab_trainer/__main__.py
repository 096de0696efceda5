"""`python -m trimtab_trainer`, one process per rank, started by torchrun."""

from typing import Never

import torch

from trimtab_trainer.assembly import assemble, prepare
from trimtab_trainer.collectives import World
from trimtab_trainer.devices import exchange_backend
from trimtab_trainer.loop import train
from trimtab_trainer.process import Process, run_process, settings
from trimtab_trainer.session import Session


def main() -> Never:
    """Train the reference model until the world ends."""
    torch.set_num_threads(1)
    run_process(_train)


def _train(process: Process) -> None:
    """Check everything that can be checked alone, then join the other ranks, and train."""
    prepared = prepare(*settings())
    world = World(prepared.config.collective_timeout_seconds, exchange_backend(prepared.trainee.device))
    process.runtime = assemble(prepared, world, process.terminating)
    train(Session(process.runtime), prepared.trainee, world)


if __name__ == "__main__":
    main()
