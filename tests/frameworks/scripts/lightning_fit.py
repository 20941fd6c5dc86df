"""A LightningModule under Lightning's DDP: a checkpoint every second step, `fit(ckpt_path="last")` at start.

torchrun --nproc-per-node=2 lightning_fit.py FOLDER
"""

import os
import sys
from typing import Any

import lightning
import tiny
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from torch.utils.data import DataLoader


class Language(lightning.LightningModule):
    """The tiny model."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny.model()

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.network(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Noted(Callback):
    """Keeps losses and does the fault, before the step is saved."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep the step from which this life goes on."""
        tiny.note("begun", str(trainer.global_step))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step."""
        loss = trainer.strategy.reduce(outputs["loss"].detach(), reduce_op="mean").item()
        tiny.end_of_step(trainer.global_step)
        trainer.strategy.barrier()
        tiny.note_loss(trainer.global_step, loss)


def main(folder: str) -> None:
    """Train for eight steps."""
    lightning.seed_everything(1)
    words = tiny.tokenizer()
    rows = [torch.tensor(words(tiny.text(number))["input_ids"]) for number in range(64)]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        plugins=[TorchElasticEnvironment()],
        max_steps=8,
        callbacks=[Noted(), ModelCheckpoint(folder, every_n_train_steps=2, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Language(), DataLoader(rows, batch_size=2, shuffle=True), ckpt_path="last", weights_only=False)


if __name__ == "__main__":
    main(sys.argv[1])
