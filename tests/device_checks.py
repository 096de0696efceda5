"""What must hold on an accelerator, held against the CPU on a device that is none (`stand_in_device`).

`python -m device_checks` runs all of it in a process of its own, and prints as JSON what failed, by name.
"""

import copy
import json
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import pytest
import stand_in_device
import torch
from stand_in_device import DEVICE, OnDevice, Watch
from torch import Tensor
from trimtab_trainer.batches import Batch
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.max_logits import Logits, kernel_calls, logits
from trimtab_trainer.model import Transformer, TransformerConfig, attention
from trimtab_trainer.model.attention import causal_attention
from trimtab_trainer.model.attention_config import AttentionConfig
from trimtab_trainer.model.experts_config import ExpertsConfig
from trimtab_trainer.model.kernels import AttentionCase, Kernel
from trimtab_trainer.model.visibility import CAUSAL, Visibility
from trimtab_trainer.optim import (
    GradientClipping,
    LogitRecorder,
    MuonClip,
    MuonClipConfig,
    ParameterGroup,
    StepTelemetry,
    checksum,
    count_non_finite,
    first_non_finite,
    logit_recorder,
    parameter_checksum,
)
from trimtab_trainer.optim.health import optimizer_health

SHAPE: Final = TransformerConfig(width=32, layers=3, heads=4, sequence=16, vocab_size=64)
KINDS: Final = {
    "multi-head": SHAPE,
    "biases and dropout": replace(SHAPE, bias=True, dropout=0.1),
    "grouped-query": replace(SHAPE, attention=AttentionConfig(kind="groupedQuery", key_value_heads=2)),
    "window and sinks": replace(SHAPE, attention=AttentionConfig(window=5, sinks=True)),
    "latent": replace(
        SHAPE,
        attention=AttentionConfig(
            kind="latent", key_value_rank=8, content_dimension=8, rotary_dimension=4, value_dimension=8
        ),
    ),
    "experts": replace(SHAPE, experts=ExpertsConfig(count=4, capacity_factor=1.0)),
    "recomputed": replace(SHAPE, activation_checkpointing=True),
}
SETTINGS: Final = MuonClipConfig(newton_schulz_dtype="float32", muon_lr=0.02, qk_clip_threshold=0.002)

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Have `function` run."""
    CHECKS[function.__name__] = function
    return function


def samples(vocabulary: int = 64) -> Tensor:
    """Four windows."""
    return torch.randint(0, vocabulary, (4, SHAPE.sequence + 1), generator=torch.Generator().manual_seed(3))


class Training:
    """A model and its optimizer, on the device or on the CPU."""

    def __init__(self, config: TransformerConfig, device: str, settings: MuonClipConfig = SETTINGS) -> None:
        self.device = device
        self.model = Transformer(config, seed=1).to(device)
        self.optimizer = MuonClip(self.model.named_parameters(), self.model.attention_heads(), settings)
        self.samples = samples().to(device)

    def forward(self, *, exact: bool = False, threshold: float | None = None) -> Any:
        """One forward pass."""
        return self.model(
            self.samples[:, :-1],
            self.samples[:, 1:],
            qk_threshold=self.optimizer.lowest_threshold if threshold is None else threshold,
            exact=exact,
            sample_ids=torch.arange(4, device=self.device),
        )

    def step(self) -> tuple[Tensor, Tensor, StepTelemetry]:
        """Loss, largest logits, and what the update did."""
        self.optimizer.zero_grad()
        output = self.forward(exact=True)
        output.objective.backward()
        update = self.optimizer.step(output.attention.max_logit)
        return output.loss.detach().cpu(), output.attention.max_logit.cpu(), update


@contextmanager
def flash_attention() -> Generator[None]:
    """The kernel that CUDA has for half precision, and that the stand-in has for any type."""
    real = attention.choose_kernel

    def choose(case: AttentionCase, available: frozenset[Kernel]) -> Kernel:
        plain = not (case.masked or case.sink)
        return Kernel.CUDA_FLASH if case.device == stand_in_device.NAME and plain else real(case, available)

    with patch.object(attention, "choose_kernel", choose):
        yield


def alike(found: Tensor, expected: Tensor) -> None:
    """Equal but for the order of sums."""
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=2e-4, atol=2e-5)


def same_training(config: TransformerConfig, settings: MuonClipConfig = SETTINGS) -> None:
    """Three updates on either are the same."""
    there, here = Training(config, DEVICE, settings), Training(config, "cpu", settings)
    for _ in range(3):
        found, expected = there.step(), here.step()
        alike(found[0], expected[0])
        alike(found[1], expected[1])
        alike(found[2].qk_clip_gamma, expected[2].qk_clip_gamma)
        torch.testing.assert_close(found[2].update_rms, expected[2].update_rms, rtol=1e-4, atol=0)
    assert (found[2].qk_clip_gamma < 1).any(), "some head is clipped"
    for (name, parameter), own in zip(there.model.named_parameters(), here.model.parameters(), strict=True):
        assert parameter.device.type == torch.device(DEVICE).type, name
        alike(parameter, own)


def _add_kinds() -> None:
    for kind, config in KINDS.items():
        CHECKS[f"training of {kind}"] = lambda config=config: same_training(config)


_add_kinds()


@check
def training_in_other_ways() -> None:
    for ways in ({"nesterov": False}, {"gram": True}, {"coefficients": "polar_express"}):
        same_training(SHAPE, replace(SETTINGS, **ways))


@check
def training_with_the_kernel_of_cuda() -> None:
    with flash_attention():
        for kind in ("multi-head", "grouped-query", "latent", "experts", "recomputed"):
            same_training(KINDS[kind])


@check
def the_kernel_of_cuda_is_asked_for_reproducible_gradients() -> None:
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    real, warned = stand_in_device._OF_CUDA[backward], list[bool]()

    def noted(*args: Any, **given: Any) -> Any:
        warned.append(torch.is_deterministic_algorithms_warn_only_enabled())
        return real(*args, **given)

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with flash_attention(), patch.dict(stand_in_device._OF_CUDA, {backward: noted}):
            for kind in ("multi-head", "recomputed"):
                Training(KINDS[kind], DEVICE).forward().objective.backward()
                assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert warned == [False] * 6, "that kernel adds up in any order where PyTorch only warns of such"


@check
def a_forward_pass_waits_once_however_many_layers_there_are() -> None:
    for layers in (2, 6):
        training = Training(replace(SHAPE, layers=layers), DEVICE)
        training.forward(threshold=1e9)
        with flash_attention(), Watch() as watch:
            output = training.forward(threshold=1e9)
            output.objective.backward()
        assert watch.waits.total() == 1, (layers, watch.waits)
        assert not output.attention.exact.any()


@check
def a_batch_goes_to_the_device_while_that_is_busy() -> None:
    windows = samples()
    batch = Batch(
        attempt=1,
        step=1,
        window=0,
        tokens=windows[:, :-1],
        targets=windows[:, 1:],
        sample_ids=torch.arange(4),
        rate_override=None,
        documents=torch.zeros_like(windows[:, 1:]),
    )
    with Watch() as watch:
        there = [part.to(torch.device(DEVICE)) for part in batch.micro_batches(2)]
    assert not watch.waits, watch.waits
    assert torch.equal(torch.cat([part.tokens.cpu() for part in there]), batch.tokens)
    assert torch.equal(torch.cat([part.sample_ids.cpu() for part in there]), batch.sample_ids)


@check
def a_mixture_of_experts_waits_no_more_with_more_experts() -> None:
    counts: list[int] = []
    for count in (2, 8):
        training = Training(replace(SHAPE, experts=ExpertsConfig(count=count)), DEVICE)
        with Watch() as watch:
            training.forward().objective.backward()
        counts.append(watch.waits.total())
    assert counts[0] == counts[1], counts


@check
def an_update_waits_a_few_times_however_many_matrices_there_are() -> None:
    counts: list[int] = []
    for layers in (2, 6):
        training = Training(replace(SHAPE, layers=layers), DEVICE)
        output = training.forward(exact=True)
        output.objective.backward()
        assert (output.attention.max_logit > SETTINGS.qk_clip_threshold).any(1).all(), "heads of all layers are clipped"
        with Watch() as watch:
            training.optimizer.step(output.attention.max_logit)
        counts.append(watch.waits.total())
    assert counts[0] == counts[1] <= 5, counts


@check
def what_is_looked_at_in_every_step_waits_no_more_with_more_parameters() -> None:
    waits: list[int] = []
    for layers in (2, 6):
        training = Training(replace(SHAPE, layers=layers, experts=ExpertsConfig(count=2)), DEVICE)
        training.forward().objective.backward()
        names = [name for name, _ in training.model.named_parameters()]
        clipping = GradientClipping(names, (ParameterGroup(pattern="*.router.*", gradient_clip=0.1),), 0.01)
        with Watch() as watch:
            clip = clipping.clip([parameter.grad for parameter in training.model.parameters()])
            optimizer_health(training.optimizer)
        assert clip.ratio < 1
        waits.append(watch.waits.total())
    assert waits[0] == waits[1], waits


def flash(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False) -> Tensor:
    """`scaled_dot_product_attention` where PyTorch takes the kernel of CUDA."""
    if torch.overrides.has_torch_function((query, key, value)):
        return torch.overrides.handle_torch_function(flash, (query, key, value), query, key, value, is_causal=is_causal)
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]


@contextmanager
def recorded_kernels() -> Generator[None]:
    """The recorder sees the tensors of the device, and the attention that is called there."""
    with (
        patch.object(kernel_calls, "_PLAIN", (*kernel_calls._PLAIN, OnDevice)),
        patch.object(logit_recorder, "_ATTENTION", (flash,)),
    ):
        yield


@check
def a_recorder_waits_once_for_each_forward_pass() -> None:
    generator = torch.Generator().manual_seed(2)
    drawn = [[torch.randn(2, 4, 16, 8, generator=generator) for _ in range(2)] for _ in range(5)]
    expected = torch.stack([causal_attention(one, key, key, threshold=0.0, exact=True).max_logit for one, key in drawn])
    middle = float(expected.flatten().sort().values[9:11].mean())
    for kept, threshold, waits in ((True, 1e9, 1), (False, 1e9, 5), (True, middle, None), (False, middle, None)):
        recorder = LogitRecorder(5, threshold=partial(float, threshold))
        inputs = [[one.to(DEVICE).requires_grad_(kept) for one in layer] for layer in drawn]
        for _ in range(2):
            with recorded_kernels(), Watch() as watch, recorder:
                outputs = [flash(query, key, key, is_causal=True) for query, key in inputs]
            assert waits in {None, watch.waits.total()}, (kept, watch.waits)
        with suppress(KeyError), recorded_kernels(), recorder:
            flash(*inputs[0], inputs[0][1])
            raise KeyError
        found = recorder.take()
        assert found.exact.cpu()[expected > threshold].all()
        assert not (found.exact & (found.max_logit < threshold)).all()
        alike(found.max_logit[found.exact], expected[found.exact.cpu()])
        assert (found.max_logit.cpu() >= expected - 1e-5).all()
        del outputs


class Attention(torch.nn.Module):
    """One head for each four channels, as frameworks' models have it."""

    head_dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = torch.nn.Linear(32, 32, bias=False), torch.nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key = (one(x).unflatten(-1, (4, 8)).transpose(1, 2) for one in (self.q_proj, self.k_proj))
        return x + flash(query, key, key, is_causal=True).transpose(1, 2).flatten(2)


@check
def the_optimizer_of_frameworks_waits_once_for_all_layers_of_a_forward_pass() -> None:
    model = torch.nn.Sequential(*(Attention() for _ in range(5)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=torch.Generator().manual_seed(len(parameter)))
    inputs = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(6))
    expected: list[Tensor] = []
    x = inputs
    for layer in model:
        query, key = (one(x).unflatten(-1, (4, 8)).transpose(1, 2) for one in (layer.q_proj, layer.k_proj))
        attended = causal_attention(query, key, key, threshold=0.0, exact=True)
        expected.append(attended.max_logit)
        x = x + attended.output.transpose(1, 2).flatten(2)
    largest, inputs = torch.stack(expected).detach(), inputs.to(DEVICE)
    for threshold in (1e9, float(largest.flatten().sort().values[9:11].mean())):
        watched = copy.deepcopy(model).to(DEVICE)
        optimizer = MuonClipOptimizer(watched, replace(SETTINGS, qk_clip_threshold=threshold))
        for _ in range(2):
            with recorded_kernels(), Watch() as watch:
                watched(inputs)
            assert threshold < 1e9 or watch.waits.total() == 1, watch.waits
        found = optimizer.take_logits()
        assert found.exact.cpu()[largest > threshold].all()
        alike(found.max_logit[found.exact], largest[found.exact.cpu()])
        assert (found.max_logit.cpu() >= largest - 1e-4).all()


@check
def whole_products_have_no_more_scores_at_once_than_there_is_room_for() -> None:
    generator = torch.Generator().manual_seed(6)
    query, key = (torch.randn(2, 4, 40, 8, generator=generator) for _ in range(2))
    for visibility in (CAUSAL, Visibility(window=7)):
        expected = Logits(query, key, visibility, 1.0).maxima()
        for most, chunks in ((1 << 20, 1), (2 * 4 * 40 * 16, 3), (1, 40)):
            with patch.object(logits, "SCORES_TOGETHER", most), Watch() as watch:
                found = Logits(query.to(DEVICE), key.to(DEVICE), visibility, 1.0).maxima()
            alike(found, expected)
            assert watch.launches["aten.bmm.default"] == chunks, watch.launches


@check
def attention_with_sinks_has_heads_of_a_dimension_that_kernels_take() -> None:
    seen: list[int] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(query: Tensor, *rest: Any, **settings: Any) -> Tensor:
        seen.append(query.shape[-1])
        return real(query, *rest, **settings)

    with patch.object(torch.nn.functional, "scaled_dot_product_attention", spy):
        same_training(KINDS["window and sinks"])
        assert {one % 8 for one in seen} == {0}, seen


@check
def what_is_not_finite_is_found() -> None:
    training = Training(SHAPE, DEVICE)
    training.step()
    gradients = [(name, parameter.grad) for name, parameter in training.model.named_parameters()]
    assert first_non_finite(gradients) is None
    gradients[4][1][0, 3] = float("nan")
    assert first_non_finite(gradients) == gradients[4][0]
    assert count_non_finite(gradient for _, gradient in gradients) == 1


@check
def health_is_that_of_the_cpu() -> None:
    there, here = Training(SHAPE, DEVICE), Training(SHAPE, "cpu")
    for training in (there, here):
        training.step()
    for found, expected in zip(optimizer_health(there.optimizer), optimizer_health(here.optimizer), strict=True):
        for name in ("norm", "spectral_norm", "momentum_norm", "update_norm"):
            ours, theirs = getattr(found, name), getattr(expected, name)
            assert (ours is None) == (theirs is None), (found, expected)
            torch.testing.assert_close(ours or 0.0, theirs or 0.0, rtol=1e-4, atol=1e-7)


@check
def a_checksum_is_that_of_the_cpu() -> None:
    model = Transformer(SHAPE, seed=4)
    expected = parameter_checksum(model.named_parameters())
    assert parameter_checksum(model.to(DEVICE).named_parameters()) == expected
    half = [("half", torch.randn(3000, 7, dtype=torch.bfloat16))]
    assert parameter_checksum([("half", half[0][1].to(DEVICE))]) == parameter_checksum(half)


@check
def a_checksum_launches_no_more_for_a_larger_model() -> None:
    counts: list[int] = []
    for rows in (100, 900):
        tensor = torch.ones(rows, 1024).to(DEVICE)
        with Watch() as watch:
            parameter_checksum([("one", tensor)])
        counts.append(watch.launches.total())
    assert counts[0] == counts[1], counts
    with patch.object(checksum, "DEVICE_ROWS", 3):
        a_checksum_is_that_of_the_cpu()


@check
def an_update_launches_far_less_than_that_of_pytorch() -> None:
    def launches(build: Callable[[list[torch.nn.Parameter]], Callable[[], object]]) -> int:
        generator = torch.Generator().manual_seed(1)
        shapes = [(64, 64)] * 16 + [(128, 64)] * 8
        parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(DEVICE)) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        step = build(parameters)
        step()
        with Watch() as watch:
            step()
        return watch.launches.total()

    def ours(parameters: list[torch.nn.Parameter]) -> Callable[[], object]:
        named = [(f"{number}.weight", parameter) for number, parameter in enumerate(parameters)]
        optimizer = MuonClip(named, [], replace(SETTINGS, newton_schulz_dtype="bfloat16"))
        return lambda: optimizer.step(torch.empty(0, device=DEVICE))

    assert launches(ours) < 0.2 * launches(lambda parameters: torch.optim.Muon(parameters).step)


@check
def the_device_refuses_to_mix_its_memory_with_that_of_the_host() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)


OF_NUMBERS: Final = (
    *(f"training of {kind}" for kind in KINDS),
    training_in_other_ways.__name__,
    what_is_not_finite_is_found.__name__,
    health_is_that_of_the_cpu.__name__,
    a_checksum_is_that_of_the_cpu.__name__,
)
"""What can be asked of any device: nothing is counted."""


def main() -> None:
    """Run every check, or those that are named."""
    stand_in_device.install()
    failed: dict[str, str] = {}
    for name, function in CHECKS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        with Watch():
            try:
                function()
            except Exception:  # noqa: BLE001 each is told by name
                failed[name] = traceback.format_exc()
    print(json.dumps({"run": list(CHECKS), "failed": failed}))


if __name__ == "__main__":
    main()
