"""PyTorch's states in a checkpoint store: tied weights, parts, examples, the background."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import MemberNotFoundError, TreeMismatchError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path, background=True, durable=False) as store:
        yield store


def trained(seed, steps):
    """Return a model with tied weights, an optimizer and a scaler of gradients after some steps."""
    torch.manual_seed(seed)
    first, last = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5)
    last.weight = first.weight
    model = torch.nn.Sequential(first, torch.nn.LayerNorm(4), last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 / seed)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**seed, growth_interval=1)
    for _ in range(steps):
        batch = torch.randint(0, 5, (6,))
        loss = torch.nn.functional.cross_entropy(model(batch), (batch + 1) % 5)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer, scaler


def state_of(model, optimizer, scaler):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(one, other):
    """Check that two states have the same types, values and bits."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert raw(one) == raw(other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert_same(dict(enumerate(one)), dict(enumerate(other)))
    else:
        assert one == other


def test_the_second_key_of_a_tied_weight_is_loaded_alone(store):
    """`only=` finds the array under its first key: as an array, as a tensor, and in place."""
    w = torch.arange(6.0).reshape(2, 3)
    store.save(1, {"b": {"w": w}, "a": w, "c": w + 1})
    store.wait()
    with store[1] as npz:
        assert npz.files == ["b/w", "c"]
    assert store.load(only="a").tree["a"].tolist() == w.tolist()
    assert list(store.load(only="a").tree) == ["a"]
    like = {"b": {"w": torch.zeros(2, 3)}, "a": torch.zeros(2, 3), "c": torch.zeros(2, 3)}
    found = store.load(like=like, only="a").tree
    assert torch.equal(found["a"], w)
    assert found["c"] is like["c"]
    store.load(into=like, only=["a"])
    assert torch.equal(like["a"], w)
    assert not like["b"]["w"].any()
    assert store.load(only="a", mmap_mode="r").tree["a"].tolist() == w.tolist()


def test_only_reads_no_byte_of_others_beside_a_tied_weight(store):
    """Damage elsewhere does not matter; damage of the shared array does."""
    w = torch.arange(100.0)
    store.save(1, {"b": w, "a": w, "c": w + 1})
    store.wait()
    with store[1] as npz:
        offsets = {key: npz.info(key).data_offset for key in ("b", "c")}

    def flip(key):
        with open(store.path(1), "r+b") as file:
            file.seek(offsets[key])
            byte = file.read(1)[0]
            file.seek(offsets[key])
            file.write(bytes([byte ^ 1]))

    flip("c")
    assert store.load(1, only="a").tree["a"].tolist() == w.tolist()
    flip("b")
    with pytest.raises(npzkit.errors.DamagedCheckpointError, match="'b'"):
        store.load(1, only="a")


def test_a_model_is_loaded_by_its_state_dict(store):
    """`like=model.state_dict()` gives tensors to load; tied weights are one tensor again."""
    model, _, _ = trained(1, 2)
    store.save(1, model.state_dict())
    fresh = trained(2, 0)[0]
    found = store.load(like=fresh.state_dict()).tree
    assert found["0.weight"] is found["2.weight"]
    fresh.load_state_dict(found)
    assert_same(fresh.state_dict(), model.state_dict())
    assert fresh[2].weight is fresh[0].weight


@pytest.mark.parametrize("steps", [0, 3])
def test_states_are_loaded_as_new_ones(store, steps):
    """Model, optimizer and GradScaler continue as the saved ones; a new optimizer is an example too."""
    saved = trained(1, 3)
    store.save(3, state_of(*saved))
    others = trained(2, steps)
    found = store.load(like=state_of(*others)).tree
    assert_same(found, state_of(*saved))
    for other, state in zip(others, found.values(), strict=True):
        other.load_state_dict(state)
    assert_same(state_of(*others), state_of(*saved))


def test_states_are_filled_in_place(store):
    """`into=` fills the optimizer's own tensors and the parameters, and nothing if one differs."""
    saved = trained(1, 3)
    store.save(3, state_of(*saved))
    model, optimizer, scaler = trained(2, 3)
    state = state_of(model, optimizer, scaler)
    moments = optimizer.state[model[0].weight]["exp_avg"]
    assert store.load(into=state).tree is state
    assert_same(state, state_of(*saved))
    assert state["optimizer"]["state"][0]["exp_avg"] is moments
    assert torch.equal(model[2].weight, saved[0][0].weight)
    before = model[1].bias.clone()
    model[1].bias.data += 1
    wrong = state_of(model, optimizer, scaler)
    wrong["optimizer"]["state"][0]["exp_avg"] = torch.zeros(1)
    with pytest.raises(TreeMismatchError, match="'optimizer/state/0/exp_avg'"):
        store.load(into=wrong)
    assert torch.equal(model[1].bias, before + 1)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool"])
def test_tensors_that_change_meanwhile_are_saved_as_they_were(store, name):
    """The background has its own copy, of every dtype, also of what needs a gradient."""
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    dtype = getattr(torch, name)
    w = torch.ones(100_000).to(dtype)
    part = w.view(100, 1000)[:, ::2]
    tree = {"w": w, "part": part}
    if name == "bfloat16":
        tree["parameter"] = torch.nn.Parameter(w.clone())
    expected = {key: value.detach().clone() for key, value in tree.items()}
    store.save(1, tree)
    for value in tree.values():
        value.detach().zero_()
    like = {key: torch.empty_like(value) for key, value in tree.items()}
    assert_same(store.load(like=like).tree, expected)
    store.load(into=like)
    assert_same(like, expected)
    plain = store.load().tree["w"]
    assert isinstance(plain, np.ndarray)
    assert plain.dtype.name == name


@pytest.mark.parametrize("check", [True, False])
def test_frozen_tensors_are_linked(tmp_path, check):
    """Tensors of any dtype are compared as the arrays that they are saved as."""
    frozen = {
        "half": torch.ones(5, dtype=torch.bfloat16), "scalar": torch.tensor(1.5),
        "turned": torch.arange(6.0).reshape(2, 3).T, "complex": torch.ones(2, dtype=torch.complex64),
    }  # fmt: skip
    with CheckpointStore(tmp_path, frozen="frozen/*", durable=False) as store:
        for step in range(2):
            store.save(step, {"frozen": frozen, "w": torch.full((3,), step)}, check=check)
        assert npzkit.diff(store.path(0), store.path(1)).changed == ("w",)
        files = [{path.stat().st_ino for path in tmp_path.glob(f"step_*{n}/*.npz")} for n in (0, 1)]
        assert len(set.intersection(*files)) == 1
        loaded = store.load(like={"frozen": frozen, "w": torch.zeros(3, dtype=torch.int64)}).tree
        assert all(torch.equal(loaded["frozen"][key], value) for key, value in frozen.items())


@pytest.mark.remedy(": name that one.")
def test_a_tied_weight_is_frozen_by_the_key_that_has_the_array(tmp_path):
    """The error of a pattern that names the other key alone says which one that is."""
    weight = torch.ones(3)
    tree = {"backbone.w": weight, "head.w": weight, "head.b": torch.ones(1)}
    with CheckpointStore(tmp_path, durable=False) as store:
        tied = r"no array matches 'head\.w\*'.*'head.w' is tied to 'backbone.w': name that one"
        with pytest.raises(MemberNotFoundError, match=tied):
            store.save(1, tree, frozen=["head.b", "head.w*"])
        store.save(1, tree, frozen=["head.b", "backbone.w"])
        assert store.load(like=tree).tree["head.w"].tolist() == [1, 1, 1]
