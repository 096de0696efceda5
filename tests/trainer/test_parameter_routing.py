"""Which optimizer updates which parameter: defaults, patterns, and every refusal at once."""

import pytest
import torch
from torch import Tensor
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.optim import MuonClip, MuonClipConfig, ParameterGroup
from trimtab_trainer.optim.routing import route_parameters, routing_table

PARAMETERS: dict[str, Tensor] = {
    "embed_tokens.weight": torch.zeros(32, 8),
    "layers.0.qkv.weight": torch.zeros(24, 8),
    "layers.0.norm.weight": torch.zeros(8),
    "layers.0.router.weight": torch.zeros(4, 8),
    "layers.0.experts.weight": torch.zeros(4, 16, 8),
    "layers.0.convolution.weight": torch.zeros(8, 8, 3, 3),
    "layers.0.head_mixing.weight": torch.zeros(8, 8),
    "lm_head.weight": torch.zeros(32, 8),
}


def routed(*groups: ParameterGroup) -> dict[str, str]:
    return {route.name: route.optimizer for route in route_parameters(PARAMETERS.items(), groups, decay=0.1)}


def test_only_hidden_matrices_go_to_muon_by_themselves() -> None:
    assert {name for name, kind in routed().items() if kind == "muon"} == {
        "layers.0.qkv.weight",
        "layers.0.head_mixing.weight",
    }


def test_the_table_gives_every_parameter_with_its_reason() -> None:
    groups = (
        ParameterGroup(pattern="*.qkv.weight", split=(8, 8, 8)),
        ParameterGroup(pattern="*.experts.*", optimizer="muon", heads=2),
        ParameterGroup(pattern="*.head_mixing.*", optimizer="adamw"),
    )
    table = routing_table(route_parameters(PARAMETERS.items(), groups))
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "embed_tokens.weight 32x8 adamw looks tokens up",
        "layers.0.qkv.weight 24x8 muon hidden matrix; 3 matrices of 8 rows",
        "layers.0.norm.weight 8 adamw one number per channel",
        "layers.0.router.weight 4x8 adamw scores experts",
        "layers.0.experts.weight 4x16x8 muon pattern *.experts.*; 2 matrices of 8 rows",
        "layers.0.convolution.weight 8x8x3x3 adamw 4 dimensions are no matrix",
        "layers.0.head_mixing.weight 8x8 adamw pattern *.head_mixing.*",
        "lm_head.weight 32x8 adamw scores tokens",
    ]


def test_the_first_pattern_that_matches_counts() -> None:
    first = ParameterGroup(pattern="*.router.weight", optimizer="muon")
    second = ParameterGroup(pattern="layers.*.weight", decay=0.0)
    routes = {route.name: route for route in route_parameters(PARAMETERS.items(), (first, second), decay=0.1)}
    assert (routes["layers.0.router.weight"].optimizer, routes["layers.0.router.weight"].decay) == ("muon", 0.1)
    assert (routes["layers.0.qkv.weight"].optimizer, routes["layers.0.qkv.weight"].decay) == ("muon", 0.0)
    assert routes["lm_head.weight"].decay == 0.1


def test_every_group_and_parameter_that_cannot_be_served_is_named_at_once() -> None:
    groups = (
        ParameterGroup(pattern="*.qkv.weight", split=(8, 8)),
        ParameterGroup(pattern="*.head_mixing.weight", heads=3),
        ParameterGroup(pattern="*.norm.weight", optimizer="muon"),
        ParameterGroup(pattern="*.convolution.weight", optimizer="muon"),
        ParameterGroup(pattern="lm_head.*", split=(16, 16)),
        ParameterGroup(pattern="*.qvk.weight"),
    )
    parameters = {**PARAMETERS, "layers.0.half.weight": torch.zeros(8, 8).half()}
    with pytest.raises(InvalidFields) as caught:
        route_parameters(parameters.items(), groups)
    assert caught.value.problems == (
        "layers.0.half.weight: torch.float16 must be torch.float32, computed on in any type, or master_weights be set",
        "layers.0.qkv.weight: split (pattern '*.qkv.weight') adds up to 16 and must to its 24 rows",
        (
            "layers.0.norm.weight: Muon orthogonalises matrices and stacks of matrices; 1 dimensions "
            "(pattern '*.norm.weight') must go to adamw"
        ),
        (
            "layers.0.convolution.weight: Muon orthogonalises matrices and stacks of matrices; 4 dimensions "
            "(pattern '*.convolution.weight') must go to adamw"
        ),
        "layers.0.head_mixing.weight: heads (pattern '*.head_mixing.weight'): 3 must divide its 8 rows",
        "lm_head.weight: split or heads (pattern 'lm_head.*') is for Muon alone, and AdamW updates it",
        "groups[5].pattern: '*.qvk.weight' matches no parameter that an earlier group left",
    )


def test_a_group_that_contradicts_itself_is_refused_with_its_place_in_the_configuration() -> None:
    text = """
data: {path: corpus.bin}
steps: 100
globalBatch: 4
optimizer:
  groups:
    - {pattern: "*.qkv.weight", split: [8, 0], heads: 2}
    - {pattern: "", optimizer: sgd, decay: -1}
  qkClipSchedule: [{update: 0, factor: 2}, {update: 10, factor: 0}]
"""
    with pytest.raises(InvalidFields) as caught:
        read_config(text)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "optimizer.groups[0].split",
        "optimizer.groups[0].heads",
        "optimizer.groups[1].optimizer",
        "optimizer.groups[1].pattern",
        "optimizer.groups[1].decay",
        "optimizer.qkClipSchedule[0].update",
        "optimizer.qkClipSchedule[1].factor",
    ]


def test_heads_of_a_projection_are_orthogonalised_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(2, 8, 8, generator=generator)
    values: list[Tensor] = []
    for group in (ParameterGroup(pattern="q", heads=4), ParameterGroup(pattern="q", split=(2, 2, 2, 2))):
        parameter = start.clone().requires_grad_()
        parameter.grad = gradient.clone()
        MuonClip([("q", parameter)], (), MuonClipConfig(groups=(group,), muon_lr=1.0, decay=0.0)).step(
            torch.zeros(0, 0)
        )
        values.append(start - parameter.detach())
    assert torch.equal(values[0], values[1])
    for block in values[0].split(2):
        singular = torch.linalg.svdvals(block) / (0.2 * 8**0.5)
        assert ((singular > 0.65) & (singular < 1.2)).all(), "each head's update is near-orthogonal by itself"
