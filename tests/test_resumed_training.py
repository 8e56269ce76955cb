"""Training that is interrupted and resumed gives the same losses, bit for bit."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest

STEPS = 8


class Numpy:
    """A linear model with Adam's optimizer and a rate that falls, in NumPy alone."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.params = {"w": self.random.normal(size=(3, 1)), "b": np.zeros(1)}
        self.moments = {key: (np.zeros_like(p), np.zeros_like(p)) for key, p in self.params.items()}
        self.step, self.losses = 0, []

    def state(self):
        return {
            "params": self.params,
            "moments": self.moments,
            "random": self.random.bit_generator.state,
            "progress": {"step": self.step, "losses": self.losses},
        }

    def restore(self, path):
        npzkit.load_tree(path, into=(state := self.state()))
        self.random.bit_generator.state = state["random"]
        self.step = state["progress"]["step"]

    def train(self, until):
        while self.step < until:
            x = self.random.normal(size=(8, 3))
            error = x @ self.params["w"] + self.params["b"] - x.sum(1, keepdims=True)
            self.losses.append(float((error**2).mean()))
            self.step += 1
            for key, grad in {"w": x.T @ error, "b": error.sum(0)}.items():
                m, v = self.moments[key]
                m += 0.1 * (grad - m)
                v += 0.01 * (grad**2 - v)
                self.params[key] -= 0.1 / self.step * m / (np.sqrt(v) + 1e-8)


class Torch:
    """A small network with tied weights, dropout, AdamW and a schedule."""

    def __init__(self):
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        self.torch = torch
        torch.manual_seed(0)
        first, last = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5)
        last.weight = first.weight
        self.model = torch.nn.Sequential(first, torch.nn.Dropout(0.2), torch.nn.LayerNorm(4), last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.losses = []

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": self.torch.get_rng_state(),
            "losses": self.losses,
        }

    def restore(self, path):
        state = npzkit.load_tree(path, like=self.state())
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.torch.set_rng_state(state["random"])
        self.losses = state["losses"]

    def train(self, until):
        while len(self.losses) < until:
            batch = self.torch.randint(0, 5, (6,))
            loss = self.torch.nn.functional.cross_entropy(self.model(batch), (batch + 1) % 5)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.losses.append(loss.item())


@pytest.mark.parametrize("kind", [Numpy, Torch])
@pytest.mark.parametrize("interrupted", [0, 3, STEPS - 1])
def test_losses_are_those_of_an_uninterrupted_run(tmp_path, kind, interrupted):
    """A run saved at a step, and resumed by a new model and a new optimizer, has the same losses."""
    path = tmp_path / "checkpoint.npz"
    whole = kind()
    whole.train(STEPS)
    first = kind()
    first.train(interrupted)
    npzkit.save(path, first.state())
    resumed = kind()
    resumed.restore(path)
    resumed.train(STEPS)
    assert resumed.losses == whole.losses
    assert len(set(whole.losses)) == STEPS
