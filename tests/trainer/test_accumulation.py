"""A share that is cut into micro-batches is the same step: the same samples, gradients, losses and largest logits."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from trimtab_trainer.accumulation import MicroBatches, accumulate
from trimtab_trainer.assembly import share_problems
from trimtab_trainer.batches import Batch
from trimtab_trainer.config import DataConfig, TrainerConfig
from trimtab_trainer.data.packing import documents_of, targets_of
from trimtab_trainer.model import ModelOutput, Transformer, TransformerConfig

SEPARATOR = 7
SHAPE = TransformerConfig(width=32, layers=2, heads=2, sequence=32, dropout=0.2)


def share(samples: int = 8) -> Batch:
    """Samples in which documents end at different places, so that their windows have unequal numbers of targets."""
    tokens = torch.randint(0, 256, (samples, 33), generator=torch.Generator().manual_seed(5))
    for sample, row in enumerate(tokens):
        row[2 : 2 + 3 * sample] = SEPARATOR
    targets, documents = targets_of(tokens, SEPARATOR), documents_of(tokens, SEPARATOR)
    return Batch(1, 1, 0, tokens[:, :-1], targets, torch.arange(samples), None, documents)


def computed(count: int, *, masked: bool, threshold: float = math.inf) -> tuple[MicroBatches, dict[str, Tensor]]:
    model = Transformer(SHAPE, seed=3)
    batch = share()
    if not masked:
        batch = Batch(1, 1, 0, batch.tokens, batch.tokens.roll(-1, 1), batch.sample_ids, None)

    def forward(part: Batch) -> ModelOutput:
        return model(
            part.tokens,
            part.targets,
            qk_threshold=threshold,
            sample_ids=part.sample_ids,
            masked=masked,
            documents=part.documents,
        )

    found = accumulate(batch, count, forward)
    return found, {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [2, 8])
def test_losses_are_weighted_so_that_no_cut_changes_the_gradient(count: int, *, masked: bool) -> None:
    whole, expected = computed(1, masked=masked)
    cut, gradients = computed(count, masked=masked)
    assert len(cut.losses) == count
    torch.testing.assert_close(cut.loss, whole.loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(cut.max_logits, whole.max_logits, rtol=1e-4, atol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6, msg=name)


def test_a_cut_that_does_not_come_out_even_is_refused_with_the_numbers() -> None:
    data = DataConfig(path="unused")
    config = TrainerConfig(data=data, steps=50, global_batch=8, gradient_accumulation_steps=4)
    assert list(share_problems(config, 2)) == []
    (problem,) = share_problems(config, 4)
    assert problem.startswith("gradientAccumulationSteps: 4 must divide 2, the samples of globalBatch")
    # Where there are no equal shares at all, that alone is said, with the data.
    assert list(share_problems(config, 3)) == []


def test_the_micro_batches_are_the_samples_in_their_order() -> None:
    batch = share()
    parts = list(batch.micro_batches(4))
    assert torch.equal(torch.cat([part.tokens for part in parts]), batch.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
    assert torch.equal(torch.cat([part.sample_ids for part in parts]), batch.sample_ids)
    assert {(part.step, part.window, len(part.tokens)) for part in parts} == {(1, 0, 2)}


def of(logits: list[float], exactly: list[bool], losses: list[float] | None = None) -> MicroBatches:
    shape = (len(logits), 1, 1)
    return MicroBatches(
        losses=torch.tensor(losses or [1.0] * len(logits)),
        logits=torch.tensor(logits).view(shape),
        exactly=torch.tensor(exactly).view(shape),
    )


def test_the_largest_logit_of_all_micro_batches_clips_and_is_exact_where_its_own_micro_batch_says_so() -> None:
    hot = of([3.0, 120.0, 80.0], [False, True, False])
    assert (hot.max_logits.item(), hot.exact.item()) == (120.0, True)
    bound = of([3.0, 4.0], [True, False])
    assert (bound.max_logits.item(), bound.exact.item()) == (4.0, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_micro_batch_is_counted_and_named_wherever_it_is(bad: float) -> None:
    everywhere: list[Callable[[int], MicroBatches]] = [
        lambda at: of([bad if one == at else 1.0 for one in range(3)], [True] * 3),
        lambda at: of([1.0] * 3, [True] * 3, [bad if one == at else 1.0 for one in range(3)]),
    ]
    for what, made in zip(("attention logits of layer 0, head 0", "loss"), everywhere, strict=True):
        for at in range(3):
            found = made(at)
            assert found.first_bad() == f"{what} of micro-batch {at + 1} of 3"
            assert found.nonfinite.item() == 1
    assert of([1.0, 2.0], [True, True]).first_bad() is None
