"""The attention kernels of an accelerator against the whole matrix in float64, for machines that have one.

`make test-accelerator`. With TRIMTAB_ACCELERATOR=cpu the same tests run on the kernels of the CPU.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from trimtab_trainer.model import attention
from trimtab_trainer.model.attention import causal_attention
from trimtab_trainer.model.kernels import Kernel
from trimtab_trainer.model.visibility import CAUSAL, Visibility
from trimtab_trainer.optim import LogitRecorder
from whole_matrix import HEADS, MASKS, Inputs, full_matrix

pytestmark = pytest.mark.accelerator

DEVICE = torch.device(os.environ.get("TRIMTAB_ACCELERATOR", "cuda"))
HALF = (torch.bfloat16, torch.float16)
EVERY = (*HALF, torch.float32)
NO_MASK = ("causal",)
ON_CUDA: dict[Kernel, tuple[tuple[torch.dtype, ...], tuple[str, ...]]] = {
    Kernel.CUDA_FLASH: (HALF, NO_MASK),
    Kernel.FLEX: (EVERY, tuple(MASKS)),
    Kernel.PLAIN: (EVERY, tuple(MASKS)),
}
ON_CPU: dict[Kernel, tuple[tuple[torch.dtype, ...], tuple[str, ...]]] = {
    Kernel.CPU_FLASH: (EVERY, tuple(MASKS)),
    Kernel.PLAIN: (EVERY, tuple(MASKS)),
}
CASES = [
    pytest.param(kernel, dtype, mask, id=f"{kernel.value}-{str(dtype).removeprefix('torch.')}-{mask}")
    for kernel, (dtypes, masks) in (ON_CPU if DEVICE.type == "cpu" else ON_CUDA).items()
    for dtype in dtypes
    for mask in masks
]
TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 6e-3, torch.float32: 2e-3}
"""Of outputs and gradients, of which the largest are about 5."""


def there(visibility: Visibility) -> Visibility:
    """The same on the device."""
    documents, present = visibility.documents, visibility.present
    return Visibility(
        window=visibility.window,
        documents=None if documents is None else documents.to(DEVICE),
        present=None if present is None else present.to(DEVICE),
    )


def moved(inputs: Inputs) -> Inputs:
    """The same on the device, with gradients."""
    query, key, value = (one.detach().to(DEVICE).requires_grad_() for one in inputs.tensors()[:3])
    return replace(inputs, query=query, key=key, value=value)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel], None]:
    """Have one kernel taken."""
    return lambda kernel: monkeypatch.setattr(attention, "choose_kernel", lambda *_: kernel)


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize(("kernel", "dtype", "mask"), CASES)
def test_largest_logits_output_and_gradients_are_those_of_the_whole_matrix(
    kernel: Kernel, dtype: torch.dtype, mask: str, key_heads: int, chosen: Callable[[Kernel], None]
) -> None:
    chosen(kernel)
    visibility, drawn = MASKS[mask](), Inputs.drawn(key_heads=key_heads, dimension=64, dtype=dtype)
    exact = replace(drawn, **{name: getattr(drawn, name).double() for name in ("query", "key", "value")})
    for tensor in exact.tensors():
        tensor.requires_grad_()
    output, largest = full_matrix(exact, visibility)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected = torch.autograd.grad((output * weights).sum(), exact.tensors())

    for threshold in (-1e6, float(largest.median()), 1e6):
        inputs = moved(drawn)
        result = causal_attention(
            inputs.query, inputs.key, inputs.value, threshold=threshold, exact=False, visibility=there(visibility)
        )
        known, found = result.exact.cpu(), result.max_logit.cpu().double()
        assert known[largest > threshold * (1 + 1e-3)].all()
        assert (known | (found <= threshold)).all()
        torch.testing.assert_close(found[known], largest[known], rtol=1e-5, atol=1e-4)
        assert (found >= largest - 1e-4 * largest.abs().clamp(min=1)).all()
    close = {"rtol": TOLERANCE[dtype], "atol": 5 * TOLERANCE[dtype]}
    torch.testing.assert_close(result.output.detach().cpu().double(), output.detach(), **close)
    gradients = torch.autograd.grad((result.output * weights.to(DEVICE, dtype)).sum(), inputs.tensors())
    for gradient, own in zip(gradients, expected, strict=True):
        size = float(own.abs().max())
        torch.testing.assert_close(gradient.cpu().double(), own, rtol=0, atol=TOLERANCE[dtype] * size)


BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]


@pytest.fixture(params=BACKENDS, ids=lambda one: one.name)
def backend(request: pytest.FixtureRequest) -> Iterator[SDPBackend]:
    """Have PyTorch take one kernel of its own."""
    if DEVICE.type == "cpu" and request.param not in {SDPBackend.FLASH_ATTENTION, SDPBackend.MATH}:
        pytest.skip("the CPU has no such kernel")
    with sdpa_kernel(request.param):
        yield request.param


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_recorder_knows_the_largest_logits_of_whatever_kernel_is_taken_and_changes_no_bit(
    backend: SDPBackend, needs_gradient: bool
) -> None:
    drawn = Inputs.drawn(dimension=64, dtype=torch.bfloat16)
    _, largest = full_matrix(drawn, CAUSAL)

    def attended() -> tuple[Tensor, ...]:
        query, key, value = (one.detach().to(DEVICE).requires_grad_(needs_gradient) for one in drawn.tensors())
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return (output, *(torch.autograd.grad(output.sum(), (query, key, value)) if needs_gradient else ()))

    for threshold in (1e6, float(largest.median())):
        recorder = LogitRecorder(1, threshold=lambda lowest=threshold: lowest)
        with recorder:
            output = attended()
        found = recorder.take()
        known, numbers = found.exact[0].cpu(), found.max_logit[0].cpu().double()
        assert known[largest > threshold].all()
        torch.testing.assert_close(numbers[known], largest[known], rtol=1e-5, atol=1e-4)
        assert (numbers >= largest - 1e-4 * largest.abs().clamp(min=1)).all()
        if (
            threshold == 1e6
            and needs_gradient
            and backend
            in {
                SDPBackend.FLASH_ATTENTION,
                SDPBackend.EFFICIENT_ATTENTION,
            }
        ):
            assert not known.any(), "the kernel's log-sum-exp was enough"
        for mine, own in zip(output, attended(), strict=True):
            torch.testing.assert_close(mine, own, rtol=0, atol=0)
