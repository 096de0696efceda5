"""The attention operators of PyTorch that return the log-sum-exp of every row beside the output.

They are private, so each is used only where its signature is the one this module was written for.
"""

from functools import cache
from typing import Any, Final

import torch

CPU_FLASH: Final = "_scaled_dot_product_flash_attention_for_cpu"
CUDA_FLASH: Final = "_scaled_dot_product_flash_attention"
CUDA_EFFICIENT: Final = "_scaled_dot_product_efficient_attention"

_SCHEMAS: Final = {
    CPU_FLASH: (
        "(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, "
        "Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"
    ),
    CUDA_FLASH: (
        "(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, "
        "bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, "
        "Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)"
    ),
    CUDA_EFFICIENT: (
        "(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0., "
        "bool is_causal=False, *, float? scale=None) -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, "
        "Tensor philox_offset)"
    ),
}


@cache
def known_operator(name: str) -> Any | None:
    """Return the operator of this name, or None where this PyTorch has none of the known signature."""
    operator = getattr(torch.ops.aten, name, None)
    if operator is None or str(operator.default._schema) != f"aten::{name}{_SCHEMAS[name]}":  # noqa: SLF001
        return None
    return operator.default
