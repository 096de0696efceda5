"""`config.json` beside exported weights: the model's shape in the words that Hugging Face's models use. Pure."""

from collections.abc import Mapping
from typing import Any

from trimtab_contract.checkpoints import CheckpointManifest, TensorDescription
from trimtab_contract.config_record import ConfigRecord

from trimtab_cli.errors import CliError

MODEL_PREFIX = "model."
"""What names of the model's tensors begin with, beside those of the optimizer."""

DEFAULTS: Mapping[str, Any] = {
    "vocabSize": 256,
    "width": 128,
    "layers": 4,
    "heads": 4,
    "sequence": 128,
    "mlpRatio": 4,
    "bias": False,
    "tiedHead": False,
    "rotaryBase": 10_000.0,
    "normEpsilon": 1e-6,
}
"""Of the reference trainer's `config.model`, as far as the weights depend on it."""

_KNOWN: Mapping[str, str] = {
    "vocabSize": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "sequence": "max_position_embeddings",
    "bias": "attention_bias",
    "tiedHead": "tie_word_embeddings",
    "rotaryBase": "rope_theta",
    "normEpsilon": "rms_norm_eps",
}
"""What the words of Hugging Face's models are for them."""


def model_tensors(manifest: CheckpointManifest) -> dict[str, TensorDescription]:
    """The model's tensors under the names that the model itself gives them."""
    return {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in manifest.tensors.items()
        if name.startswith(MODEL_PREFIX)
    }


def model_config(
    trainer: Mapping[str, Any],
    tensors: Mapping[str, TensorDescription],
    origin: Mapping[str, Any],
    saved: ConfigRecord | None,
) -> dict[str, Any]:
    """The content of `config.json`; `trainer` is the job's `spec.trainer`, `origin` says where the weights are from.

    The shape is what the checkpoint was `saved` under, where its manifest tells, and else what the job names now. Of a
    trainer of one's own nothing is known but its `config`. Raises CliError where the shape is not that of the tensors.
    """
    given: Mapping[str, Any] = trainer.get("config") or {}
    if trainer.get("command"):
        return {"model_type": "custom", "trainer_config": dict(given), "trimtab": dict(origin)}
    model: Mapping[str, Any] = (given.get("model") or {}) if saved is None else saved.section("model")
    shape: dict[str, Any] = {**DEFAULTS, **model}
    problems = _misfits(shape, tensors)
    if problems:
        raise CliError(
            f"The checkpoint has another model than spec.trainer.config.model names now ({'; '.join(problems)}): "
            "set these fields back."
        )
    named = {_KNOWN[name]: value for name, value in shape.items() if name in _KNOWN}
    return {
        "architectures": ["Transformer"],
        "model_type": "trimtab",
        **named,
        "intermediate_size": shape["mlpRatio"] * shape["width"],
        "hidden_act": "gelu",
        "torch_dtype": tensors["embedding.weight"].dtype,
        # What only some kinds of the model have keeps the name that the job gives it.
        **{name: value for name, value in shape.items() if name not in DEFAULTS},
        "trimtab": dict(origin),
    }


def _misfits(shape: Mapping[str, Any], tensors: Mapping[str, TensorDescription]) -> list[str]:
    """Each field that the tensors show to be another one."""
    shown: dict[str, Any] = {"layers": len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})}
    embedding, up = tensors.get("embedding.weight"), tensors.get("blocks.0.up.weight")
    if embedding is None:
        return ["the tensors have no embedding.weight"]
    shown["vocabSize"], shown["width"] = embedding.shape
    if up is not None:
        shown |= {"mlpRatio": up.shape[0] // up.shape[1], "bias": "blocks.0.up.bias" in tensors}
    return [f"{name}: {shape[name]}, the tensors have {value}" for name, value in shown.items() if shape[name] != value]
