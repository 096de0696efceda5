"""The run as a program with a loop of its own sees it, and the program's start and end."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Never

import torch
from torch import distributed
from trimtab_contract.directives import Reason

from trimtab_trainer.assembly import Foundation, lay_foundation
from trimtab_trainer.collectives import World, exchanging
from trimtab_trainer.config import TrainerConfig
from trimtab_trainer.devices import CPU, exchange_backend
from trimtab_trainer.errors import BadConfig, WorldEnded
from trimtab_trainer.integrations.training import Learner, Training
from trimtab_trainer.model import TransformerConfig
from trimtab_trainer.process import Process, run_process, settings

_OF_THE_REFERENCE_TRAINER: Final = {
    "optimizer": "optimizer",
    "schedule": "schedule",
    "precision": "precision",
    "loss_scale": "lossScale",
    "gradient_clip": "gradientClip",
    "bucket_mebibytes": "bucketMebibytes",
    "parallelism": "parallelism",
}
"""Fields of the configuration that a program of its own decides itself, with the names they have in YAML."""


class Run:
    """What `spec.trainer.config` says of a run, and the training once it has begun."""

    def __init__(self, foundation: Foundation, world: World, process: Process) -> None:
        self._foundation, self._world, self._process = foundation, world, process
        self._training: Training | None = None

    @property
    def steps(self) -> int:
        """The last step of the run, counted from 1."""
        return self._config.steps

    @property
    def sequence(self) -> int:
        """Tokens of a sample that are predicted from; each sample has one more, the last one's target."""
        return self._config.model.sequence

    @property
    def vocabulary(self) -> int:
        """Distinct tokens."""
        return self._config.model.vocab_size

    @property
    def seed(self) -> int:
        """Key of the initial weights and of dropout."""
        return self._config.seed

    @property
    def micro_batch(self) -> int:
        """Samples that this rank computes at once."""
        return self._config.global_batch // self._world.size // self.micro_batches

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each rank in a step."""
        return self._config.gradient_accumulation_steps

    @property
    def rank(self) -> int:
        """This process among all of the world, from 0."""
        return self._world.rank

    @property
    def ranks(self) -> int:
        """Processes of the world."""
        return self._world.size

    @property
    def training(self) -> Training:
        """The training in progress."""
        assert self._training is not None, "a training begins before it is asked for"
        return self._training

    def begin(self, learner: Learner) -> Training:
        """Assemble the world around a model; every rank calls it once. Raises BadConfig, InvalidFields, PeerLost."""
        # Lightning takes SIGTERM for itself, and answers it with an exchange in the middle of a step.
        self._process.listen()
        self._training = Training(learner, self._foundation, self._world, self._process)
        return self._training

    def end(self) -> Never:
        """Behind the program: raise the end of the world, for there must have been one."""
        if self._training is None or self._training.ended is None:
            raise WorldEnded(Reason.CRASHED, "the program stopped training before the run was finished")
        raise self._training.ended

    @property
    def _config(self) -> TrainerConfig:
        return self._foundation.config


def launch(program: Callable[[Run], None]) -> Never:
    """Run a program as one rank of a world, from the configuration to the termination message.

    `program` builds model and trainer and trains. It may go on when the run is finished, to evaluate or to export: what
    it does then changes nothing of the run any more.
    """

    def body(process: Process) -> None:
        environment, config, config_sha256 = settings()
        if problems := list(foreign_settings(config)):
            raise BadConfig(problems)
        if distributed.is_initialized():
            raise BadConfig(("launch: the process group exists already; build trainer and arguments inside it",))
        foundation = lay_foundation(environment, config, config_sha256)
        backend = exchange_backend(torch.device("cuda") if torch.cuda.is_available() else CPU)
        run = Run(foundation, World(config.collective_timeout_seconds, backend), process)
        with exchanging():
            program(run)
        run.end()

    run_process(body)


def foreign_settings(config: TrainerConfig) -> Iterator[str]:
    """Settings that nothing would obey."""
    plain = TrainerConfig(data=config.data, steps=max(config.steps, 1_000_000), global_batch=config.global_batch)
    for name, shown in _OF_THE_REFERENCE_TRAINER.items():
        if getattr(config, name) != getattr(plain, name):
            yield f"{shown}: only the reference trainer obeys it; take it out, and set it in your own program"
    shape = TransformerConfig(vocab_size=config.model.vocab_size, sequence=config.model.sequence)
    if config.model != shape:
        yield "model: of a program of your own only sequence and vocabSize are read; take the other fields out"
    if config.data.packing != replace(config.data.packing, attention="open"):
        yield "data.packing.attention: only the reference model keeps documents apart; use open"
