"""Documents in a window: no loss counts a target of another document, however the batch is cut."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trimtab_trainer.batches import Batch
from trimtab_trainer.config import DataConfig, PackingConfig, SourceKind, TrainerConfig
from trimtab_trainer.data import documents_of, targets_of
from trimtab_trainer.loop import Trainee
from trimtab_trainer.model import AttentionConfig, Transformer, TransformerConfig

SEPARATOR = 255
MODEL = TransformerConfig(width=16, layers=1, heads=2, sequence=6)
KINDS = {
    "multiHead": AttentionConfig(),
    "groupedQuery": AttentionConfig(kind="groupedQuery", key_value_heads=1),
    "latent": AttentionConfig(
        kind="latent", query_rank=8, key_value_rank=8, content_dimension=4, rotary_dimension=4, value_dimension=4
    ),
    "window": AttentionConfig(window=3),
    "sinks": AttentionConfig(sinks=True),
}
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


def drawn(samples: int, length: int) -> Tensor:
    """Samples of documents of many lengths, some empty, cut anywhere."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 255, (samples, length), generator=generator)
    return tokens.masked_fill(torch.rand(tokens.shape, generator=generator) < 0.15, SEPARATOR)


def unpacked(sample: Tensor) -> list[Tensor]:
    """The documents of a sample, each with its separator and with nothing before it."""
    ends = [place + 1 for place, token in enumerate(sample.tolist()) if token == SEPARATOR]
    return [document for document in torch.tensor_split(sample, ends) if len(document)]


def sharpened(model: Transformer) -> Transformer:
    """The same model with attention that is far from even."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8.0)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_document_has_the_loss_the_gradient_and_the_largest_logits_that_it_has_alone(kind: str) -> None:
    config = TransformerConfig(width=16, layers=2, heads=2, sequence=32, attention=KINDS[kind])
    samples, model = drawn(4, 33), sharpened(Transformer(config, seed=3).double())
    documents, targets = documents_of(samples, SEPARATOR), targets_of(samples, SEPARATOR)
    together = model(samples[:, :-1], targets, reduction="none", masked=True, documents=documents, exact=True)
    together.loss.sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    largest = torch.full_like(together.attention.max_logit, -torch.inf)
    for row, sample in enumerate(samples):
        trained = [document[None] for document in unpacked(sample) if len(document) > 1]
        counted = sum(document.shape[1] - 1 for document in trained)
        losses = [model(one[:, :-1], one[:, 1:]).loss * (one.shape[1] - 1) / counted for one in trained]
        assert together.loss[row].item() == pytest.approx(sum(losses).item(), rel=1e-5)
        sum(losses).backward()
        for document in unpacked(sample[:-1]):
            largest = torch.maximum(largest, model(document[None], exact=True).attention.max_logit)
    torch.testing.assert_close(together.attention.max_logit, largest, rtol=1e-4, atol=1e-6)
    for name, parameter in model.named_parameters():
        # Positions count from the window's start: the same distances, rounded otherwise.
        rounding = 1e-5 * gradients[name].abs().max().item()
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=rounding, msg=name)


def test_attention_to_earlier_documents_would_give_other_losses() -> None:
    model = sharpened(Transformer(TransformerConfig(width=16, layers=2, heads=2, sequence=32), seed=3))
    samples = drawn(4, 33)
    masked, opened = (
        model(samples[:, :-1], samples[:, 1:], reduction="none", documents=documents).loss
        for documents in (documents_of(samples, SEPARATOR), None)
    )
    assert ((masked - opened).abs() > 1e-3).all()


def test_a_separator_belongs_to_the_document_that_it_ends() -> None:
    found = documents_of(SAMPLES, SEPARATOR)
    assert found is not None
    assert found.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2], [0] * 6]
    assert documents_of(SAMPLES, None) is None


def test_a_probe_masks_attention_as_training_does_in_micro_batches() -> None:
    packing = PackingConfig(boundaries="masked", attention="masked", separator=SEPARATOR)
    data = DataConfig(path="unused", kind=SourceKind.TEXT, packing=packing)
    made = Trainee(TrainerConfig(data=data, steps=50, global_batch=4, model=MODEL))
    sharpened(made.model)
    targets = targets_of(SAMPLES, SEPARATOR)
    batch = Batch(1, 1, 0, SAMPLES[:, :-1], targets, torch.arange(3), None, documents_of(SAMPLES, SEPARATOR))
    probed = made.losses(SAMPLES)
    trained = [loss for part in batch.micro_batches(3) if (loss := made.forward(part).loss) is not None]
    torch.testing.assert_close(probed, torch.stack(trained), rtol=1e-5, atol=0)
    seeing_all = made.model(SAMPLES[:, :-1], targets, reduction="none", masked=True).loss
    assert ((probed - seeing_all)[:2].abs() > 1e-3).all()
