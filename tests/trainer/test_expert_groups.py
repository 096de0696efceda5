"""Routers and stacked experts of models that know nothing of MuonClip: found by what they are, and updated so."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.optim import MuonClipConfig, ParameterGroup, parameter_groups

COUNT, WIDTH, HIDDEN = 4, 32, 24
TINY: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2,
}  # fmt: skip


def mixtral() -> nn.Module:
    return MixtralForCausalLM(MixtralConfig(**TINY, num_local_experts=COUNT))


def qwen() -> nn.Module:
    config = Qwen3MoeConfig(**TINY, num_experts=COUNT, moe_intermediate_size=HIDDEN, head_dim=8)
    return Qwen3MoeForCausalLM(config)


def deepseek() -> nn.Module:
    config = DeepseekV3Config(
        **{**TINY, "num_key_value_heads": 4}, n_routed_experts=COUNT, n_group=1, topk_group=1,
        moe_intermediate_size=HIDDEN, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
    )  # fmt: skip
    return DeepseekV3ForCausalLM(config)


def gpt_oss() -> nn.Module:
    return GptOssForCausalLM(GptOssConfig(**TINY, num_local_experts=COUNT, head_dim=8))


class Listed(nn.Module):
    """A mixture of its own making, whose experts are modules."""

    def __init__(self) -> None:
        super().__init__()
        self.moe_gate = nn.Linear(WIDTH, COUNT)
        self.shared_gate = nn.Linear(WIDTH, 1)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(COUNT)])
        self.out = nn.Linear(WIDTH, COUNT)


def routed(model: nn.Module) -> dict[str, str]:
    """Which optimizer updates each matrix of a mixture, and which of its rows apart."""
    settings = MuonClipConfig(qk_clip_mode="disabled", groups=parameter_groups(model))
    found: dict[str, str] = {}
    for line in MuonClipOptimizer(model, settings, lambda _: {}).routing.splitlines():
        name, _, optimizer, reason = line.split(maxsplit=3)
        if "experts" in name or "gate" in name or "router" in name:
            rows = reason.partition("; ")[2]
            found[name.removeprefix("model.layers.1.mlp.")] = f"{optimizer} {rows}".strip()
    return {name: told for name, told in found.items() if not name.startswith("model.")}


STACKS = {"experts.gate_up_proj": f"muon 2 matrices of {HIDDEN} rows", "experts.down_proj": "muon"}


@pytest.mark.parametrize("build", [mixtral, qwen])
def test_routers_go_to_adamw_and_stacked_experts_to_muon(build: Any) -> None:
    assert routed(build()) == {**STACKS, "gate.weight": "adamw"}


def test_beside_shared_experts_too() -> None:
    shared = {f"shared_experts.{kind}_proj.weight": "muon" for kind in ("gate", "up", "down")}
    assert routed(deepseek()) == {**STACKS, "gate.weight": "adamw", **shared}


def test_stacks_whose_rows_part_nothing_are_left_to_adamw() -> None:
    found = routed(gpt_oss())
    assert found["router.weight"] == "adamw"
    assert {told for name, told in found.items() if "experts" in name} == {"adamw"}


def test_listed_experts_and_a_gate_that_scores_them_are_known_by_their_number() -> None:
    found = {group.pattern: group.optimizer for group in parameter_groups(Listed())}
    assert found == {"moe_gate.weight": "adamw"}
    within = parameter_groups(nn.ModuleDict({"block": Listed()}))
    assert [group.pattern for group in within] == ["block.moe_gate.weight"]


def test_what_the_settings_say_of_a_mixture_counts() -> None:
    settings = MuonClipConfig(
        qk_clip_mode="disabled",
        groups=(
            ParameterGroup(pattern="*.gate.weight", optimizer="muon"),
            ParameterGroup(pattern="*.experts.*", optimizer="adamw"),
        ),
    )
    lines = MuonClipOptimizer(mixtral(), settings).routing.splitlines()
    assert [line.split()[2] for line in lines if ".gate." in line] == ["muon"] * 2
    assert [line.split()[2] for line in lines if ".experts." in line] == ["adamw"] * 4


def orthogonal_size(matrix: Tensor) -> float:
    """The root mean square of the singular values of an update, which are all about 0.2 sqrt(max(m, n))."""
    values = torch.linalg.svdvals(matrix.double()) / (0.2 * math.sqrt(max(matrix.shape)))
    return float(values.square().mean().sqrt())


def test_each_matrix_of_each_expert_is_orthogonalised_alone() -> None:
    torch.manual_seed(0)
    model = mixtral()
    settings = MuonClipConfig(
        qk_clip_mode="disabled",
        newton_schulz_dtype="float32",
        decay=0.0,
        muon_lr=1.0,
        coefficients="polar_express",
    )
    optimizer = MuonClipOptimizer(model, settings)
    experts = model.get_submodule("model.layers.1.mlp.experts")
    before = {name: parameter.detach().clone() for name, parameter in experts.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * torch.logspace(-3, 3, len(parameter)).view(
            -1, *[1] * (parameter.ndim - 1)
        )
    optimizer.agreed_logits = torch.zeros(2, 4)
    optimizer.step()
    for name, parameter in experts.named_parameters():
        for expert, old in zip(parameter.detach(), before[name], strict=True):
            for part in (expert - old).chunk(2 if name == "gate_up_proj" else 1):
                assert orthogonal_size(part) == pytest.approx(1.0, abs=0.15)
