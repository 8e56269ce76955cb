"""Train on several processes of JAX, or on one. Kill them, start any number, and they continue.

Each process: python train_jax_processes.py FOLDER NUMBER COUNT ADDRESS
"""

import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from npzkit.checkpoint import CheckpointStore, NoCheckpointError, best, latest

STEPS = 20
folder, *job = sys.argv[1:] or ["jax_job"]
if job:
    number, count, address = job
    jax.distributed.initialize(address, int(count), int(number))

mesh = jax.make_mesh((jax.device_count(),), ("data",))
parts, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
shardings = {"params": parts, "momentum": parts, "key": everywhere}


def new_state():
    first, last, key = jax.random.split(jax.random.key(0), 3)
    hidden, out = jax.random.normal(first, (16, 32)) / 4, jax.random.normal(last, (32,)) / 8
    params = {"hidden": hidden, "out": out}
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params), "key": key}


def loss_of(params, inputs, targets):
    return jnp.mean((jnp.tanh(inputs @ params["hidden"]) @ params["out"] - targets) ** 2)


def update(state):
    key, noise = jax.random.split(state["key"])
    inputs = jax.random.normal(noise, (64, 16))
    targets = jnp.sin(inputs.sum(1))
    loss, slopes = jax.value_and_grad(loss_of)(state["params"], inputs, targets)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], slopes)
    params = jax.tree.map(lambda p, m: p - 0.02 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum, "key": key}, loss


update = jax.jit(update, out_shardings=(shardings, everywhere))
state, losses, first = jax.jit(new_state, out_shardings=shardings)(), [], 1

# All processes make each call: each saves the parts on its devices, and loads those it needs.
with CheckpointStore(folder, keep=latest(3) | best("loss"), background=True) as store:
    try:
        checkpoint = store.load(like={"state": state, "losses": losses})
        state, losses = checkpoint.tree.values()
        first = checkpoint.step + 1
    except NoCheckpointError:
        print("a new run", file=sys.stderr)
    for step in range(first, STEPS + 1):
        state, loss = update(state)
        losses = [*losses, float(loss)]
        store.save(step, {"state": state, "losses": losses}, metrics={"loss": losses[-1]})

if jax.process_index() == 0:
    print(*[loss.hex() for loss in losses])
