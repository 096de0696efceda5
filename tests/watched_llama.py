"""A small Llama whose attention is watched, and what its largest logits are by the definition."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer

VOCABULARY, TOKENS, HEADS = 32, 12, 4
SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "use_cache": False}
SPECIAL: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
STILL: dict[str, Any] = {"muon_lr": 1e-300, "adamw_lr": 1e-300}
"""Rates at which nothing moves but what QK-Clip scales."""


def llama(key_heads: int = 2, **changed: Any) -> LlamaForCausalLM:
    """Two layers whose logits lie far from zero."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": key_heads, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **SPECIAL, **heads, **changed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Weights of their first size make logits that all lie near zero, and biases are zero.
            if "q_proj" in name or "k_proj" in name:
                parameter.normal_(0.0, 0.4)
    return model


def exactly(model: nn.Module, *settings: Any) -> MuonClipOptimizer:
    """An optimizer that measures the largest logit of every head."""
    optimizer = MuonClipOptimizer(model, *settings)
    optimizer.measure_exactly(exact=True)
    return optimizer


def tokens(seed: int = 0, samples: int = 3) -> Tensor:
    """A batch, another one for each seed."""
    return torch.randint(0, VOCABULARY, (samples, TOKENS), generator=torch.Generator().manual_seed(seed))


def whole_matrix(model: LlamaForCausalLM, inputs: Tensor, present: Tensor | None = None) -> Tensor:
    """The largest logit of each head [layers, heads] by the definition, in float64: maps, rotation, product, mask."""
    double = copy.deepcopy(model).double()
    entered: list[Tensor] = []
    for layer in double.model.layers:
        layer.input_layernorm.register_forward_hook(lambda *given: entered.append(given[2]))
    found: list[Tensor] = []
    with torch.no_grad():
        hidden = double.model.embed_tokens(inputs)
        cosine, sine = double.model.rotary_emb(hidden, torch.arange(TOKENS)[None])
        double.eval()(input_ids=inputs, attention_mask=present)
        visible = CAUSAL if present is None else CAUSAL & present.bool()[:, None, None]
        for layer, into in zip(double.model.layers, entered, strict=True):
            attention = layer.self_attn
            query, key = (
                one(into).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for one in (attention.q_proj, attention.k_proj)
            )
            query, key = apply_rotary_pos_emb(query, key, cosine, sine)
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
            scores = query @ key.mT / math.sqrt(attention.head_dim)
            found.append(scores.masked_fill(~visible, -math.inf).amax((0, 2, 3)))
    return torch.stack(found)


CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
