"""A training run that is killed again and again ends with the same bits as one that is not."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
from children import forked, read_rest
from deep import amount
from faults import FaultyOS
from npzkit.checkpoint import CheckpointStore, NoCheckpointError, best, latest
from npzkit.files import disk

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
STEPS = amount(12, 60)


class DeadlyOS(FaultyOS):
    """`os`, which kills the process at one of its calls."""

    def _fail(self, name, real, *args):
        os.kill(os.getpid(), signal.SIGKILL)


def train(folder) -> tuple[bytes, list[float]]:
    """Fit a line with Adam and noisy batches; return the weights' bits and the losses."""
    rng = np.random.default_rng(0)
    tree = {
        "weights": np.zeros(5),
        "adam": {"m": np.zeros(5), "v": np.zeros(5), "lr": 0.1, "betas": (0.9, 0.999)},
        "rng": rng.bit_generator.state,
        "losses": [],
        "schedule": {0: 1.0, STEPS // 2: 0.5},
    }
    first = 1
    with CheckpointStore(
        folder, keep=latest(2) | best("loss"), background=True, durable=False
    ) as store:
        try:
            checkpoint = store.load()
        except NoCheckpointError:
            pass
        else:
            tree, first = checkpoint.tree, checkpoint.step + 1
            rng.bit_generator.state = tree["rng"]
        weights, adam = tree["weights"], tree["adam"]
        for step in range(first, STEPS + 1):
            inputs = rng.standard_normal((20, 5))
            errors = inputs @ (weights - np.arange(5)) + 0.1 * rng.standard_normal(20)
            slope = inputs.T @ errors / 20
            for name, beta, term in zip("mv", adam["betas"], (slope, slope**2), strict=True):
                adam[name] *= beta
                adam[name] += (1 - beta) * term
            adam["lr"] *= tree["schedule"].get(step, 1.0)
            weights -= adam["lr"] * adam["m"] / (np.sqrt(adam["v"]) + 1e-8)
            tree["losses"].append(float(np.square(errors).mean()))
            tree["rng"] = rng.bit_generator.state
            store.save(step, tree, metrics={"loss": tree["losses"][-1]})
    return weights.tobytes(), tree["losses"]


def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path):
    """Weights and every loss are bit-identical, whenever the run was killed and resumed."""
    expected = train(tmp_path / "whole")
    choose = random.Random(0)
    kills = 0
    said = b""
    while not said:

        def work(pipe):
            disk.os = DeadlyOS(choose.randint(1, 12 * STEPS // 3), 0)
            os.write(pipe, repr(train(tmp_path / "killed")).encode())

        number = choose.randrange(1 << 30)
        choose.seed(number)
        with forked(work) as (_, pipe):
            said = read_rest(pipe)
        choose.seed(number + 1)
        kills += not said
    assert said.decode() == repr(expected)
    assert kills >= 2
    with CheckpointStore(tmp_path / "killed") as store:
        assert store.latest == STEPS
        assert store.verify().ok
