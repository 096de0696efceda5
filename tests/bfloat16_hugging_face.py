"""A small Llama with dropout, trained in bfloat16 with AdamW by Hugging Face's Trainer under guard."""

import sys

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from trimtab_trainer.integrations.hugging_face import GuardedTrainer
from trimtab_trainer.integrations.run import Run, launch


def require_bfloat16(module: nn.Module, _inputs: object, output: Tensor) -> None:
    """A hook for what must be computed in bfloat16."""
    if output.dtype != torch.bfloat16:
        sys.exit(f"{type(module).__name__} was computed in {output.dtype}")


def train(run: Run) -> None:
    """Build the model and train it until the run is finished."""
    torch.manual_seed(run.seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"vocab_size": run.vocabulary, "max_position_embeddings": run.sequence + 1, "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(**shape, **special, attention_dropout=0.1))
    model.model.layers[0].mlp.down_proj.register_forward_hook(require_bfloat16)
    arguments = TrainingArguments(
        output_dir=".",
        max_steps=run.steps,
        seed=run.seed,
        per_device_train_batch_size=run.micro_batch,
        gradient_accumulation_steps=run.micro_batches,
        bf16=True,
        learning_rate=3e-3,
        warmup_steps=5,
        ddp_find_unused_parameters=False,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    GuardedTrainer(run, model=model, args=arguments).train()


if __name__ == "__main__":
    launch(train)
