"""What cannot be guarded is refused at the start, in sentences that name the field."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from trimtab_trainer.config import DataConfig, PackingConfig, SourceKind, TelemetryConfig, TrainerConfig
from trimtab_trainer.errors import BadConfig
from trimtab_trainer.integrations.hugging_face import argument_problems, causal_inputs
from trimtab_trainer.integrations.lightning import trainer_problems
from trimtab_trainer.integrations.run import foreign_settings
from trimtab_trainer.integrations.training import Learner, Training
from trimtab_trainer.model import TransformerConfig
from trimtab_trainer.optim import MuonClipConfig

APART = DataConfig(path="/data", kind=SourceKind.JSONL, packing=PackingConfig(attention="masked"))
RUN: Any = SimpleNamespace(steps=100, seed=3, micro_batches=2, micro_batch=4, ranks=1)
PLAIN = TrainerConfig(data=DataConfig(path="/data"), steps=100, global_batch=8, model=TransformerConfig(sequence=32))


def arguments(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "max_steps": 100,
        "seed": 3,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
        "world_size": 1,
        "deepspeed": None,
        "fsdp": None,
        "fp16": False,
        "auto_find_batch_size": False,
        "load_best_model_at_end": False,
        "accelerator_config": SimpleNamespace(dispatch_batches=None, split_batches=False),
    }
    return SimpleNamespace(**(fields | changed))


def trainer(**changed: Any) -> Any:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = LambdaLR(optimizer, lambda _: 1.0)
    fields: dict[str, Any] = {
        "max_steps": -1,
        "max_epochs": -1,
        "accumulate_grad_batches": 2,
        "world_size": 1,
        "limit_train_batches": 1.0,
        "fast_dev_run": False,
        "strategy": SingleDeviceStrategy("cpu"),
        "scaler": None,
        "gradient_clip_algorithm": None,
        "callbacks": [],
        "optimizers": [optimizer],
        "lr_scheduler_configs": [
            SimpleNamespace(scheduler=schedule, reduce_on_plateau=False, interval="step", frequency=1)
        ],
    }
    return SimpleNamespace(**(fields | changed))


def test_what_fits_the_run_is_not_refused() -> None:
    assert list(argument_problems(arguments(), RUN)) == []
    assert list(trainer_problems(trainer(), RUN)) == []
    assert list(foreign_settings(PLAIN)) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"max_steps": 90}, "TrainingArguments.max_steps: 90 must be 100, which follows from steps"),
        ({"gradient_accumulation_steps": 4}, "must be 2, which follows from gradientAccumulationSteps"),
        ({"seed": 42}, "TrainingArguments.seed: 42 must be 3"),
        ({"world_size": 2}, "TrainingArguments.world_size: 2 must be 1"),
        ({"deepspeed": "zero.json"}, "TrainingArguments.deepspeed: zero.json is not supported"),
        ({"fp16": True}, "use bf16"),
        (
            {"accelerator_config": SimpleNamespace(dispatch_batches=True, split_batches=False)},
            "TrainingArguments.dispatch_batches: True is not supported",
        ),
    ],
)
def test_arguments_of_hugging_face_that_do_not_fit_are_named(changed: dict[str, Any], told: str) -> None:
    (problem,) = argument_problems(arguments(**changed), RUN)
    assert told in problem


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"max_steps": 100}, "Trainer.max_steps: 100 must be -1"),
        ({"accumulate_grad_batches": 1}, "follows from gradientAccumulationSteps"),
        ({"strategy": SimpleNamespace()}, "Trainer.strategy: SimpleNamespace is not supported"),
        ({"scaler": object()}, "use bf16-mixed"),
        (
            {"callbacks": [GradientAccumulationScheduler({4: 2})]},
            "Trainer.callbacks: GradientAccumulationScheduler is not supported",
        ),
        ({"optimizers": []}, "configure_optimizers: 0 optimizers"),
        (
            {"lr_scheduler_configs": [SimpleNamespace(reduce_on_plateau=False, interval="epoch", frequency=1)]},
            "the schedule must step with each update",
        ),
    ],
)
def test_trainers_of_lightning_that_do_not_fit_are_named(changed: dict[str, Any], told: str) -> None:
    (problem,) = trainer_problems(trainer(**changed), RUN)
    assert told in problem


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (replace(PLAIN, optimizer=MuonClipConfig(muon_lr=0.5)), "optimizer"),
        (replace(PLAIN, gradient_clip=0.5), "gradientClip"),
        (replace(PLAIN, precision="bfloat16"), "precision"),
        (replace(PLAIN, model=TransformerConfig(sequence=32, width=64)), "model"),
        (
            replace(
                PLAIN,
                data=DataConfig(
                    path="/d", kind="jsonl", packing=PackingConfig(attention="masked", boundaries="masked")
                ),
            ),
            "data.packing.attention",
        ),
    ],
)
def test_settings_that_nothing_would_obey_are_refused(config: TrainerConfig, field: str) -> None:
    (problem,) = foreign_settings(config)
    assert problem.startswith(f"{field}: ")


def test_how_often_logits_and_the_health_of_the_weights_are_looked_at_is_obeyed() -> None:
    telemetry = TelemetryConfig(health_every=5, every=3, exact_max_logits=True)
    assert not list(foreign_settings(replace(PLAIN, telemetry=telemetry)))


def test_how_often_logits_are_looked_at_is_refused_where_the_optimizer_looks_at_none() -> None:
    telemetry = TelemetryConfig(every=3, exact_max_logits=True)
    foundation: Any = SimpleNamespace(config=replace(PLAIN, telemetry=telemetry))
    nothing: Any = None
    model = torch.nn.Linear(2, 2)
    learner = Learner(model, SGD(model.parameters()), None, lambda tokens, targets: tokens, 1.0)
    with pytest.raises(BadConfig) as caught:
        Training(learner, foundation, nothing, nothing)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "telemetry.every", "telemetry.exactMaxLogits",
    ]  # fmt: skip


def test_a_causal_model_that_shifts_labels_itself_predicts_each_target_from_its_token() -> None:
    tokens, targets = torch.tensor([[5, 6, 7]]), torch.tensor([[6, -100, 8]])
    inputs = causal_inputs(tokens, targets)
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert inputs["labels"][:, 1:].tolist() == targets.tolist()
