"""Train with Lightning, whose checkpoints npzkit writes. Kill it, start it again, it continues."""

import logging
import os
import sys
import warnings
from pathlib import Path

import lightning
import npzkit
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import CheckpointIO

EPOCHS = 8
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "lightning_run")


class NpzCheckpoints(CheckpointIO):
    """Each checkpoint is one archive: without pickle, checked, and complete or not there."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        npzkit.save(path, checkpoint, storage_options=storage_options)

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        return npzkit.load_tree(path, like={})

    def remove_checkpoint(self, path):
        os.remove(path)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))
        self.losses = []

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.net(batch), (batch + 1) % 16)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["losses"] = self.losses

    def on_load_checkpoint(self, checkpoint):
        self.losses = checkpoint["losses"]


warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
lightning.seed_everything(0, verbose=False)
data = torch.utils.data.DataLoader(torch.randint(0, 16, (64,)), batch_size=32)
model = Model()
trainer = lightning.Trainer(
    max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, plugins=[NpzCheckpoints()],
    callbacks=[ModelCheckpoint(folder, filename="{epoch:02}", save_top_k=-1)],
)  # fmt: skip
trainer.fit(model, data, ckpt_path=max(folder.glob("*.ckpt"), default=None))
print(*[loss.hex() for loss in model.losses])
