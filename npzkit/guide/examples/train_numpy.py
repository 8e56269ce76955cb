"""Fit a line with Adam and noisy batches. Kill it at any time, start it again, and it continues."""

import sys

import numpy as np
from npzkit.checkpoint import CheckpointStore, NoCheckpointError, best, latest

STEPS = 20
folder = sys.argv[1] if len(sys.argv) > 1 else "numpy_run"

rng = np.random.default_rng(0)
weights = np.zeros(5)
state = {
    "weights": weights,
    "adam": {"m": np.zeros(5), "v": np.zeros(5)},
    "rng": rng.bit_generator.state,
    "losses": [],
}
first = 1

with CheckpointStore(folder, keep=latest(3) | best("loss"), background=True) as store:
    try:
        # Fills the arrays, dicts and lists of `state` with the newest sound step.
        first = store.load(into=state).step + 1
        rng.bit_generator.state = state["rng"]
    except NoCheckpointError:
        print("a new run", file=sys.stderr)
    for step in range(first, STEPS + 1):
        inputs = rng.standard_normal((20, 5))
        errors = inputs @ (weights - np.arange(5)) + 0.1 * rng.standard_normal(20)
        loss, slope = float(np.square(errors).mean()), inputs.T @ errors / 20
        m, v = state["adam"]["m"], state["adam"]["v"]
        m += 0.1 * (slope - m)
        v += 0.001 * (slope**2 - v)
        weights -= 0.1 * m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        state["losses"].append(loss)
        state["rng"] = rng.bit_generator.state
        store.save(step, state, metrics={"loss": loss})

print(*[loss.hex() for loss in state["losses"]])
