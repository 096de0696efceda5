"""A small transformer trained with MuonClip by Lightning under guard.

torchrun starts it on every rank; `trainingjob.yaml` beside it says with what.
"""

import os
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trimtab_trainer.integrations.lightning import SessionCallback
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.integrations.run import Run, launch
from trimtab_trainer.optim import MuonClipConfig

WIDTH, LAYERS, HEADS = 64, 2, 4


class LanguageModel(lightning.LightningModule):
    """A causal transformer over tokens; predicts each token's successor."""

    def __init__(self, vocabulary: int, sequence: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Embedding(sequence, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of samples [batch, sequence]."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.embedding(tokens) + self.position.weight[:length]
        logits = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def training_step(self, batch: dict[str, Tensor], _batch_index: int) -> Tensor:
        """Lightning's."""
        return self.loss(batch["tokens"], batch["targets"])

    def evaluation_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """By which a restore is proved, and the reach of a damage measured."""
        return self.loss(tokens, targets)

    def configure_optimizers(self) -> Any:
        """MuonClip under a warm-up and a straight line down to a tenth."""
        optimizer = MuonClipOptimizer(self, MuonClipConfig(muon_lr=5e-3, adamw_lr=3e-3, qk_clip_threshold=30.0))

        def factor(step: int) -> float:
            return min((step + 1) / 20, 1.0 - 0.9 * step / self.steps)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(run: Run) -> None:
    """Build the model and train it until the run is finished."""
    torch.manual_seed(run.seed)
    guard = SessionCallback(run)
    nodes = run.ranks // int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=run.ranks // nodes,
        num_nodes=nodes,
        strategy="ddp",
        max_steps=-1,
        max_epochs=-1,
        accumulate_grad_batches=run.micro_batches,
        gradient_clip_val=1.0,
        callbacks=[guard],
        default_root_dir="/tmp/lightning",  # noqa: S108 the only folder of a pod that can be written to
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(LanguageModel(run.vocabulary, run.sequence, run.steps), guard.loader)


if __name__ == "__main__":
    launch(train)
