"""Train with Hugging Face's Trainer, whose weights and optimizer npzkit saves. Kill it, it continues."""

import contextlib
import logging
import os
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import npzkit
import torch
import transformers

STEPS = 12
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "transformers_run")


class NpzTrainer(transformers.Trainer):
    """Keep weights, optimizer and scheduler in archives, not in pickles."""

    def _save(self, output_dir=None, state_dict=None):
        path = Path(output_dir or self.args.output_dir, "model.npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        npzkit.save(path, state_dict or self.model.state_dict())

    def _save_optimizer_and_scheduler(self, output_dir):
        state = {
            "optimizer": self.optimizer.state_dict(), "scheduler": self.lr_scheduler.state_dict()
        }  # fmt: skip
        npzkit.save(Path(output_dir, "optimizer.npz"), state)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        state = npzkit.load_tree(Path(resume_from_checkpoint, "model.npz"), like={})
        (model or self.model).load_state_dict(state)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None:
            state = npzkit.load_tree(Path(checkpoint, "optimizer.npz"), like={})
            self.optimizer.load_state_dict(state["optimizer"])
            self.lr_scheduler.load_state_dict(state["scheduler"])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))

    def forward(self, tokens, labels):
        scores = self.net(tokens)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "scores": scores}


logging.disable(logging.WARNING)
transformers.set_seed(0)
data = [{"tokens": number % 16, "labels": (number + 1) % 16} for number in range(64)]
arguments = transformers.TrainingArguments(
    folder, max_steps=STEPS, per_device_train_batch_size=8, learning_rate=0.05, save_steps=2,
    logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, seed=0,
)  # fmt: skip
trainer = NpzTrainer(Model(), arguments, train_dataset=data)
steps = [path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
last = max(steps, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
with contextlib.redirect_stdout(sys.stderr):
    trainer.train(resume_from_checkpoint=last and str(last))
print(*[row["loss"].hex() for row in trainer.state.log_history if "loss" in row])
