"""Ways to save checkpoints that `checkpoints` compares: one class per library.

Each class has a method per piece of work. A library without one does not take part
there. None waits for the disk, except in `save_durably`.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from npzkit.checkpoint import CheckpointStore
from npzkit.codecs.checksum import crc32
from npzkit.files.threads import run
from npzkit.limits import thread_count
from npzkit.trees.containers import flatten
from works import Place, bare_read, bare_write

MISSING = [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]
"""Packages that the benchmark needs and that are not installed."""

if not MISSING:
    import safetensors
    import safetensors.torch
    import torch
    import torch.distributed.checkpoint as dcp

LAYER_COUNT = 8
SMALL = 100
"""By what a state is divided that is loaded first, so that modules are imported."""
Tensors = dict[str, Any]


class State(NamedTuple):
    """What is saved: as nested dicts, and as the flat dict that some libraries need."""

    tree: dict[str, Any]
    tensors: Tensors

    @property
    def size(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def part(self) -> str:
        """Return the key of a tensor that is one hundredth of all, or nearly."""
        wanted = self.size / 100
        return min(self.tensors, key=lambda key: abs(self.tensors[key].nbytes - wanted))


# -- data --------------------------------------------------------------------


@cache
def state(kind: str, divisor: int) -> State:
    """Return four large tensors, the 400 of a transformer and its AdamW, or mostly frozen ones."""
    generator = torch.Generator().manual_seed(0)
    return _made(kind, divisor, partial(torch.randn, generator=generator))


def example(kind: str, divisor: int) -> State:
    """Return what a new process has before it loads a state: tensors of the same form."""
    return _made(kind, divisor, torch.zeros)


def _made(kind: str, divisor: int, new: Callable[..., Any]) -> State:
    place = Place(Path(), divisor)

    def normal(*shape: int) -> torch.Tensor:
        return new(shape)

    if kind == "large":
        tensors = {f"layer{i}.weight": normal(place.part(1 << 24)) for i in range(4)}
        return state_of(tensors)
    if kind == "frozen":
        backbone = {f"layer{i}": normal(place.part(1 << 24)) for i in range(16)}
        head = normal(place.part(1 << 22))
        flat = {f"backbone/{name}": tensor for name, tensor in backbone.items()}
        return State({"backbone": backbone, "head": head}, {**flat, "head": head})
    shapes = transformer(width=place.part(512), word_count=place.part(4096))
    model = {name: normal(*shape).to(torch.bfloat16) for name, shape in shapes.items()}
    flat = {f"model/{name}": tensor for name, tensor in model.items()}
    for index, shape in enumerate(shapes.values()):
        moments = torch.tensor(1000.0), normal(*shape), normal(*shape).square()
        for name, tensor in zip(("step", "exp_avg", "exp_avg_sq"), moments, strict=True):
            flat[f"optimizer/state/{index}/{name}"] = tensor
    return state_of(flat)


def state_of(tensors: Tensors) -> State:
    """Return tensors as one or two state dicts have them."""
    model, moments = {}, {}
    for key, tensor in tensors.items():
        *parents, name = key.split("/")
        within = moments.setdefault(int(parents[-1]), {}) if "state" in parents else model
        within[name] = tensor
    if not moments:
        return State(model, tensors)
    group = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "params": list(moments)}
    optimizer = {"state": moments, "param_groups": [group]}
    return State({"model": model, "optimizer": optimizer}, tensors)


def transformer(width: int, word_count: int) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of 100 parameters, as GPT-2 has them."""
    parts = {
        "ln_1": (width,), "attn.c_attn": (3 * width, width), "attn.c_proj": (width, width),
        "ln_2": (width,), "mlp.c_fc": (4 * width, width), "mlp.c_proj": (width, 4 * width),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (word_count, width)}
    shapes["wpe.weight"] = (2 * width, width)
    for layer in range(LAYER_COUNT):
        for name, shape in parts.items():
            shapes[f"h.{layer}.{name}.weight"] = shape
            shapes[f"h.{layer}.{name}.bias"] = shape[:1]
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    return {f"transformer.{name}": shape for name, shape in shapes.items()}


def zeros(tensors: Tensors) -> Tensors:
    return {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}


def empty(tensors: Tensors) -> Tensors:
    return {key: torch.empty_like(tensor) for key, tensor in tensors.items()}


def copied(into: Tensors, loaded: Tensors) -> Tensors:
    for key, tensor in into.items():
        tensor.copy_(loaded[key])
    return into


def warm_memory(size: int) -> None:
    """Use memory, and give it back.

    The host of a virtual machine takes back memory that has been free for two seconds.
    To give it out again takes ten times as long as to save what is put there.
    """
    memory = np.empty(size, np.uint8)
    memory[:: mmap.PAGESIZE] = 1


# -- libraries ---------------------------------------------------------------


class Library:
    """A way to save a state; `path` is what it writes."""

    name = ""

    def __init__(self, folder: Path, state: State) -> None:
        self.path = folder / self.name
        self.state = state
        self.into = state
        self.part = state.part()

    def clear(self) -> None:
        """Remove what was saved, so that each save makes new files."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)

    def wait(self) -> None:
        """Wait for the end of what `begin` began."""

    def unlock(self) -> None:
        """Let other processes save to the same place."""

    def close(self) -> None:
        """Remove the folder."""
        self.unlock()
        shutil.rmtree(self.path.parent)


class Npzkit(Library):
    name = "npzkit"

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        stores = [
            CheckpointStore(folder / kind, durable=kind == "durable", background=kind == "begun")
            for kind in ("npzkit", "durable", "begun")
        ]
        self.store, self.durable, self.begun = stores

    def clear(self) -> None:
        for store in (self.store, self.durable, self.begun):
            if 1 in store:
                store.delete(1)

    def unlock(self) -> None:
        for store in (self.store, self.durable, self.begun):
            store.close()

    def save(self) -> None:
        self.store.save(1, self.state.tree)

    def save_next(self, *, step: int = 1, check: bool = True) -> None:
        self.store.save(step, self.state.tree, frozen="backbone/*", check=check)

    def save_next_unchecked(self) -> None:
        self.save_next(check=False)

    def save_apart(self) -> None:
        """Save what is not frozen, and take the CRC-32s of what is."""
        tree = self.state.tree
        self.store.save(1, {"head": tree["head"]})
        run([partial(crc32, one.numpy()) for one in tree["backbone"].values()], thread_count(None))

    def save_durably(self) -> None:
        self.durable.save(1, self.state.tree)

    def begin(self) -> None:
        self.begun.save(1, self.state.tree)

    def wait(self) -> None:
        self.begun.wait()

    def load(self) -> Any:
        return self.store.load(like=self.state.tree).tree

    def load_into(self) -> Any:
        return self.store.load(into=self.into.tree).tree

    def map(self) -> Any:
        return self.store.load(verify=False, mmap_mode="r").tree

    def load_everything(self) -> None:
        """Load as `load` does, where the result is not compared with that of others."""
        self.load()

    def load_part(self) -> Any:
        return self.store.load(only=self.part).tree


class Torch(Library):
    name = "torch"

    def save(self) -> None:
        torch.save(self.state.tree, self.path)

    def save_durably(self) -> None:
        with open(self.path, "wb") as file:
            torch.save(self.state.tree, file)
            file.flush()
            os.fsync(file.fileno())

    begin = save

    def load(self) -> Any:
        return torch.load(self.path)

    def load_into(self) -> Any:
        return copied(self.into.tensors, flat_of(torch.load(self.path)))

    def map(self) -> Any:
        return torch.load(self.path, mmap=True)


class Safetensors(Library):
    name = "safetensors"

    def save(self) -> None:
        safetensors.torch.save_file(self.state.tensors, self.path)

    def save_durably(self) -> None:
        self.save()
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())

    begin = save

    def load(self) -> Any:
        # load_file maps the file: no byte is read before it is used.
        return safetensors.torch.load(self.path.read_bytes())

    def load_into(self) -> Any:
        return copied(self.into.tensors, safetensors.torch.load_file(self.path))

    def map(self) -> Any:
        return safetensors.torch.load_file(self.path)

    def load_part(self) -> Any:
        with safetensors.safe_open(self.path, "pt") as file:
            return {self.part: file.get_tensor(self.part).clone()}


class Dcp(Library):
    """torch.distributed.checkpoint, in one process."""

    name = "DCP"

    def _save(self, *, is_durable: bool) -> None:
        writer = dcp.FileSystemWriter(self.path, sync_files=is_durable)
        dcp.save(self.state.tensors, storage_writer=writer, no_dist=True)

    def save(self) -> None:
        self._save(is_durable=False)

    def save_durably(self) -> None:
        self._save(is_durable=True)

    def begin(self) -> None:
        writer = dcp.FileSystemWriter(self.path, sync_files=False)
        self.begun = dcp.async_save(self.state.tensors, storage_writer=writer, no_dist=True)

    def wait(self) -> None:
        self.begun.result()

    def _fill(self, tensors: Tensors) -> Tensors:
        dcp.load(tensors, storage_reader=dcp.FileSystemReader(self.path), no_dist=True)
        return tensors

    def load(self) -> Any:
        return self._fill(empty(self.state.tensors))

    def load_into(self) -> Any:
        return self._fill(self.into.tensors)

    def load_part(self) -> Any:
        return self._fill(empty({self.part: self.state.tensors[self.part]}))


class Orbax(Library):
    name = "orbax"

    def __init__(self, folder: Path, state: State) -> None:
        import jax.numpy as jnp
        import orbax.checkpoint

        super().__init__(folder, state)
        self.checkpointer = orbax.checkpoint.StandardCheckpointer()
        self.tree: dict[str, Any] = {}
        for key, array in flatten(state.tensors)[0].items():
            inner, *parts = self.tree, *key.split("/")
            for part in parts[:-1]:
                inner = inner.setdefault(part, {})
            inner[parts[-1]] = jnp.asarray(array)

    def begin(self) -> None:
        self.checkpointer.save(self.path, self.tree)

    def wait(self) -> None:
        self.checkpointer.wait_until_finished()

    def save(self) -> None:
        self.begin()
        self.wait()

    def load(self) -> Any:
        return self.checkpointer.restore(self.path)


class Bare(Library):
    """The system calls alone, without a format."""

    name = "bare"

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        self.data = {"": np.ones(state.size, np.uint8)}

    def save(self) -> None:
        bare_write(self.path, self.data)

    def load(self) -> None:
        bare_read(self.path, [(0, self.data[""])])


def flat_of(tree: dict[str, Any]) -> Tensors:
    """Return the flat dict of a state's tree that was loaded."""
    if "model" not in tree:
        return tree
    flat = {f"model/{name}": tensor for name, tensor in tree["model"].items()}
    for index, moment in tree["optimizer"]["state"].items():
        flat |= {f"optimizer/state/{index}/{name}": found for name, found in moment.items()}
    return flat


def libraries(place: Place, kind: str) -> Iterator[Library]:
    """Yield the libraries that are installed, each with a new folder for a state."""
    for library in (Npzkit, Torch, Safetensors, Dcp, Orbax, Bare):
        if library is not Orbax or importlib.util.find_spec("orbax"):
            folder = Path(tempfile.mkdtemp(dir=place.folder))
            yield library(folder, state(kind, place.divisor))
