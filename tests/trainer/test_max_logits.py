"""Largest logits and outputs of every kernel that runs here, against the whole matrix in float64, under every mask."""

import math
from collections.abc import Callable, Generator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._higher_order_ops.flex_attention import math_attention
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import AuxOutput, BlockMask
from trimtab_trainer.max_logits import gate, logits
from trimtab_trainer.model import attention, kernels
from trimtab_trainer.model.attention import AttentionResult, causal_attention, full_product_max_logit
from trimtab_trainer.model.kernels import AttentionCase, Kernel, choose_kernel
from trimtab_trainer.model.visibility import CAUSAL, Visibility
from whole_matrix import (
    BATCH,
    DIMENSION,
    HEADS,
    MASKS,
    TOKENS,
    WINDOW,
    Attend,
    Inputs,
    check_maxima,
    document_numbers,
    full_matrix,
)


@pytest.fixture(params=[True, False], ids=["flash", "plain"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel that runs on the CPU in turn."""
    if not request.param:
        monkeypatch.setattr(attention, "available_kernels", lambda: frozenset({Kernel.PLAIN}))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_maxima_and_output_are_those_of_the_whole_matrix(
    mask: str, key_heads: int, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, visibility = Inputs.drawn(key_heads=key_heads, sink=sink), MASKS[mask]()
    expected = full_matrix(inputs, visibility)
    for fraction, together in ((0.0, 32), (0.1, 0), (1.0, 0), (1.0, 999)):
        monkeypatch.setattr(gate, "FULL_PRODUCT_FRACTION", fraction)
        monkeypatch.setattr(logits, "ROWS_TOGETHER", together)
        check_maxima(causal_attention, inputs, visibility, expected)


def flex_by_definition(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: BlockMask, scale: float | None, **_: object
) -> tuple[Tensor, AuxOutput]:
    """What flex_attention returns, by PyTorch's own definition of it; its kernels with maxima are for CUDA alone."""
    output, _log_sum_exp, largest = math_attention(
        query,
        key,
        value,
        lambda score, *_indices: score,
        block_mask.as_tuple(),
        1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        {},
    )
    return output, AuxOutput(max_scores=largest * math.log(2))


@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_flex_attention_is_asked_for_what_the_masks_say(
    mask: str, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_compiled_flex", lambda: flex_by_definition)
    monkeypatch.setattr(attention, "choose_kernel", lambda *_: Kernel.FLEX)
    inputs, visibility = Inputs.drawn(key_heads=key_heads), MASKS[mask]()
    check_maxima(causal_attention, inputs, visibility)
    result = causal_attention(
        inputs.query, inputs.key, inputs.value, threshold=1e6, exact=False, visibility=visibility, scale=0.5
    )
    assert result.exact.all()
    torch.testing.assert_close(
        result.max_logit.double(), full_matrix(inputs, visibility)[1] * math.sqrt(DIMENSION) / 2, rtol=2e-6, atol=2e-5
    )


@pytest.fixture
def compiled_flex(monkeypatch: pytest.MonkeyPatch) -> Generator[CompileCounterWithBackend]:
    """PyTorch's compiler follows flex_attention as on CUDA, up to the kernel: only that one is for CUDA alone."""
    options = {"OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": True, "BACKEND": "AUTO"}
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex_attention, "_apply_kernel_options", lambda *_: options)
    torch.compiler.reset()
    counting = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(flex_attention.flex_attention, backend=counting, fullgraph=True)
    monkeypatch.setattr(kernels, "_compiled_flex", lambda: compiled)
    monkeypatch.setattr(attention, "choose_kernel", lambda *_: Kernel.FLEX)
    yield counting
    torch.compiler.reset()


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_flex_attention_can_be_compiled_and_has_the_maxima_and_gradients_of_the_whole_matrix(
    mask: str, key_heads: int, compiled_flex: CompileCounterWithBackend
) -> None:
    del compiled_flex
    visibility = MASKS[mask]()
    inputs = Inputs.drawn(key_heads=key_heads)
    for tensor in inputs.tensors():
        tensor.requires_grad_()
    result = causal_attention(inputs.query, inputs.key, inputs.value, threshold=0.0, exact=False, visibility=visibility)
    output, largest = full_matrix(inputs, visibility)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    found = torch.autograd.grad((result.output * weights).sum(), inputs.tensors())
    torch.testing.assert_close(result.output.double(), output, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(result.max_logit.double(), largest, rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(
        found, torch.autograd.grad((output * weights).sum(), inputs.tensors()), rtol=1e-3, atol=1e-4
    )


def test_flex_attention_is_compiled_once_for_all_layers_and_steps(
    compiled_flex: CompileCounterWithBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    real = flex_attention.create_block_mask
    monkeypatch.setattr(
        flex_attention, "create_block_mask", lambda *given, **more: made.append(0) or real(*given, **more)
    )
    for step in range(4):
        visibility = Visibility(window=WINDOW, documents=document_numbers() * (step + 1))
        for _layer in range(3):
            inputs = Inputs.drawn()
            causal_attention(*inputs.tensors(), threshold=0.0, exact=False, visibility=visibility)
    assert compiled_flex.frame_count == 1
    assert len(made) == 4, "one mask for all layers of a step"


@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
def test_the_flash_operator_of_cuda_takes_what_it_is_given(key_heads: int) -> None:
    # What PyTorch itself says of its operator on CUDA: tensors that only have a shape need no device.
    with FakeTensorMode():
        query, key = (
            torch.empty(BATCH, heads, TOKENS, 64, dtype=torch.bfloat16, device="cuda") for heads in (HEADS, key_heads)
        )
        output, log_sum_exp = kernels.cuda_flash(query, key, key, None)
    assert (output.shape, output.dtype, output.device.type) == (query.shape, torch.bfloat16, "cuda")
    assert (log_sum_exp.shape, log_sum_exp.dtype) == ((BATCH, HEADS, TOKENS), torch.float32)


@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
def test_the_flash_kernel_of_cuda_is_asked_as_that_of_the_cpu_is(
    key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_cpu(*arguments: object, scale: float | None) -> tuple[Tensor, Tensor, None]:
        *inputs, dropout, causal, debug = arguments
        assert (dropout, causal, debug) == (0.0, True, False)
        assert {tensor.shape[1] for tensor in inputs} == {HEADS, key_heads}
        return (*kernels.cpu_flash(*inputs, scale=scale), None)

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention", on_cpu)
    monkeypatch.setattr(attention, "choose_kernel", lambda *_: Kernel.CUDA_FLASH)
    check_maxima(causal_attention, Inputs.drawn(key_heads=key_heads), CAUSAL)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("value_dimension", [5, 12])
@pytest.mark.parametrize("sink", [False, True])
def test_values_may_have_another_dimension(value_dimension: int, sink: bool) -> None:
    check_maxima(causal_attention, Inputs.drawn(value_dimension=value_dimension, sink=sink), MASKS["all"]())


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_are_those_of_the_whole_matrix(mask: str) -> None:
    def gradients(attend: Callable[[Inputs], Tensor]) -> tuple[Tensor, ...]:
        inputs = Inputs.drawn(key_heads=2, value_dimension=5, sink=True, dtype=torch.float64)
        for tensor in inputs.tensors():
            tensor.requires_grad_()
        output = attend(inputs)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        return torch.autograd.grad((output * weights).sum(), inputs.tensors())

    visibility = MASKS[mask]()
    expected = gradients(lambda inputs: full_matrix(inputs, visibility)[0])
    ours = gradients(
        lambda inputs: (
            causal_attention(
                inputs.query,
                inputs.key,
                inputs.value,
                threshold=1.0,
                exact=True,
                visibility=visibility,
                sink=inputs.sink,
            ).output
        )
    )
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


def everything_seen(query: Tensor, key: Tensor, value: Tensor, *, visibility: Visibility, **rest: object) -> object:
    result = causal_attention(query, key, value, visibility=visibility, **rest)
    return AttentionResult(result.output, full_product_max_logit(query, key), torch.ones(HEADS, dtype=torch.bool))


def sink_counted(query: Tensor, key: Tensor, value: Tensor, *, sink: Tensor, **rest: object) -> object:
    result = causal_attention(query, key, value, sink=sink, **rest)
    return AttentionResult(result.output, torch.maximum(result.max_logit, sink), result.exact)


def sink_left_out(query: Tensor, key: Tensor, value: Tensor, *, sink: Tensor, **rest: object) -> object:
    del sink
    return causal_attention(query, key, value, **rest)


@pytest.mark.parametrize(("mutant", "sink"), [(everything_seen, False), (sink_counted, True), (sink_left_out, True)])
def test_the_check_refuses(mutant: Attend, sink: bool) -> None:
    with pytest.raises(AssertionError):
        check_maxima(mutant, Inputs.drawn(sink=sink), MASKS["all"]())


def test_far_below_a_sink_maxima_are_exact_all_the_same() -> None:
    # Every row's log-sum-exp is that of the sink: it bounds the logits from above, and from below not at all.
    inputs = Inputs.drawn(sink=True)
    inputs.sink = torch.full((HEADS,), 500.0)
    for mask in MASKS.values():
        check_maxima(causal_attention, inputs, mask())


@pytest.mark.parametrize("rows", [1, 7, 64, 68, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_the_whole_product_in_chunks_of_any_length_is_that_of_the_matrix(
    mask: str, key_heads: int, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logits, "CHUNK_ROWS", rows)
    inputs, visibility = Inputs.drawn(key_heads=key_heads, dtype=dtype), MASKS[mask]()
    found = full_product_max_logit(inputs.query, inputs.key, visibility)
    torch.testing.assert_close(found.double(), full_matrix(inputs, visibility)[1], rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_passes_the_whole_product(bad: float) -> None:
    inputs = Inputs.drawn()
    inputs.query[1, 2, 5, 3] = bad
    inputs.key[0, 1] *= 1e36
    found = full_product_max_logit(inputs.query, inputs.key)
    assert found.isfinite().tolist() == [True, True, False, True]


def in_float64(query: Tensor, key: Tensor) -> list[float]:
    """The largest causal logit of each head, by the definition."""
    scores = query.double() @ key.double().mT / math.sqrt(query.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).amax((0, 2, 3)).tolist()


@pytest.mark.parametrize("tokens", [68, 700])
def test_of_products_that_bfloat16_cannot_tell_apart_the_largest_is_found(tokens: int) -> None:
    # All round to 200, most of them from below; one in the middle is the largest by less than half of what is rounded.
    generator = torch.Generator().manual_seed(2)
    query, key = torch.zeros(1, 2, tokens, 2), torch.zeros(1, 2, tokens, 2)
    query[..., 0], key[..., 0] = 1.0, 200.0
    query[..., 1] = torch.rand(1, 2, tokens, generator=generator) * 0.25
    query[0, 0, tokens // 2, 1], query[0, 1, tokens - 1, 1] = 0.375, 0.3125
    key[..., 1] = 1.0
    query, key = query.bfloat16(), key.bfloat16()
    assert (query @ key.mT).unique().tolist() == [200.0]
    found = full_product_max_logit(query, key)
    assert found.tolist() == pytest.approx([200.375 / math.sqrt(2), 200.3125 / math.sqrt(2)], rel=1e-7)


@pytest.mark.parametrize("kind", ["negative", "nothing", "one row", "tiny", "huge"])
def test_bfloat16_products_of_any_size_are_those_of_the_definition(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(2, 3, 300, 16, generator=generator) for _ in range(2))
    if kind == "negative":
        query, key = query.abs() + 0.5, -key.abs() - 0.5
    elif kind == "nothing":
        query = torch.zeros_like(query)
    elif kind == "one row":
        query[:, :, torch.arange(300) != 257] = 0
    else:
        query = query * (1e-30 if kind == "tiny" else 1e17)
        key = key * (1e-4 if kind == "tiny" else 1e17)
    query, key = query.bfloat16(), key.bfloat16()
    assert full_product_max_logit(query, key).tolist() == pytest.approx(in_float64(query, key), rel=2e-6, abs=1e-37)


def test_in_bfloat16_what_is_hidden_may_be_anything_and_what_is_seen_must_be_finite() -> None:
    query, key = (torch.ones(1, 3, 300, 4, dtype=torch.bfloat16) for _ in range(2))
    # Only the last query sees the last key: of the others that one is hidden.
    key[0, 0, -1], query[0, 0, -1] = math.inf, -1.0
    query[0, 0, :2] = 0.0
    key[0, 1, 7] = math.inf
    key[0, 2, 7] = math.nan
    found = full_product_max_logit(query, key).tolist()
    assert found[:2] == [2.0, math.inf]
    assert math.isnan(found[2])


@pytest.mark.parametrize("first_rows", [1, 3, TOKENS, TOKENS + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_however_many_rows_are_looked_at_first_the_maxima_are_the_same(
    mask: str, sink: bool, dtype: torch.dtype, first_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "FIRST_ROWS", first_rows)
    inputs, visibility = Inputs.drawn(sink=sink, dtype=dtype), MASKS[mask]()
    result = causal_attention(
        inputs.query, inputs.key, inputs.value, threshold=-1e6, exact=True, visibility=visibility, sink=inputs.sink
    )
    largest = full_matrix(inputs, visibility)[1]
    torch.testing.assert_close(result.max_logit.double(), largest, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_looking_closely_changes_no_bit_of_a_head_above_the_threshold(mask: str, sink: bool) -> None:
    inputs, visibility = Inputs.drawn(sink=sink), MASKS[mask]()
    inputs.sink = None if inputs.sink is None else inputs.sink / 100
    threshold = float(full_matrix(inputs, visibility)[1].median())
    gated, close = (
        causal_attention(
            inputs.query, inputs.key, inputs.value, threshold=threshold, exact=exact, visibility=visibility,
            sink=inputs.sink,
        )
        for exact in (False, True)
    )  # fmt: skip
    assert close.exact.all()
    assert not gated.exact.all()
    assert torch.equal(close.max_logit[gated.exact], gated.max_logit[gated.exact])
    assert torch.equal(close.output, gated.output)


def test_without_any_key_there_is_no_logit() -> None:
    inputs = Inputs.drawn()
    nothing = Visibility(present=torch.zeros(BATCH, TOKENS, dtype=torch.bool))
    for exact in (False, True):
        result = causal_attention(
            inputs.query, inputs.key, inputs.value, threshold=1.0, exact=exact, visibility=nothing
        )
        assert result.max_logit.tolist() == [-math.inf] * HEADS
        assert not result.output.any()


def test_in_the_second_pass_of_a_checkpointed_block_nothing_is_measured() -> None:
    inputs = Inputs.drawn()
    with attention.without_max_logits():
        result = causal_attention(inputs.query, inputs.key, inputs.value, threshold=-1e6, exact=True)
    assert not result.exact.any()
    measured = causal_attention(inputs.query, inputs.key, inputs.value, threshold=-1e6, exact=True)
    assert measured.exact.all()
    assert torch.equal(measured.output, result.output)


ALL = frozenset(Kernel)
CPU = AttentionCase(device="cpu", dtype=torch.float32, dimension=32, masked=False, sink=False)
CUDA = AttentionCase(device="cuda", dtype=torch.bfloat16, dimension=64, masked=False, sink=False)


@pytest.mark.parametrize(
    ("case", "missing", "chosen"),
    [
        (CPU, None, Kernel.CPU_FLASH),
        (AttentionCase("cpu", torch.bfloat16, 33, masked=True, sink=True), None, Kernel.CPU_FLASH),
        (CPU, Kernel.CPU_FLASH, Kernel.PLAIN),
        (CUDA, None, Kernel.CUDA_FLASH),
        (CUDA, Kernel.CUDA_FLASH, Kernel.FLEX),
        (AttentionCase("cuda", torch.bfloat16, 64, masked=True, sink=False), None, Kernel.FLEX),
        (AttentionCase("cuda", torch.float32, 64, masked=False, sink=False), None, Kernel.FLEX),
        (AttentionCase("cuda", torch.float32, 64, masked=False, sink=False), Kernel.FLEX, Kernel.PLAIN),
        (AttentionCase("cuda", torch.bfloat16, 60, masked=False, sink=False), None, Kernel.FLEX),
        (AttentionCase("cuda", torch.bfloat16, 512, masked=False, sink=False), None, Kernel.FLEX),
        (AttentionCase("cuda", torch.bfloat16, 8, masked=True, sink=False), None, Kernel.PLAIN),
        (AttentionCase("cuda", torch.float32, 16, masked=False, sink=False, smaller_dimension=12), None, Kernel.PLAIN),
        (AttentionCase("cuda", torch.float32, 32, masked=True, sink=False, smaller_dimension=16), None, Kernel.FLEX),
        (AttentionCase("cuda", torch.float64, 64, masked=False, sink=False), None, Kernel.PLAIN),
        (AttentionCase("cuda", torch.bfloat16, 64, masked=False, sink=True), None, Kernel.PLAIN),
        (AttentionCase("mps", torch.float32, 64, masked=False, sink=False), None, Kernel.PLAIN),
    ],
)
def test_the_cheapest_kernel_that_can_is_chosen(case: AttentionCase, missing: Kernel | None, chosen: Kernel) -> None:
    assert choose_kernel(case, ALL - {missing}) is chosen


@pytest.mark.parametrize(("capability", "has_flash"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_the_flash_kernel_of_cuda_is_left_to_devices_that_run_it(
    capability: tuple[int, int], has_flash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(kernels.shutil, "which", lambda name: name)
    found = kernels.available_kernels.__wrapped__()
    assert (Kernel.CUDA_FLASH in found) == has_flash
    assert Kernel.FLEX in found


def test_what_must_be_compiled_is_left_out_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.delenv("CC", raising=False)
    compilers: set[str] = set()
    monkeypatch.setattr(kernels.shutil, "which", lambda name: name if name in compilers else None)
    assert Kernel.FLEX not in kernels.available_kernels.__wrapped__()
    compilers.add("gcc")
    assert Kernel.FLEX in kernels.available_kernels.__wrapped__()


def test_the_smaller_dimension_counts_for_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[AttentionCase] = []
    monkeypatch.setattr(attention, "choose_kernel", lambda case, _: cases.append(case) or Kernel.PLAIN)
    for dimension, value_dimension in ((8, 5), (8, 12)):
        inputs = Inputs.drawn(dimension=dimension, value_dimension=value_dimension)
        causal_attention(*inputs.tensors(), threshold=0.0, exact=False)
    assert [(case.dimension, case.smaller_dimension) for case in cases] == [(8, 5), (12, 8)]
