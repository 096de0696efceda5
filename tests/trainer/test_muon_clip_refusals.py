"""MuonClip as a library refuses what it would otherwise misread: values of settings, heads, shapes of logits."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from trimtab_trainer.collectives import GroupPeers
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.optim import (
    AttentionHeads,
    HeadParameter,
    LogitPart,
    LogitRecorder,
    MuonClip,
    MuonClipConfig,
    ParameterGroup,
    Schedule,
    ShardedMuonClip,
    separate_projections,
)
from trimtab_trainer.optim.muon_clip import QueryKeyParameters

HOT = MuonClipConfig(qk_clip_threshold=0.5)


def maps(key_rows: int = 16) -> nn.ModuleDict:
    """Queries and keys of two layers."""
    return nn.ModuleDict(
        {f"{side}{layer}": nn.Linear(8, rows) for layer in range(2) for side, rows in (("q", 16), ("k", key_rows))}
    )


def optimizer_of(model: nn.ModuleDict, config: MuonClipConfig = HOT, **heads: Any) -> MuonClip:
    layers = [separate_projections(f"{n}", model[f"q{n}"], model[f"k{n}"], **{"heads": 4, **heads}) for n in range(2)]
    return MuonClip(model.named_parameters(), layers, config)


def problems_of(make: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidFields) as caught:
        make()
    return caught.value.problems


def test_a_setting_that_has_no_such_value_is_refused_with_those_it_has_all_at_once() -> None:
    wrong: dict[str, Any] = {
        "coefficients": "quintc",
        "newton_schulz_dtype": "float16",
        "newton_schulz_mode": "shared",
        "qk_clip_mode": "off",
        "qk_clip_grouped_query": "key",
    }
    assert problems_of(lambda: MuonClipConfig(**wrong)) == (
        "coefficients: 'quintc' must be one of quintic, tuned_quintic, polar_express, deepseek_v4, cubic",
        "newton_schulz_dtype: 'float16' must be one of bfloat16, float32, float64",
        "newton_schulz_mode: 'shared' must be one of distributed, duplicated",
        "qk_clip_mode: 'off' must be one of clip, observe, disabled",
        "qk_clip_grouped_query: 'key' must be one of query, group, roots, balanced",
    )


def test_a_group_cannot_name_an_optimizer_that_would_update_nothing() -> None:
    named: Any = "Muon"
    assert problems_of(lambda: ParameterGroup(pattern="*", optimizer=named)) == (
        "optimizer: 'Muon' must be one of muon, adamw",
    )


def test_a_schedule_of_no_known_shape_is_refused() -> None:
    shape: Any = "cosin"
    (problem,) = problems_of(lambda: Schedule(warmup_steps=1, total_steps=9, shape=shape))
    assert problem.startswith("shape: 'cosin' must be one of cosine, ")


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (2, 2), (2, 8), (4,), ()])
@pytest.mark.parametrize("mode", ["clip", "observe"])
def test_logits_that_are_not_one_for_each_head_of_each_layer_change_nothing(shape: tuple[int, ...], mode: Any) -> None:
    model = maps()
    optimizer = optimizer_of(model, MuonClipConfig(qk_clip_threshold=0.5, qk_clip_mode=mode))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    assert problems_of(lambda: optimizer.step(torch.ones(shape))) == (
        f"max_logits: shape {list(shape)} must be [2, 4], one number for each head of each attention layer",
    )
    torch.testing.assert_close(dict(model.state_dict()), dict(weights), rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict(), state, rtol=0, atol=0)


def test_pairs_have_as_many_heads_as_there_are_logits_which_must_divide_their_rows() -> None:
    model = maps()
    pairs: Sequence[QueryKeyParameters] = [
        (list(model[f"q{n}"].parameters()), list(model[f"k{n}"].parameters())) for n in range(2)
    ]
    optimizer = MuonClip(model.named_parameters(), pairs, HOT)

    def step(logits: Tensor) -> Tensor:
        return optimizer.step(logits).qk_clip_gamma

    assert problems_of(lambda: step(torch.ones(2, 3))) == (
        "max_logits: 3 heads must divide the rows of attention layer 0",
        "max_logits: 3 heads must divide the rows of attention layer 1",
    )
    assert problems_of(lambda: step(torch.ones(2, 0)))[0].startswith("max_logits: shape [2, 0] must be [2, heads]")
    assert torch.equal(step(torch.ones(2, 4)), torch.full((2, 4), 0.5))


def test_key_heads_that_were_not_named_are_found_by_their_rows() -> None:
    model = maps(key_rows=8)
    optimizer_of(model, key_heads=2)
    assert problems_of(lambda: optimizer_of(model)) == tuple(
        f"attention layer {n}: heads of 4 rows in {n}.query.weight and of 2 in {n}.key.weight must be of equal size"
        for n in range(2)
    )


def test_query_heads_must_be_a_multiple_of_the_key_heads() -> None:
    model = maps(key_rows=32)
    assert problems_of(lambda: optimizer_of(model, key_heads=8)) == tuple(
        f"attention layer {n}: its 4 query heads must be a multiple of its 8 key heads" for n in range(2)
    )


def test_layers_must_have_the_same_number_of_heads() -> None:
    model = maps()
    layers = [separate_projections("", model["q0"], model["k0"], heads=heads) for heads in (2, 4)]
    assert problems_of(lambda: MuonClip(model.named_parameters(), layers, HOT)) == (
        "attention: its layers have [2, 4] heads; largest logits need the same number in each",
    )


def test_parameters_groups_and_layers_that_cannot_be_served_are_named_together() -> None:
    model = maps(key_rows=8)
    model["k1"].bfloat16()
    config = MuonClipConfig(groups=(ParameterGroup(pattern="nothing"),))
    assert [problem.split(":")[0] for problem in problems_of(lambda: optimizer_of(model, config))] == [
        "k1.weight",
        "k1.bias",
        "groups[0].pattern",
        "attention layer 0",
        "attention layer 1",
    ]


def test_what_masters_cannot_be_made_of_is_no_number_of_floating_point() -> None:
    whole = [("counts", torch.zeros(4, dtype=torch.int64))]
    assert problems_of(lambda: MuonClip(whole, (), MuonClipConfig(master_weights=True))) == (
        "counts: torch.int64 must be a type of floating point",
    )


def test_mappings_in_the_place_of_settings_are_named() -> None:
    wrong: dict[str, Any] = {
        "groups": ({"pattern": "*"}, ParameterGroup(pattern="*")),
        "qk_clip_schedule": {"update": 1, "factor": 2.0},
    }
    assert problems_of(lambda: MuonClipConfig(**wrong)) == (
        "groups[0]: must be a ParameterGroup, not dict",
        "qk_clip_schedule: must be several ThresholdPoint, not dict",
    )


def test_logits_must_be_a_tensor_and_layers_must_attend() -> None:
    optimizer, rows = optimizer_of(maps()), [[1.0] * 4] * 2
    logits: Any = rows
    assert problems_of(lambda: optimizer.step(logits)) == ("max_logits: must be a tensor [layers, heads], not list",)
    assert problems_of(lambda: optimizer.step(torch.ones(2, 4, dtype=torch.int64))) == (
        "max_logits: torch.int64 must be a type of floating point: thresholds would be cut to its numbers",
    )
    assert problems_of(lambda: LogitRecorder(0)) == ("layers: 0 must be at least 1",)


def test_a_state_of_other_things_than_tensors_is_refused_by_name() -> None:
    optimizer = optimizer_of(maps())
    state = optimizer.state_dict()
    name = next(iter(state["muon_momentum"]))
    wrong = {**state, "muon_momentum": {**state["muon_momentum"], name: [1.0]}, "adamw_first_moment": None}
    assert problems_of(lambda: optimizer.load_state_dict(wrong)) == (
        f"muon_momentum.{name}: must be a tensor, not list",
        "adamw_first_moment: must be the tensors by name, not NoneType",
    )


def test_a_matrix_without_elements_is_no_work_for_muon() -> None:
    empty, matrix = nn.Parameter(torch.zeros(0, 4)), nn.Parameter(torch.ones(4, 4))
    named = [("empty", empty), ("matrix", matrix)]
    for each in (empty, matrix):
        each.grad = torch.ones_like(each)
    MuonClip(named, [], MuonClipConfig()).step(torch.empty(0, 0))
    assert not torch.equal(matrix, torch.ones(4, 4))
    groups = (ParameterGroup(pattern="empty", optimizer="muon"),)
    assert problems_of(lambda: MuonClip(named, [], MuonClipConfig(groups=groups))) == (
        "empty: Muon has nothing to orthogonalise in it (pattern 'empty'): it has no elements",
    )


def test_a_parameter_of_which_other_ranks_have_the_rest_is_refused_at_once() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Linear(4, 4)
        fully_shard(model)
        problems = problems_of(lambda: MuonClip(model.named_parameters(), [], MuonClipConfig()))
    finally:
        dist.destroy_process_group()
    assert [problem.partition(" (")[0] for problem in problems] == [
        "weight: other ranks have other rows of it",
        "bias: other ranks have other rows of it",
    ]


def test_shards_that_were_converted_behind_the_optimizers_back_are_refused_before_anything_is_exchanged() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Linear(4, 4, dtype=torch.bfloat16)
        fully_shard(model)
        config = MuonClipConfig(master_weights=True)
        optimizer = ShardedMuonClip(model.named_parameters(), [], config, GroupPeers())
        state = optimizer.state_dict()
        model.half()
        acts = (
            lambda: optimizer.step(torch.empty(0, 0)),
            optimizer.state_dict,
            lambda: optimizer.load_state_dict(state),
        )
        told = {problems_of(act) for act in acts}
    finally:
        dist.destroy_process_group()
    (problems,) = told
    assert [problem.partition(" when")[0] for problem in problems] == [
        "weight and 1 more: is torch.float16 on cpu, and was torch.bfloat16 on cpu"
    ]
    assert optimizer.count == 0


def test_what_is_not_a_number_survives_the_maximum_over_ranks() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        logits = torch.tensor([1.0, torch.nan, -torch.inf])
        GroupPeers().max(logits)
    finally:
        dist.destroy_process_group()
    assert logits.tolist() == [1.0, torch.inf, -torch.inf]


@pytest.mark.parametrize("keep", [False, True])
def test_gradients_are_forgotten_or_set_to_zero(keep: bool) -> None:
    model = nn.Linear(4, 4)
    optimizer = MuonClip(model.named_parameters(), [], MuonClipConfig())
    model.weight.grad = torch.ones(4, 4)
    optimizer.zero_grad(set_to_none=not keep)
    assert model.bias.grad is None
    assert torch.equal(model.weight.grad, torch.zeros(4, 4)) if keep else model.weight.grad is None


def test_parameters_of_one_name_and_one_parameter_of_two_names_are_refused() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    twice = [*first.named_parameters(), *second.named_parameters(), ("again", first.weight)]
    assert problems_of(lambda: MuonClip(twice, [], MuonClipConfig())) == (
        "weight: 2 parameters have this name; give each one of its own",
        "again: is the same parameter as weight; name it once",
    )


@pytest.mark.parametrize("masters", [False, True])
def test_elements_that_were_moved_behind_the_optimizers_back_are_not_left_untrained(masters: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(torch.bfloat16 if masters else torch.float32)
    optimizer = MuonClip(model.named_parameters(), [], MuonClipConfig(master_weights=masters))
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict())

    def step() -> None:
        optimizer.step(torch.zeros(0, 0))

    if masters:
        # What is updated is the float32 copy, which is written into the parameters wherever they are.
        step()
        assert not any(torch.equal(before[name], value) for name, value in model.state_dict().items())
        return
    (problem,) = problems_of(step)
    assert problem.startswith(
        "0.weight and 3 more: the elements lie elsewhere than when the optimizer was built; build it"
    )
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert optimizer.count == 0


def parts(*named: tuple[Any, int], kind: Any = "latent", heads: int = 4) -> tuple[str, ...]:
    """What is said of a layer whose parts, with so many heads each, were put together by hand."""
    model = maps()
    weights = model.parameters()
    parameters = tuple(HeadParameter(str(part), next(weights), part, count) for part, count in named)
    layer = AttentionHeads(kind, heads, parameters)
    return problems_of(lambda: MuonClip(model.named_parameters(), [layer], HOT))


def test_parts_that_would_be_scaled_in_vain_or_not_at_all_are_refused() -> None:
    latent = (LogitPart.CONTENT_QUERY, 4), (LogitPart.CONTENT_KEY, 4), (LogitPart.ROTARY_QUERY, 4)
    assert parts(*latent, kind="mla") == (
        "attention layer 0: kind: 'mla' must be one of multiHead, groupedQuery, latent",
    )
    assert parts(*latent[:2]) == (
        "attention layer 0: no parameter has part rotaryQuery, of which latent logits are made",
    )
    assert parts(*latent, (LogitPart.KEY, 4)) == (
        "attention layer 0: key: part key must be one of contentQuery, contentKey, rotaryQuery, sharedKey",
    )
    assert parts((LogitPart.QUERY, 4), (LogitPart.SHARED_KEY, 4), kind="multiHead") == (
        "attention layer 0: sharedKey: part sharedKey must be one of query, key",
        "attention layer 0: no parameter has part key, of which multiHead logits are made",
    )
    assert parts(*latent[1:], (LogitPart.CONTENT_QUERY, 2), (LogitPart.SHARED_KEY, 1)) == (
        "attention layer 0: contentQuery: 2 heads must be the layer's 4",
    )


def test_a_part_may_be_spelt_as_text() -> None:
    model = maps()
    parameters, spelt = (model["q0"].weight, model["k0"].weight), list[Any](("query", "key"))
    named = (HeadParameter(part, one, part, 4) for part, one in zip(spelt, parameters, strict=True))
    layer = AttentionHeads("multiHead", 4, tuple(named))
    kept = [one.detach().clone() for one in parameters]
    still = MuonClipConfig(qk_clip_threshold=0.5, muon_lr=1e-300, adamw_lr=1e-300)
    MuonClip(model.named_parameters(), [layer], still).step(torch.tensor([[2.0] * 4]))
    for one, before in zip(parameters, kept, strict=True):
        torch.testing.assert_close(one.detach(), before / 2, rtol=1e-6, atol=0)
