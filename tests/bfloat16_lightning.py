"""A small transformer with dropout, trained in bfloat16 with MuonClip by Lightning under guard; QK-Clip always acts."""

import sys
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trimtab_trainer.integrations.lightning import SessionCallback
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.integrations.run import Run, launch
from trimtab_trainer.optim import MuonClipConfig

WIDTH, HEADS = 32, 4


class LanguageModel(lightning.LightningModule):
    """Two causal layers of PyTorch's own."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of samples [batch, sequence]."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits = self.head(self.layers(self.embedding(tokens), mask=mask, is_causal=True))
        if logits.dtype != torch.bfloat16:
            sys.exit(f"the head was computed in {logits.dtype}")
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def training_step(self, batch: dict[str, Tensor], _batch_index: int) -> Tensor:
        """Lightning's."""
        return self.loss(batch["tokens"], batch["targets"])

    def evaluation_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """By which a restore is proved."""
        return self.loss(tokens, targets)

    def configure_optimizers(self) -> Any:
        """MuonClip under a warm-up."""
        optimizer = MuonClipOptimizer(self, MuonClipConfig(muon_lr=0.01, adamw_lr=3e-3, qk_clip_threshold=0.3))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 5, 1.0))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(run: Run) -> None:
    """Build the model and train it until the run is finished."""
    torch.manual_seed(run.seed)
    guard = SessionCallback(run)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=run.ranks,
        strategy="ddp",
        precision="bf16-mixed",
        max_steps=-1,
        max_epochs=-1,
        accumulate_grad_batches=run.micro_batches,
        gradient_clip_val=1.0,
        callbacks=[guard],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(LanguageModel(run.vocabulary), guard.loader)


if __name__ == "__main__":
    launch(train)
