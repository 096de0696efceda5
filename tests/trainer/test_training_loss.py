"""The loss by which a restore is proved is, bit for bit, that of the step which came next."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from trimtab_trainer.accumulation import accumulate
from trimtab_trainer.batches import Batch
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.config import DataConfig, TrainerConfig
from trimtab_trainer.data import documents_of, targets_of
from trimtab_trainer.data_config import PackingConfig, SourceKind
from trimtab_trainer.loop import Trainee
from trimtab_trainer.model import AttentionConfig, ExpertsConfig, TransformerConfig

SEPARATOR = 7
MODEL = TransformerConfig(width=32, layers=2, heads=4, sequence=32, dropout=0.2)
EXPERTS = ExpertsConfig(count=4, top_k=2, capacity_factor=1.0)
KINDS: dict[str, dict[str, Any]] = {
    "dropout": {},
    "no dropout": {"model": replace(MODEL, dropout=0.0)},
    "micro-batches": {"gradient_accumulation_steps": 4},
    "bfloat16": {"precision": "bfloat16", "gradient_accumulation_steps": 2},
    "float16": {"precision": "float16"},
    "recomputed": {"model": replace(MODEL, activation_checkpointing=True)},
    "experts": {"model": replace(MODEL, experts=EXPERTS), "gradient_accumulation_steps": 2},
    "groups": {"model": replace(MODEL, attention=AttentionConfig(kind="groupedQuery", key_value_heads=2, window=8))},
    "documents": {
        "data": DataConfig(
            path="unused",
            kind=SourceKind.UINT16,
            packing=PackingConfig(boundaries="masked", separator=SEPARATOR, attention="masked"),
        )
    },
}


def share(config: TrainerConfig) -> Batch:
    tokens = torch.randint(0, 256, (8, 33), generator=torch.Generator().manual_seed(5))
    tokens[:, 11:13] = SEPARATOR
    targets = targets_of(tokens, config.data.masked_separator)
    documents = documents_of(tokens, config.data.attention_separator)
    return Batch(1, 8, 7, tokens[:, :-1], targets, torch.arange(40, 48), None, documents)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_computes_what_the_probe_computes(kind: str, *, exact: bool) -> None:
    config = TrainerConfig(
        **({"data": DataConfig(path="unused"), "steps": 9, "global_batch": 8, "model": MODEL} | KINDS[kind])
    )
    trainee, batch = Trainee(config), share(config)
    trainee.model.eval()
    before = kept(trainee)
    again = trainee.training_loss(batch, config.model.dropout)
    assert not trainee.model.training
    assert kept(trainee) == before
    trainee.model.train()
    forward = partial(trainee.forward, exact=exact)
    computed = accumulate(batch, config.gradient_accumulation_steps, forward, scale=trainee.scaler.scale)
    assert torch.equal(again, computed.loss)


def kept(trainee: Trainee) -> dict[str, Any]:
    """The whole state, with the gradients and the state of random numbers."""
    flat = TrainingState(trainee.model, trainee.optimizer, trainee.scaler).flat()
    image = {
        name: value.clone().numpy().tobytes() if isinstance(value, Tensor) else value for name, value in flat.items()
    }
    gradients = {name: parameter.grad for name, parameter in trainee.named_parameters()}
    return {**image, "gradients": gradients, "random": torch.get_rng_state().numpy().tobytes()}


def test_dropout_is_in_it() -> None:
    config = TrainerConfig(data=DataConfig(path="unused"), steps=9, global_batch=8, model=MODEL)
    trainee, batch = Trainee(config), share(config)
    elsewhere = replace(batch, sample_ids=batch.sample_ids + 8)
    assert trainee.training_loss(batch, 0.2) != trainee.training_loss(elsewhere, 0.2)
    assert trainee.training_loss(batch, 0.0) == trainee.training_loss(elsewhere, 0.0)
