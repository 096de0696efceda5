"""Which linear maps of a plain PyTorch model are several in one: an update of the whole would mix them."""

from collections.abc import Iterator
from typing import cast

from torch import nn

from trimtab_trainer.optim.config import ParameterGroup


def fused_groups(model: nn.Module) -> Iterator[ParameterGroup]:
    """Yield groups whose `split` parts such maps, known by what models of Hugging Face call them and by their rows.

    `gate_up_proj` beside a `down_proj` that takes half as many inputs is gate and up of an MLP. `kv_a_proj_with_mqa` of
    DeepSeek's latent attention has the rows of the latent vector, then those of the rotary key of all heads.
    """
    for name, module in cast("Iterator[tuple[str, nn.Module]]", model.named_modules()):
        prefix = f"{name}." if name else ""
        gate_up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
        if type(gate_up) is nn.Linear and type(down) is nn.Linear and gate_up.out_features == 2 * down.in_features:
            yield ParameterGroup(pattern=f"{prefix}gate_up_proj.weight", split=(down.in_features,) * 2)
        latent = getattr(module, "kv_a_proj_with_mqa", None)
        parts = (getattr(module, "kv_lora_rank", None), getattr(module, "qk_rope_head_dim", None))
        if type(latent) is nn.Linear and all(isinstance(part, int) and part > 0 for part in parts):
            split = cast("tuple[int, int]", parts)
            if sum(split) == latent.out_features:
                yield ParameterGroup(pattern=f"{prefix}kv_a_proj_with_mqa.weight", split=split)
