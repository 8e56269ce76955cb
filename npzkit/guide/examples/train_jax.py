"""Train a small model of JAX. Kill it at any time, start it again, and it continues."""

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
from npzkit.checkpoint import CheckpointStore, NoCheckpointError, best, latest

STEPS = 20
folder = sys.argv[1] if len(sys.argv) > 1 else "jax_run"


class Adam(NamedTuple):
    """The optimizer's state. A namedtuple comes back as its own class by `like=`."""

    count: jax.Array
    mean: dict
    square: dict


def loss_of(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.mean((hidden @ params["out"] - targets) ** 2)


@jax.jit
def update(params, adam, key):
    key, noise = jax.random.split(key)
    inputs = jax.random.normal(noise, (32, 3))
    loss, slopes = jax.value_and_grad(loss_of)(params, inputs, inputs.sum(1) ** 2)
    count = adam.count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mean, slopes)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, adam.square, slopes)
    rate = 0.01 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
    return params, Adam(count, mean, square), key, loss


key, first_key, last_key = jax.random.split(jax.random.key(0), 3)
hidden = {"w": jax.random.normal(first_key, (3, 8)), "b": jnp.zeros(8)}
params = {"hidden": hidden, "out": jax.random.normal(last_key, (8,))}
adam = Adam(jnp.zeros((), int), *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)))
state = {"params": params, "adam": adam, "key": key, "losses": []}
first = 1

with CheckpointStore(folder, keep=latest(3) | best("loss"), background=True) as store:
    try:
        checkpoint = store.load(like=state)  # JAX's arrays, on the devices of these
        state, first = checkpoint.tree, checkpoint.step + 1
    except NoCheckpointError:
        print("a new run", file=sys.stderr)
    for step in range(first, STEPS + 1):
        params, adam, key, loss = update(state["params"], state["adam"], state["key"])
        losses = [*state["losses"], float(loss)]
        state = {"params": params, "adam": adam, "key": key, "losses": losses}
        store.save(step, state, metrics={"loss": losses[-1]})

print(*[loss.hex() for loss in state["losses"]])
