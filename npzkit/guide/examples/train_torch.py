"""Train a small model of PyTorch. Kill it at any time, start it again, and it continues."""

import sys

import torch
from npzkit.checkpoint import CheckpointStore, NoCheckpointError, best, latest

STEPS = 20
folder = sys.argv[1] if len(sys.argv) > 1 else "torch_run"

torch.manual_seed(0)
embedding, head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)
head.weight = embedding.weight  # tied weights are saved once, and come back tied
model = torch.nn.Sequential(embedding, torch.nn.Dropout(0.2), torch.nn.LayerNorm(8), head)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cpu", growth_interval=4)
losses = []
first = 1


def state():
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "rng": torch.get_rng_state(),
        "losses": losses,
    }


with CheckpointStore(folder, keep=latest(3) | best("loss"), background=True) as store:
    try:
        checkpoint = store.load(like=state())  # tensors, on the devices of these
    except NoCheckpointError:
        print("a new run", file=sys.stderr)
    else:
        model.load_state_dict(checkpoint.tree["model"])
        optimizer.load_state_dict(checkpoint.tree["optimizer"])
        scheduler.load_state_dict(checkpoint.tree["scheduler"])
        scaler.load_state_dict(checkpoint.tree["scaler"])
        torch.set_rng_state(checkpoint.tree["rng"])
        losses, first = checkpoint.tree["losses"], checkpoint.step + 1
    for step in range(first, STEPS + 1):
        batch = torch.randint(0, 16, (32,))
        loss = torch.nn.functional.cross_entropy(model(batch), (batch + 1) % 16)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.item())
        store.save(step, state(), metrics={"loss": losses[-1]})

print(*[loss.hex() for loss in losses])
