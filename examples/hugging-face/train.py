"""A small Llama, built from its configuration, trained with MuonClip by Hugging Face's Trainer under guard.

torchrun starts it on every rank; `trainingjob.yaml` beside it says with what.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from trimtab_trainer.integrations.hugging_face import GuardedTrainer
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.integrations.run import Run, launch
from trimtab_trainer.optim import MuonClipConfig


def train(run: Run) -> None:
    """Build the model and train it until the run is finished."""
    torch.manual_seed(run.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=run.vocabulary,
            max_position_embeddings=run.sequence + 1,
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
    )
    arguments = TrainingArguments(
        output_dir="/tmp/hugging-face",  # noqa: S108 the only folder of a pod that can be written to
        max_steps=run.steps,
        seed=run.seed,
        per_device_train_batch_size=run.micro_batch,
        gradient_accumulation_steps=run.micro_batches,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        max_grad_norm=1.0,
        logging_steps=20,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    optimizer = MuonClipOptimizer(
        model.to(arguments.device), MuonClipConfig(muon_lr=5e-3, adamw_lr=3e-3, qk_clip_threshold=30.0)
    )
    GuardedTrainer(run, model=model, args=arguments, optimizers=(optimizer, None)).train()


if __name__ == "__main__":
    launch(train)
