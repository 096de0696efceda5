"""Documents in a window: no loss counts a target of another document, however the batch is cut."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trimtab_trainer.config import DataConfig, PackingConfig, SourceKind, TrainerConfig
from trimtab_trainer.data import targets_of
from trimtab_trainer.loop import Trainee
from trimtab_trainer.model import TransformerConfig

SEPARATOR = 255
MODEL = TransformerConfig(width=16, layers=1, heads=2, sequence=6)
SAMPLES = torch.tensor([[1, 2, 255, 3, 4, 5, 6], [7, 255, 8, 255, 9, 255, 10], [1, 2, 3, 4, 5, 6, 7]])


def trainee(boundaries: str) -> Trainee:
    packing = PackingConfig(boundaries="masked" if boundaries == "masked" else "open", separator=SEPARATOR)
    data = DataConfig(path="unused", kind=SourceKind.TEXT, packing=packing)
    return Trainee(TrainerConfig(data=data, steps=50, global_batch=4, model=MODEL))


def obvious_losses(model: torch.nn.Module) -> list[float]:
    """Token by token: the mean over those targets that do not begin a document."""
    logits = model(SAMPLES[:, :-1]).logits
    found: list[float] = []
    for sample, row in zip(SAMPLES.tolist(), logits, strict=True):
        inside = [place for place in range(6) if sample[place] != SEPARATOR]
        losses = [F.cross_entropy(row[place], torch.tensor(sample[place + 1])).item() for place in inside]
        found.append(sum(losses) / len(losses))
    return found


def test_a_windows_loss_is_the_mean_over_the_targets_inside_documents() -> None:
    masked = trainee("masked")
    assert masked.losses(SAMPLES).tolist() == pytest.approx(obvious_losses(masked.model), rel=1e-5)
    assert trainee("open").losses(SAMPLES)[2].item() == pytest.approx(masked.losses(SAMPLES)[2].item(), rel=1e-6)


def loss_of(model: torch.nn.Module, samples: Tensor) -> Tensor:
    return model(samples[:, :-1], targets_of(samples, SEPARATOR), masked=True).loss


def test_the_loss_of_a_batch_is_the_mean_of_its_shares_though_they_have_unequal_documents() -> None:
    model = trainee("masked").model
    shares = [loss_of(model, SAMPLES[row : row + 1]).item() for row in range(3)]
    assert loss_of(model, SAMPLES).item() == pytest.approx(sum(shares) / 3, rel=1e-5)


def test_the_first_token_of_a_document_has_no_part_in_the_gradient() -> None:
    model = trainee("masked").model
    gradients: list[Tensor] = []
    for first in (10, 11):
        samples = SAMPLES[1:2].clone()
        samples[0, -1] = first
        model.zero_grad()
        loss_of(model, samples).backward()
        gradients.append(model.head.weight.grad.clone())
    assert torch.equal(*gradients)


def test_a_window_of_separators_alone_has_no_loss_and_no_division_by_nothing() -> None:
    assert trainee("masked").losses(torch.full((1, 7), SEPARATOR)).tolist() == [0.0]
