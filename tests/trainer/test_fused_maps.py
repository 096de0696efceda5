"""Linear maps that are several in one, as models of Hugging Face have them: their parts are found by themselves."""

import pytest
import torch
from torch import nn
from transformers import Phi3Config, Phi3ForCausalLM
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.optim import MuonClip, MuonClipConfig, ParameterGroup, parameter_groups

WIDTH, HIDDEN = 32, 48


class Latent(nn.Module):
    """The compression of latent attention."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.kv_lora_rank, self.qk_rope_head_dim = 16, 8
        self.kv_a_proj_with_mqa = nn.Linear(WIDTH, rows)


class Gated(nn.Module):
    """An MLP whose gate and up are one map."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(WIDTH, 2 * hidden), nn.Linear(HIDDEN, WIDTH)


def test_gate_and_up_of_a_phi_are_parted() -> None:
    model = Phi3ForCausalLM(
        Phi3Config(
            vocab_size=64, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, pad_token_id=0,
        )
    )  # fmt: skip
    found = {group.pattern: group.split for group in parameter_groups(model) if group.split}
    assert found == {f"model.layers.{layer}.mlp.gate_up_proj.weight": (HIDDEN, HIDDEN) for layer in (0, 1)}


@pytest.mark.parametrize(("rows", "split"), [(24, (16, 8)), (25, None)])
def test_the_latent_vector_and_the_rotary_key_are_parted_where_the_rows_are_theirs(
    rows: int, split: tuple[int, int] | None
) -> None:
    found = {group.pattern: group.split for group in parameter_groups(nn.Sequential(Latent(rows)))}
    assert found == ({} if split is None else {"0.kv_a_proj_with_mqa.weight": split})


def test_maps_of_that_name_with_other_rows_stay_whole_and_a_group_of_the_settings_counts() -> None:
    assert parameter_groups(Gated(HIDDEN + 1)) == ()
    whole = ParameterGroup(pattern="*gate_up_proj*", optimizer="adamw")
    settings = MuonClipConfig(qk_clip_mode="disabled", groups=(whole,))
    routing = MuonClipOptimizer(Gated(HIDDEN), settings, lambda _: {}).routing.splitlines()
    assert routing[0].split()[2] == "adamw"


def test_the_parts_are_orthogonalised_as_two_maps_would_be() -> None:
    fused = Gated(HIDDEN)
    gate, up = (nn.Parameter(part.clone()) for part in fused.gate_up_proj.weight.detach().chunk(2))
    gradient = torch.randn(2 * HIDDEN, WIDTH, generator=torch.Generator().manual_seed(1))
    fused.gate_up_proj.weight.grad = gradient
    gate.grad, up.grad = gradient.chunk(2)
    settings = MuonClipConfig(newton_schulz_dtype="float32", groups=parameter_groups(fused))
    MuonClip([("gate_up_proj.weight", fused.gate_up_proj.weight)], [], settings).step(torch.empty(0))
    apart = MuonClipConfig(newton_schulz_dtype="float32")
    MuonClip([("gate.weight", gate), ("up.weight", up)], [], apart).step(torch.empty(0))
    assert torch.equal(fused.gate_up_proj.weight.detach(), torch.cat((gate, up)).detach())


def test_what_groups_of_ones_own_match_is_left_to_them() -> None:
    own = ParameterGroup(pattern="*.kv_a_proj*", learning_rate_scale=0.5)
    model = nn.Sequential(Latent(24), nn.Embedding(4, WIDTH))
    found = parameter_groups(model, groups=(own,), adamw=("1.weight",))
    assert [group.pattern for group in found] == ["*.kv_a_proj*", "1.weight"]
    MuonClipOptimizer(model, MuonClipConfig(qk_clip_mode="disabled", groups=found), lambda _: {})
