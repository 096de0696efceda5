"""Groups whose gradient is clipped by itself: by hand, in the loop, and on two ranks as on one."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from clipped_ranks import GROUPS, expected_clip, one_rank, story
from scripted_session import ScriptedSession, lone_world, snapshot, train_steps
from server_process import free_ports
from torch import Tensor, nn
from trimtab_trainer.collectives import World
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.optim import GradientClipping, MuonClipConfig, ParameterGroup, clip_gradients
from trimtab_trainer.tensors import change_next_gradient

NAMES = ("embedding.weight", "layers.0.router.weight", "layers.0.experts.up", "layers.0.experts.down", "head.weight")
MIXTURE = (
    ParameterGroup(pattern="*.router.weight", gradient_clip=0.5),
    ParameterGroup(pattern="head.weight", decay=0.0),
    ParameterGroup(pattern="*.experts.*", gradient_clip=26.0),
)
HEAD_AND_EMBEDDING = MuonClipConfig(
    groups=(
        ParameterGroup(pattern="head.weight", gradient_clip=0.01),
        ParameterGroup(pattern="embedding.weight", gradient_clip=1000.0),
    )
)


def gradients() -> list[Tensor]:
    """Of norm 10 without router and experts, 5 of the router, 25 of the experts."""
    return [torch.tensor(one) for one in ([6.0, 0.0], [[3.0, 4.0]], [7.0], [[24.0]], [8.0])]


def problems_of(act: Callable[[], object]) -> tuple[str, ...]:
    with pytest.raises(InvalidFields) as caught:
        act()
    return caught.value.problems


def test_each_group_is_scaled_to_its_own_bound_and_the_rest_to_theirs() -> None:
    given = gradients()
    clip = GradientClipping(NAMES, MIXTURE, 2.0).clip(given)
    assert (clip.norm, clip.ratio) == (10.0, 0.2)
    assert [(group.norm, group.ratio) for group in clip.groups] == [(5.0, 0.1), (25.0, 1.0)]
    expected = ([1.2, 0.0], [[0.3, 0.4]], [7.0], [[24.0]], [1.6])
    torch.testing.assert_close(given, [torch.tensor(one) for one in expected])


def test_without_bounds_of_their_own_all_are_clipped_as_ever_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = [torch.randn(7, 5, generator=generator) for _ in NAMES]
    theirs = [gradient.clone() for gradient in ours]
    assert GradientClipping(NAMES, (ParameterGroup(pattern="*.experts.*"),), 0.7).clip(ours) == clip_gradients(
        theirs, 0.7
    )
    assert all(torch.equal(our, their) for our, their in zip(ours, theirs, strict=True))


def test_the_first_pattern_that_matches_counts() -> None:
    groups = (ParameterGroup(pattern="*.router.*"), ParameterGroup(pattern="layers.*", gradient_clip=1.0))
    clip = GradientClipping(NAMES, groups, 100.0).clip(gradients())
    assert (clip.norm, clip.groups[0].norm) == (math.sqrt(125), 25.0)


def test_all_may_be_in_groups() -> None:
    clip = GradientClipping(NAMES, (ParameterGroup(pattern="*", gradient_clip=1.0),), 1.0).clip(gradients())
    assert (clip.norm, clip.ratio, clip.groups[0].norm) == (0.0, 1.0, math.sqrt(750))


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_where_one_gradient_is_not_finite_none_is_scaled(place: int, bad: float) -> None:
    given = gradients()
    given[place].fill_(bad)
    kept = [gradient.clone() for gradient in given]
    clip = GradientClipping(NAMES, MIXTURE, 2.0).clip(given)
    assert not clip.finite
    assert [one.ratio for one in (clip, *clip.groups)] == [1.0, 1.0, 1.0]
    torch.testing.assert_close(given, kept, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", range(40))
def test_no_gradient_is_one_of_zero_to_the_last_bit(seed: int) -> None:
    """Terms that are left out of a sum have the others added up in another order, which some of these seeds show."""
    generator = torch.Generator().manual_seed(seed)
    names = [*(f"experts.{number}" for number in range(40)), "head"]
    ours = [None if number % 3 else torch.randn(50, generator=generator) for number in range(len(names))]
    theirs = [torch.zeros(50) if gradient is None else gradient.clone() for gradient in ours]
    clipping = GradientClipping(names, (ParameterGroup(pattern="experts.*", gradient_clip=0.1),), 0.1)
    assert clipping.clip(ours) == clipping.clip(theirs)
    assert all(our is None or torch.equal(our, their) for our, their in zip(ours, theirs, strict=True))


def test_nowhere_a_gradient_is_a_norm_of_zero() -> None:
    clip = GradientClipping(NAMES, MIXTURE, 2.0).clip([None] * len(NAMES))
    assert [(one.norm, one.ratio) for one in (clip, *clip.groups)] == [(0.0, 1.0)] * 3


def test_norms_are_asked_for_once_with_as_many_parts_whatever_is_there() -> None:
    asked: list[int] = []

    def norms(parts: Any) -> list[float]:
        asked.append(len(parts))
        return [1.0] * len(parts)

    clipping = GradientClipping(NAMES, MIXTURE, 2.0)
    for given in (gradients(), [None] * 5, [None, None, *gradients()[2:]]):
        clipping.clip(given, norms)
    assert asked == [3, 3, 3]


def test_what_cannot_be_clipped_is_refused_by_name() -> None:
    typo = ParameterGroup(pattern="*.rooter.*", gradient_clip=1.0)
    assert problems_of(lambda: GradientClipping(NAMES, (*MIXTURE, typo), 0.0)) == (
        "max_norm: 0.0 must be above 0",
        "groups[3].pattern: '*.rooter.*' matches no parameter that an earlier group left",
    )
    (problem,) = problems_of(lambda: GradientClipping(NAMES, MIXTURE, 1.0).clip(gradients()[:4]))
    assert problem == "gradients: 4 must be one for each of the 5 names, or None where there is none"


@pytest.mark.parametrize("wrong", ["0", "-1", ".nan", ".inf"])
def test_a_scale_or_bound_that_means_nothing_is_refused_with_its_place(wrong: str) -> None:
    groups = f"[{{pattern: a}}, {{pattern: '*.router.*', learningRateScale: {wrong}, gradientClip: {wrong}}}]"
    text = f"{{steps: 50, globalBatch: 8, data: {{path: /d}}, optimizer: {{groups: {groups}}}}}"
    value = float(wrong.removeprefix("."))
    told = "must be finite" if value == math.inf else "must be above 0"
    assert problems_of(lambda: read_config(text)) == (
        f"optimizer.groups[1].learningRateScale: {value} {told}",
        f"optimizer.groups[1].gradientClip: {value} {told}",
    )


def test_loops_of_frameworks_refuse_bounds_that_they_would_not_keep() -> None:
    model = nn.Linear(4, 4)
    groups = (ParameterGroup(pattern="bias"), ParameterGroup(pattern="weight", gradient_clip=0.3))
    told = (
        "groups[1].gradient_clip: 0.3 is not supported: the loops of frameworks clip all gradients together; take it "
        "out, and in a loop of your own clip by GradientClipping"
    )
    assert problems_of(lambda: MuonClipOptimizer(model, MuonClipConfig(groups=groups), lambda _: {})) == (told,)
    missing = ParameterGroup(pattern="nothing")
    first, second = problems_of(
        lambda: MuonClipOptimizer(model, MuonClipConfig(groups=(*groups, missing)), lambda _: {})
    )
    assert (first, second.split(":")[0]) == (told, "groups[2].pattern")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with lone_world() as joined:
        yield joined


def records(session: ScriptedSession, name: str) -> list[list[float]]:
    return [vectors[name].tolist() for vectors in session.vectors]


def test_the_loop_reports_both_norms_and_updates_from_what_was_clipped(world: World) -> None:
    plain = train_steps(world, lambda _: None, 1, gradient_clip=0.5)
    session = train_steps(world, lambda _: None, 1, gradient_clip=0.5, optimizer=HEAD_AND_EMBEDDING)
    assert not {name for name in plain.vectors[0] if name.startswith("group_")}
    (head, embedding), (head_ratio, embedding_ratio) = (
        records(session, name)[0] for name in ("group_grad_norm", "group_clip_ratio")
    )
    found = session.scalars[0]
    whole = plain.scalars[0]["grad_norm"]
    assert math.hypot(found["grad_norm"], head, embedding) == pytest.approx(whole, rel=1e-6)
    assert min(head, embedding) > 0.01
    assert head_ratio == pytest.approx(0.01 / head, rel=1e-6)
    assert embedding_ratio == 1.0
    assert found["clip_ratio"] == pytest.approx(min(0.5 / found["grad_norm"], 1.0), rel=1e-12)
    # AdamW's first moment is a tenth of the gradient that reached it.
    state = snapshot(session.trainee)
    for name, norm in (("head.weight", 0.01), ("embedding.weight", embedding)):
        assert state[f"optimizer.adamw_first_moment.{name}"].norm().item() == pytest.approx(0.1 * norm, rel=1e-5)


@pytest.mark.parametrize("name", ["head.weight", "blocks.0.up.weight"])
def test_a_gradient_that_is_not_finite_in_any_group_withholds_the_update(world: World, name: str) -> None:
    def poison(parameters: dict[str, Tensor]) -> None:
        change_next_gradient(parameters[name], lambda gradient: gradient.fill_(torch.nan))

    session = train_steps(world, poison, optimizer=HEAD_AND_EMBEDDING)
    assert session.bad == [None, f"gradient of {name}"]
    assert session.scalars[1]["skipped_update"] == 1
    assert session.scalars[1]["nonfinite"] == dict(session.trainee.named_parameters())[name].numel()
    assert records(session, "group_clip_ratio")[1] == [1.0, 1.0]
    assert all(
        torch.equal(value, session.before[key])
        for key, value in snapshot(session.trainee).items()
        if isinstance(value, Tensor)
    )


@pytest.mark.parametrize(
    "changes", [{"precision": "float16"}, {"precision": "bfloat16"}, {"gradient_accumulation_steps": 2}]
)
def test_norms_are_those_of_the_whole_step_without_the_scale_of_its_loss(world: World, changes: dict[str, Any]) -> None:
    plain, other = (
        train_steps(world, lambda _: None, 1, gradient_clip=0.5, optimizer=HEAD_AND_EMBEDDING, **each)
        for each in ({}, changes)
    )
    assert other.scalars[0]["grad_norm"] == pytest.approx(plain.scalars[0]["grad_norm"], rel=0.02)
    for name in ("group_grad_norm", "group_clip_ratio"):
        assert records(other, name)[0] == pytest.approx(records(plain, name)[0], rel=0.02)


@pytest.mark.timeout(600)
def test_two_ranks_clip_and_train_a_mixture_of_experts_as_one_does(world: World, tmp_path: Path) -> None:
    """Replicated and sharded; some experts get no token, and on one rank some parameters have no gradient at all."""
    (port,) = free_ports(1)
    alone = one_rank(world, tmp_path / "alone.pt")
    mp.spawn(story, (2, port, str(tmp_path)), nprocs=2)
    reports: list[dict[str, Any]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(max(one["group_clip_ratio"]) < 1 for one in alone["vectors"])
    assert {len(one["group_grad_norm"]) for one in alone["vectors"]} == {len(GROUPS)}
    assert any(min(one["expert_load"]) == 0 for one in alone["vectors"]), "some expert is idle"
    for report in reports:
        for parallelism in ("replicated", "sharded"):
            found = report[parallelism]
            assert found["apart"] < 1e-5, parallelism
            for ours, theirs in zip(found["scalars"], alone["scalars"], strict=True):
                assert ours == pytest.approx(theirs, rel=1e-5), parallelism
            for ours, theirs in zip(found["vectors"], alone["vectors"], strict=True):
                for name in ("group_grad_norm", "group_clip_ratio"):
                    assert ours[name] == pytest.approx(theirs[name], rel=1e-5), (parallelism, name)
            assert found == reports[0][parallelism]
        for kind in ("buckets", "parts"):
            assert report[kind] == pytest.approx(expected_clip(), rel=1e-6), kind
