"""One rank of a job that saves and loads: ``python job.py CASE RANK SIZE RENDEZVOUS FOLDER``.

A case is a function here. It asserts what it shows, and what a rank prints reaches the test.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from datetime import timedelta

import npzkit
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from npzkit.torch import NpzStorageReader, NpzStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

SHAPES = {"even": (8, 4), "uneven": (7, 4), "short": (3, 2), "cube": (4, 6, 5)}
LINE = [[Shard(0)], [Shard(1)], [Replicate()]]
PLANE = [[Replicate(), Shard(0)], [Shard(0), Shard(1)], [Shard(1), Shard(1)]]


def full(name: str) -> torch.Tensor:
    """Return a tensor whose values tell where they belong."""
    shape = SHAPES[name]
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def spread(mesh: DeviceMesh, placements: list, dtype=torch.float32, *, empty: bool = False) -> dict:
    """Return each tensor, in each of the placements."""
    tensors = {}
    for number, placement in enumerate(placements):
        for name in SHAPES:
            tensor = full(name).to(dtype)
            tensor = torch.full_like(tensor, -1) if empty else tensor
            tensors[f"{name}-{number}"] = distribute_tensor(tensor, mesh, placement)
    return tensors


def check_full(tensors: dict) -> None:
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(whole.float(), full(name.partition("-")[0])), name


def save(folder: str, state: dict, **options) -> None:
    dcp.save(state, storage_writer=NpzStorageWriter(folder, durable=False), **options)


def load(folder: str, state: dict, **options) -> None:
    dcp.load(state, storage_reader=NpzStorageReader(folder), **options)


# -- cases ------------------------------------------------------------------


def placements(rank: int, folder: str) -> None:
    """DTensors on one axis and on two come back in any other placement, on fewer ranks too."""
    line, plane = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    path = f"{folder}/line"
    save(path, {**spread(line, LINE), "plain": full("even"), "rate": 0.5, "rank": ("x", 4)})
    for mesh, ways in ((line, LINE[::-1]), (plane, PLANE)):
        state = spread(mesh, ways, empty=True)
        load(path, state)
        check_full(state)
    save(f"{folder}/plane", spread(plane, PLANE, torch.bfloat16))
    state = spread(line, LINE, torch.bfloat16, empty=True)
    load(f"{folder}/plane", state)
    check_full(state)
    pair = dist.new_group([0, 1])
    if rank < 2:
        state = spread(DeviceMesh("cpu", [0, 1]), LINE, empty=True)
        load(path, state, process_group=pair)
        for tensor in state.values():
            offset = tensor.__create_chunk_list__()[0]
            box = tuple(slice(o, o + n) for o, n in zip(offset.offsets, offset.sizes, strict=True))
            name = next(name for name in SHAPES if SHAPES[name] == tuple(tensor.shape))
            assert torch.equal(tensor.to_local(), full(name)[box])


def trained(seed: int, mesh: DeviceMesh):
    """Return a sharded model and its optimizer after two steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 / seed)
    for _ in range(2):
        model(torch.ones(4, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def whole(state: object) -> object:
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    return state.full_tensor().clone() if isinstance(state, DTensor) else copy.deepcopy(state)


def same(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def fsdp(rank: int, folder: str) -> None:
    """A model of FSDP2 and AdamW's state continue as they were, saved in the background too."""
    mesh = init_device_mesh("cpu", (4,))
    model, optimizer = trained(1, mesh)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    before = whole(state)
    future = dcp.async_save(state, storage_writer=NpzStorageWriter(f"{folder}/fsdp", durable=False))
    # Training goes on before the save is done.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    future.result()
    other, its = trained(3, mesh)
    state = dict(zip(("model", "optimizer"), get_state_dict(other, its), strict=True))
    assert not same(whole(state), before)
    load(f"{folder}/fsdp", state)
    set_state_dict(other, its, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    state = dict(zip(("model", "optimizer"), get_state_dict(other, its), strict=True))
    assert same(whole(state), before)


def alone(rank: int, folder: str) -> None:
    """Ranks that save without collectives have a checkpoint each, and load their own."""
    save(f"{folder}/alone", {"own": torch.full((3,), rank)}, use_collectives=False)
    state = {"own": torch.zeros(3, dtype=torch.int64)}
    load(f"{folder}/alone", state)
    assert state["own"].tolist() == [rank] * 3


def failing(rank: int, folder: str) -> None:
    """If one rank cannot save, all raise, and the older checkpoint stays."""
    mesh, path = init_device_mesh("cpu", (4,)), f"{folder}/failing"
    save(path, spread(mesh, LINE))
    writer = NpzStorageWriter(path, durable=False)
    odd = {"odd": object()} if rank == 2 else {}
    with pytest.raises(CheckpointException, match=r"(?s)odd.*without pickle|without pickle.*odd"):
        dcp.save({**spread(mesh, LINE, empty=True), **odd}, storage_writer=writer)
    if rank == 0:
        # Shards that other ranks had completed do not count.
        assert len(os.listdir(path)) == 4 + 3 + 1
    dist.barrier()
    state = spread(mesh, LINE, empty=True)
    load(path, state)
    check_full(state)
    save(path, {"new": full("even")})
    if rank == 0:
        assert len(os.listdir(path)) == 2


def cached(rank: int, folder: str) -> None:
    """Planners that keep their plans, with the name of an older save, save what is new."""
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    for value in (1, 2, 3):
        tensor = distribute_tensor(
            torch.full((8,), value), init_device_mesh("cpu", (4,)), [Shard(0)]
        )
        save(f"{folder}/cached", {"x": tensor, "value": value}, planner=planner)
        if rank == 0:
            with npzkit.open(f"{folder}/cached") as npz:
                assert npz["x"].tolist() == [value] * 8
            assert len(os.listdir(f"{folder}/cached")) == 5
        dist.barrier()


def several(rank: int, folder: str) -> None:
    for case in (placements, fsdp, alone, failing, cached):
        case(rank, folder)
    print("done", flush=True)
    killed(rank, f"{folder}/killed")


def killed(rank: int, folder: str) -> None:
    """Save a checkpoint, and then another one during which a rank is killed."""
    save(folder, {"x": full("even")})

    class Planner(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if rank == 3:
                os._exit(9)
            return super().resolve_data(item)

    mesh = init_device_mesh("cpu", (4,))
    save(folder, spread(mesh, LINE), planner=Planner())


def eight(rank: int, folder: str) -> None:
    """Load what four ranks saved."""
    state = spread(init_device_mesh("cpu", (8,)), LINE, empty=True)
    load(f"{folder}/line", state)
    check_full(state)


if __name__ == "__main__":
    case, rank, size, rendezvous, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(size),
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    globals()[case](int(rank), folder)
    dist.destroy_process_group()
