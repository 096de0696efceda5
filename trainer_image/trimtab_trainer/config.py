"""The trainer's configuration (YAML) and its environment; both report every problem at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId

from trimtab_trainer.data_config import DataConfig, PackingConfig, SourceConfig, SourceKind
from trimtab_trainer.devices import Device
from trimtab_trainer.fields import SEEDS, InvalidFields, at_least, positive, raise_if_any, within
from trimtab_trainer.mapping import build
from trimtab_trainer.mixed_precision import LossScaleConfig, Precision
from trimtab_trainer.model import TransformerConfig
from trimtab_trainer.optim import MuonClipConfig, Schedule
from trimtab_trainer.optim.schedule import Shape
from trimtab_trainer.sharding import Parallelism

DEFAULT_PATH = "/etc/trimtab/config.yaml"

__all__ = [
    "DEFAULT_PATH",
    "CheckpointConfig",
    "DataConfig",
    "Environment",
    "FaultConfig",
    "PackingConfig",
    "ScheduleConfig",
    "SourceConfig",
    "SourceKind",
    "TelemetryConfig",
    "TrainerConfig",
    "load_config",
    "read_config",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """Linear warm-up, then a named shape that ends at the last step; see `trimtab_trainer.optim.schedule`."""

    warmup_steps: int = 20
    final_ratio: float = 0.1
    shape: Shape = "cosine"
    cycles: int = 1
    decay_share: float = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryConfig:
    """How records and acknowledgements travel."""

    archive_seconds: float = 30.0
    """Seconds between two archived stretches of records."""

    state_seconds: float = 3.0
    """Seconds between two repetitions of the world's state."""

    poll_seconds: float = 0.1
    """Seconds between two looks at the directive key."""

    queue_records: int = 100_000
    """Records that wait for Redis at most; beyond it the oldest are dropped from the queue and counted."""

    stream_records: int = 2_000
    """Records that the stream keeps at least; it is trimmed to 64 MiB when they fit in less."""

    every: int = 10
    """Steps between two that measure every head's largest logit exactly, not only of heads near the threshold; so many
    steps from an event on do, too."""

    exact_max_logits: bool = False
    """Whether every step does."""

    health_every: int = 20
    """Steps between two looks at weights and optimizer state: norms, spectral norms, where QK-Clip acted."""

    def __post_init__(self) -> None:
        raise_if_any(
            (
                positive("archive_seconds", self.archive_seconds),
                positive("state_seconds", self.state_seconds),
                positive("poll_seconds", self.poll_seconds),
                at_least("queue_records", self.queue_records, 1),
                at_least("stream_records", self.stream_records, 1),
                at_least("every", self.every, 1),
                at_least("health_every", self.health_every, 1),
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """How the background brings checkpoints to the store."""

    upload_mebibytes_per_second: float = 256.0
    """What each rank sends at most."""

    pending_saves: int = 1
    """Saves on their way at once, each with a copy of the state in host memory."""

    def __post_init__(self) -> None:
        raise_if_any(
            (
                positive("upload_mebibytes_per_second", self.upload_mebibytes_per_second),
                at_least("pending_saves", self.pending_saves, 1),
            )
        )

    @property
    def upload_bytes_per_second(self) -> float:
        """The same bound in bytes."""
        return self.upload_mebibytes_per_second * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultConfig:
    """A fault injected once, before the forward pass of `(attempt, step)` on `rank`; for drills and tests."""

    attempt: int
    step: int
    rank: int
    kind: Literal["flipBit", "poisonGradient", "hang", "slow", "exit", "kill"]
    tensor: str | None = None
    """Parameter that `flipBit` and `poisonGradient` damage."""

    index: int = 0
    """Flat index of the damaged element."""

    bit: int = 30
    """Bit that `flipBit` flips, 0 being the lowest."""

    seconds: float = 0.0
    """How long `hang` and `slow` take."""

    def __post_init__(self) -> None:
        needs_tensor = self.kind in {"flipBit", "poisonGradient"}
        raise_if_any(
            (
                at_least("attempt", self.attempt, 1),
                at_least("step", self.step, 1),
                at_least("rank", self.rank, 0),
                at_least("index", self.index, 0),
                None if 0 <= self.bit < 32 else f"bit: {self.bit} must be from 0 to 31",
                f"tensor: {self.kind} needs the name of a parameter" if needs_tensor and not self.tensor else None,
                positive("seconds", self.seconds) if self.kind in {"hang", "slow"} else None,
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """Everything a run trains with; `TrainingJob.spec.trainer.config` as the trainer reads it.

    Raises:
        InvalidFields: one sentence per wrong field.
    """

    data: DataConfig
    steps: int
    """Last step of the run, counted from 1."""

    global_batch: int
    """Windows per step over all ranks; a multiple of the number of ranks times `gradient_accumulation_steps`."""

    model: TransformerConfig = field(default_factory=TransformerConfig)
    optimizer: MuonClipConfig = field(default_factory=MuonClipConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    seed: int = 0
    """Key of the initial weights and of dropout."""

    gradient_accumulation_steps: int = 1
    """Micro-batches in which each rank computes its share of a step: as many times less memory for activations."""

    parallelism: Parallelism = "replicated"
    """Whether every rank has the whole state, or a part of it (FSDP2)."""

    device: Device = "auto"
    """Where the ranks compute: each on an accelerator of its own where PyTorch sees one, else on the CPU; or on either
    alone."""

    precision: Precision = "float32"
    """In which the model's products are computed; parameters, gradients and moments are float32 in any case."""

    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    gradient_clip: float = 1.0
    """Largest global norm of the gradient."""

    replica_check_every: int = 50
    """Steps between two comparisons of the replicas' parameters."""

    max_withheld_steps: int = 20
    """Withheld steps in a row after which the world ends."""

    hold_tick_seconds: float = 0.2
    """Seconds between two exchanges of a held world."""

    collective_timeout_seconds: float = 600.0
    """Longest wait for the other ranks in one exchange."""

    save_wait_seconds: float = 60.0
    """Longest wait for a checkpoint at the end of the run or before a termination."""

    bucket_mebibytes: int = 25
    """Size of the flat buckets in which gradients are reduced; part of what makes a resume exact."""

    faults: tuple[FaultConfig, ...] = ()

    def __post_init__(self) -> None:
        raise_if_any(
            (
                at_least("steps", self.steps, 1),
                at_least("global_batch", self.global_batch, 1),
                within("seed", self.seed, *SEEDS),
                at_least("gradient_accumulation_steps", self.gradient_accumulation_steps, 1),
                None if self.gradient_clip > 0 else f"gradient_clip: {self.gradient_clip} must be above 0",
                at_least("replica_check_every", self.replica_check_every, 1),
                at_least("max_withheld_steps", self.max_withheld_steps, 1),
                positive("hold_tick_seconds", self.hold_tick_seconds),
                positive("collective_timeout_seconds", self.collective_timeout_seconds),
                positive("save_wait_seconds", self.save_wait_seconds),
                at_least("bucket_mebibytes", self.bucket_mebibytes, 1),
                *self._fault_problems(),
                *self._schedule_problems(),
                *self.data.problems(self.model.vocab_size),
                self._qk_clip_problem(),
                self._newton_schulz_problem(),
            )
        )

    def _qk_clip_problem(self) -> str | None:
        if self.optimizer.qk_clip_off or not self.model.attention.qk_norm:
            return None
        return (
            f"optimizer.qk_clip_threshold: {self.optimizer.qk_clip_threshold} must be null or qkClipMode disabled with "
            "model.attention.qkNorm: the norm undoes whatever QK-Clip does to the weights before it"
        )

    def _newton_schulz_problem(self) -> str | None:
        if self.parallelism == "replicated" or self.optimizer.newton_schulz_mode == "distributed":
            return None
        return (
            "optimizer.newton_schulz_mode: duplicated needs parallelism: replicated; a sharded matrix is put together "
            "on one rank alone"
        )

    def _fault_problems(self) -> tuple[str, ...]:
        if self.parallelism == "replicated":
            return ()
        return tuple(
            f"faults[{number}].kind: {fault.kind} damages replicas, and needs parallelism: replicated"
            for number, fault in enumerate(self.faults)
            if fault.tensor is not None
        )

    def _schedule_problems(self) -> tuple[str, ...]:
        if self.steps < 1:
            return ()
        try:
            _ = self.rates
        except InvalidFields as error:
            problems = (problem for problem in error.problems if not problem.startswith("total_steps"))
            return tuple(f"schedule.{problem.replace('total_steps', 'steps')}" for problem in problems)
        return ()

    @property
    def rates(self) -> Schedule:
        """The learning-rate schedule over the whole run; one of which nothing is said fits into a short run too."""
        warm_up = self.schedule.warmup_steps
        return Schedule(
            warmup_steps=min(warm_up, self.steps - 1) if self.schedule == ScheduleConfig() else warm_up,
            total_steps=self.steps,
            final_ratio=self.schedule.final_ratio,
            shape=self.schedule.shape,
            cycles=self.schedule.cycles,
            decay_share=self.schedule.decay_share,
        )


def read_config(text: str) -> TrainerConfig:
    """Read YAML; raises InvalidFields with one sentence per wrong field."""
    try:
        given: object = yaml.safe_load(text)
    # A date or a number that nothing holds (`2026-13-45`) is a ValueError of Python's own.
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidFields((f"config: not YAML: {' '.join(str(error).split())}",)) from error
    return build(TrainerConfig, given)


def load_config(path: Path) -> TrainerConfig:
    """Read a YAML file; raises InvalidFields."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFields((f"config: {path} cannot be read: {error}",)) from error
    return read_config(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """What the operator and torchrun tell a process; secrets never leave this value."""

    run: RunId
    world: int
    rank: int
    world_size: int
    processes_per_node: int
    hostname: str
    redis_url: str
    redis_username: str
    redis_password: str = field(repr=False)
    checkpoint_bucket: str
    checkpoint_root: str
    s3_endpoint: str
    checkpoint_every: int
    progress_deadline: float
    source: RunId | None = None
    """The run that this one continues: its checkpoints may be restored, too."""

    @property
    def local_rank(self) -> int:
        """This rank's number among those of its node: torchrun numbers the ranks node by node."""
        return self.rank % self.processes_per_node

    @classmethod
    def read(cls, variables: Mapping[str, str], hostname: str) -> "Environment":
        """Read environment variables; raises InvalidFields with one sentence per missing or wrong one."""
        reader = _Variables(variables)
        bucket, root = reader.location("TRIMTAB_CHECKPOINT_URI")
        values = cls(
            run=reader.run("TRIMTAB_RUN"),
            world=reader.whole("TRIMTAB_ATTEMPT", 1),
            rank=reader.whole("RANK", 0),
            world_size=reader.whole("WORLD_SIZE", 1),
            processes_per_node=reader.whole("LOCAL_WORLD_SIZE", 1),
            hostname=variables.get("TRIMTAB_HOSTNAME") or hostname,
            redis_url=reader.text("TRIMTAB_REDIS_URL"),
            redis_username=reader.text("TRIMTAB_REDIS_USERNAME"),
            redis_password=reader.text("TRIMTAB_REDIS_PASSWORD"),
            checkpoint_bucket=bucket,
            checkpoint_root=root,
            s3_endpoint=reader.text("TRIMTAB_S3_ENDPOINT"),
            checkpoint_every=reader.whole("TRIMTAB_CHECKPOINT_EVERY", 1),
            progress_deadline=reader.seconds("TRIMTAB_PROGRESS_DEADLINE"),
            source=reader.run("TRIMTAB_RESUME_FROM") if variables.get("TRIMTAB_RESUME_FROM") else None,
        )
        for secret in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            reader.text(secret)
        raise_if_any(reader.problems)
        return values


class _Variables:
    """Reads variables one by one and keeps what is wrong with them."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.problems: list[str] = []

    def text(self, name: str) -> str:
        value = self._variables.get(name, "")
        if not value:
            self.problems.append(f"{name}: missing from the environment")
        return value

    def whole(self, name: str, minimum: int) -> int:
        value = self.text(name)
        if not value:
            return minimum
        if not value.isdecimal() or int(value) < minimum:
            self.problems.append(f"{name}: {value!r} must be a whole number of at least {minimum}")
            return minimum
        return int(value)

    def seconds(self, name: str) -> float:
        value = self.text(name)
        try:
            seconds = float(value or "1")
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            self.problems.append(f"{name}: {value!r} must be a number of seconds above 0")
        return seconds

    def run(self, name: str) -> RunId:
        value = self.text(name)
        try:
            return RunId.parse(value or "missing/missing/missing")
        except ContractError as error:
            self.problems.append(f"{name}: {error}")
            return RunId("missing", "missing", "missing")

    def location(self, name: str) -> tuple[str, str]:
        value = self.text(name)
        scheme, _, rest = value.partition("://")
        bucket, _, root = rest.partition("/")
        if value and (scheme != "s3" or not bucket):
            self.problems.append(f"{name}: {value!r} must look like s3://bucket/prefix")
        return bucket, root.strip("/")
