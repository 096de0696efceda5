"""Newton-Schulz work divided between ranks: each matrix is computed once, and no bit tells how many ranks there were.

Ranks are threads here, each with an optimizer of its own; processes and gloo are in `test_divided_worlds`.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.head_parameters import AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim import MuonClip, MuonClipConfig, ParameterGroup, StepTelemetry, muon, shared_results
from trimtab_trainer.optim.coefficients import COEFFICIENT_SETS
from trimtab_trainer.optim.division import Task, assigned, divided, matrix_cost
from trimtab_trainer.optim.newton_schulz import GRAM_ASPECT, multiplications

STEPS = 3
HEADS = 4
SHAPES: dict[str, tuple[int, ...]] = {
    "embedding.weight": (50, 32),
    **{f"layers.{layer}.{name}.weight": (32, 32) for layer in range(3) for name in ("query", "key", "value", "out")},
    "layers.0.up.weight": (96, 32),
    "layers.0.down.weight": (32, 96),
    "layers.1.up.weight": (70, 32),
    "layers.1.narrow.weight": (7, 3),
    "layers.1.row.weight": (1, 32),
    "layers.2.gate_up.weight": (48, 32),
    "layers.2.experts.weight": (3, 20, 32),
    "layers.2.gain": (32,),
}
GROUPS = (
    ParameterGroup(pattern="*.gate_up.weight", split=(30, 18)),
    ParameterGroup(pattern="*.out.weight", heads=HEADS, decay=0.3, learning_rate_scale=0.3),
    ParameterGroup(pattern="*.experts.weight", optimizer="muon"),
)
SETTINGS = MuonClipConfig(groups=GROUPS, qk_clip_threshold=10.0, master_weights=True)


class Meeting:
    """Where the results of ranks that are threads meet; it counts what travels."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent: list[list[Tensor]] = [[] for _ in range(size)]
        self._barrier = threading.Barrier(size, timeout=60)

    def meet(self, rank: int, parts: Sequence[Tensor]) -> Callable[[], None]:
        """Begin an exchange."""
        number = len(self.sent[rank])
        self.sent[rank].append(parts[rank].clone())

        def wait() -> None:
            self._barrier.wait()
            for part, sent in zip(parts, self.sent, strict=True):
                part.copy_(sent[number])
            self._barrier.wait()

        return wait


class Place:
    """A meeting as one rank sees it."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size

    def share_later(self, parts: Sequence[Tensor]) -> Callable[[], None]:
        """Begin to share."""
        return self._meeting.meet(self.rank, parts)


class Rank:
    """Parameters and optimizer of one rank; all ranks begin alike and get the same gradients."""

    def __init__(self, config: MuonClipConfig, kind: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(5)
        self.parameters = {
            name: torch.randn(shape, generator=generator).to(kind).requires_grad_() for name, shape in SHAPES.items()
        }
        self.optimizer = MuonClip(self.parameters.items(), [self._heads(layer) for layer in range(3)], config)

    def trained(self) -> list[StepTelemetry]:
        """Some steps, the last one of them at a rate of zero and without some gradients."""
        generator = torch.Generator().manual_seed(6)
        seen: list[StepTelemetry] = []
        for step in range(STEPS):
            self.optimizer.set_lr(float(step < STEPS - 1))
            for name, parameter in self.parameters.items():
                gradient = torch.randn(SHAPES[name], generator=generator).to(parameter.dtype)
                parameter.grad = None if step == 1 and "up" in name else gradient
            logits = torch.full((3, HEADS), 5.0)
            logits[step, step] = 40.0
            seen.append(self.optimizer.step(logits))
        return seen

    def image(self) -> dict[str, Any]:
        """Every bit of the parameters and of the optimizer's state."""
        state = self.optimizer.state_dict()
        moments = {
            f"{kind}.{name}": each
            for kind in state
            if isinstance(state[kind], dict)
            for name, each in state[kind].items()
        }
        return {
            name: tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
            for name, tensor in (self.parameters | moments).items()
        }

    def _heads(self, layer: int) -> AttentionHeads:
        parts = ((LogitPart.QUERY, "query"), (LogitPart.KEY, "key"))
        names = [(part, f"layers.{layer}.{name}.weight") for part, name in parts]
        return AttentionHeads(
            "multiHead", HEADS, tuple(HeadParameter(name, self.parameters[name], part, HEADS) for part, name in names)
        )


def together(
    size: int, config: MuonClipConfig, kind: torch.dtype = torch.float32
) -> tuple[list[Rank], list[Any], Meeting]:
    """The ranks after their steps, what each step told each of them, and what they exchanged."""
    meeting = Meeting(size)
    ranks = [Rank(config, kind) for _ in range(size)]
    for number, rank in enumerate(ranks):
        rank.optimizer.divide(Place(meeting, number))
    with ThreadPoolExecutor(size) as pool:
        told = [each.result() for each in [pool.submit(rank.trained) for rank in ranks]]
    return ranks, told, meeting


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Ranks are threads already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (SETTINGS, torch.float32),
        (replace(SETTINGS, newton_schulz_dtype="bfloat16", gram=True), torch.float32),
        (replace(SETTINGS, newton_schulz_dtype="bfloat16", nesterov=False), torch.bfloat16),
    ],
    ids=["float32", "gram in bfloat16", "masters"],
)
def test_every_rank_ends_with_the_bits_of_one_rank_alone(
    ranks: int, config: MuonClipConfig, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So short rounds that there are several, and slabs of several matrices that no number of ranks divides.
    monkeypatch.setattr(shared_results, "ROUND_BYTES", 1 << 14)
    monkeypatch.setattr(muon, "SLAB_BYTES", 5 << 11)
    alone = Rank(config, kind)
    expected = alone.trained()
    found, told, meeting = together(ranks, config, kind)
    assert len(meeting.sent[0]) >= 2 * STEPS, "several rounds"
    for rank, telemetry in zip(found, told, strict=True):
        assert rank.image() == alone.image()
        assert [(one.update_rms, one.count, one.lr) for one in telemetry] == [
            (one.update_rms, one.count, one.lr) for one in expected
        ]
        assert all(torch.equal(a.qk_clip_gamma, b.qk_clip_gamma) for a, b in zip(telemetry, expected, strict=True))
    assert min(float(one.qk_clip_gamma.min()) for one in expected) < 1


def test_each_matrix_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[int, tuple[int, ...]]] = []
    original = muon.orthogonal_updates

    def counted(normalised: Tensor, config: MuonClipConfig) -> Tensor:
        computed.append((threading.get_ident(), tuple(normalised.shape)))
        return original(normalised, config)

    monkeypatch.setattr(muon, "orthogonal_updates", counted)
    Rank(SETTINGS).trained()
    alone = sorted(shape for _, shape in computed)
    computed.clear()
    together(3, SETTINGS)
    assert sorted(shape for _, shape in computed) == alone
    assert len({thread for thread, _ in computed}) == 3, "every rank does some of the work"
    computed.clear()
    together(3, replace(SETTINGS, newton_schulz_mode="duplicated"))
    assert len(computed) == 3 * len(alone)


def test_a_state_does_not_tell_who_computed_it_and_is_gone_on_with_by_any_number_of_ranks() -> None:
    two, _, _ = together(2, SETTINGS)
    assert two[0].optimizer.state_dict().keys() == Rank(SETTINGS).optimizer.state_dict().keys()
    alone, (first, *_) = Rank(SETTINGS), two
    alone.optimizer.load_state_dict(first.optimizer.state_dict())
    with torch.no_grad():
        for name, parameter in alone.parameters.items():
            parameter.copy_(first.parameters[name])
    alone.trained()
    meeting = Meeting(2)
    for number, rank in enumerate(two):
        rank.optimizer.divide(Place(meeting, number))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Rank.trained, two))
    assert two[0].image() == two[1].image() == alone.image()


def test_what_the_exchange_raises_ends_the_step() -> None:
    class Broken(Place):
        def share_later(self, parts: Sequence[Tensor]) -> Callable[[], None]:
            def wait() -> None:
                raise ConnectionResetError

            return wait

    rank = Rank(SETTINGS)
    rank.optimizer.divide(Broken(Meeting(2), 0))
    with pytest.raises(ConnectionResetError):
        rank.trained()


def test_one_rank_exchanges_nothing() -> None:
    (rank,), _, meeting = together(1, SETTINGS)
    alone = Rank(SETTINGS)
    alone.trained()
    assert meeting.sent == [[]]
    assert rank.image() == alone.image()


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 5000)), max_size=40), st.integers(1, 9))
def test_every_task_has_one_rank_and_its_own_stretch_of_one_round(sizes: list[tuple[int, int]], ranks: int) -> None:
    tasks = [Task(cost, elements) for cost, elements in sizes]
    rounds = divided(tasks, ranks, 8000)
    found = [(task, rank) for each in rounds for rank, portion in enumerate(each.portions) for task in portion.tasks]
    assert sorted(task for task, _ in found) == list(range(len(tasks)))
    for each in rounds:
        assert each.lengths == [portion.bounds[-1] for portion in each.portions]
        assert len(each.portions) == ranks
        for portion in each.portions:
            lengths = [stop - start for start, stop in zip(portion.bounds, portion.bounds[1:], strict=False)]
            assert lengths == [tasks[task].elements for task in portion.tasks]
            assert len(lengths) == 1 or portion.bounds[-1] <= 8000 // ranks or not lengths
    loads = [sum(tasks[task].cost for task, owner in found if owner == rank) for rank in range(ranks)]
    assert max(loads) <= sum(loads) / ranks + max((task.cost for task in tasks), default=0)


def test_work_is_dealt_by_cost_not_by_count() -> None:
    assert assigned([8, 1, 1, 1, 1, 4], 2) == [0, 1, 1, 1, 1, 1]
    assert assigned([5, 5, 5], 2) == [0, 1, 0]
    assert assigned([1], 3) == [0]


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("shape", [(512, 512), (512, 2048), (2048, 512), (700, 512)])
def test_the_cost_of_a_matrix_is_that_of_the_form_it_is_computed_in(shape: tuple[int, int], gram: bool) -> None:
    """By hand, in products of the small side: 3 for an iteration of a square one."""
    side, length = min(shape), max(shape)
    aspect = length / side
    plain = 5 * (2 * aspect + 1)
    products = 4 * aspect + 14 if gram and aspect >= GRAM_ASPECT else plain
    assert multiplications(*shape, "quintic", gram=gram) == pytest.approx(products * side**3)
    assert matrix_cost(*shape, MuonClipConfig(gram=gram)) > multiplications(*shape, "quintic", gram=gram)


def test_more_iterations_cost_more() -> None:
    costs = {name: multiplications(64, 64, name, gram=False) for name in COEFFICIENT_SETS}
    assert costs["deepseek_v4"] == 2 * costs["quintic"]
    assert costs["cubic"] == 4 * costs["quintic"]


def test_what_sharded_parameters_cannot_do_is_refused() -> None:
    text = (
        "{steps: 50, globalBatch: 8, data: {path: /d}, parallelism: sharded, optimizer: {newtonSchulzMode: duplicated}}"
    )
    with pytest.raises(InvalidFields) as caught:
        read_config(text)
    (problem,) = caught.value.problems
    assert problem.startswith("optimizer.newtonSchulzMode: duplicated needs parallelism: replicated")
    assert read_config(text.replace("sharded", "replicated")).optimizer.newton_schulz_mode == "duplicated"
    with pytest.raises(InvalidFields):
        read_config(text.replace("duplicated", "once").replace("sharded", "replicated"))
