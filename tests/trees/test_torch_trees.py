"""PyTorch's tensors in nested data: every dtype, tied weights, state dicts; loaded by an example."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import NamedTuple

import npzkit
import numpy as np
import pytest
from npzkit.errors import TreeMismatchError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")


pytestmark = [
    pytest.mark.usefixtures("any_size"),
    pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning"),
    pytest.mark.filterwarnings("ignore:Complex modules:UserWarning"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler:UserWarning"),
]


class Pair(NamedTuple):
    one: object
    other: object


def saved(tree, **options):
    stream = io.BytesIO()
    npzkit.save(stream, tree, **options)
    return stream


def raw(tensor):
    """Return a tensor's bytes."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


def of(dtype, shape=(3, 4)):
    """Return a tensor of a dtype with bytes that are all different; bools of both kinds."""
    size = torch.empty(shape, dtype=dtype).nbytes
    data = torch.arange(size, dtype=torch.uint8)
    return (data % 2 if dtype == torch.bool else data).view(dtype).reshape(shape)


DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32",
    "float64", "complex32", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_every_dtype_come_back(name):
    """The bits, the dtype and the shape are the same: by an example, in place, and left open."""
    dtype = getattr(torch, name)
    if name == "float4_e2m1fn_x2":
        tree = {"a": of(dtype)}
    else:
        tree = {
            "a": of(dtype),
            "scalar": of(dtype, ()),
            "part": of(dtype, (4, 4))[::2, 1:3],
            "t": of(dtype).t(),
        }
        tree["none"] = torch.empty((0, 2), dtype=dtype)
    stream = saved({"x": tree, "y": [tree["a"].clone()]})
    example = {"x": {key: torch.zeros_like(value) for key, value in tree.items()}, "y": ...}
    found = npzkit.load_tree(stream, like=example)
    for key, value in tree.items():
        assert (found["x"][key].dtype, found["x"][key].shape) == (dtype, value.shape)
        assert raw(found["x"][key]) == raw(value)
    assert found["y"][0].dtype == dtype
    assert raw(found["y"][0]) == raw(tree["a"])
    npzkit.load_tree(stream, into=example)
    assert all(raw(example["x"][key]) == raw(value) for key, value in tree.items())


def test_arrays_come_back_without_an_example():
    """np.load and load_tree see NumPy's arrays, with ml_dtypes' bfloat16."""
    stream = saved(
        {
            "w": torch.ones(2, dtype=torch.bfloat16),
            "n": torch.arange(3),
            "c": torch.ones(1).to(torch.complex32),
        }
    )
    found = npzkit.load_tree(stream)
    assert found["w"].dtype == ml_dtypes.bfloat16
    assert found["n"].tolist() == [0, 1, 2]
    assert (found["c"].dtype, found["c"].tolist()) == ("float16", [[1, 0]])
    assert np.load(io.BytesIO(stream.getvalue()))["n"].tolist() == [0, 1, 2]


def test_any_memory_of_a_tensor_is_saved():
    """Views, expanded and conjugated tensors, and those that need a gradient, keep their values."""
    base = torch.arange(24.0).reshape(2, 3, 4)
    z = torch.tensor([1 + 2j, 3 - 1j])
    tree = {
        "channels": base[None].contiguous(memory_format=torch.channels_last),
        "expanded": torch.ones(3, 1).expand(3, 5),
        "conjugated": z.conj(),
        "negated": z.conj().imag,
        "gradient": torch.ones(2, requires_grad=True),
        "result": torch.ones(2, requires_grad=True) * 2,
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "view": base[0],
        "other view": base[1, 1:],
    }
    like = {key: value.detach().clone() for key, value in tree.items()}
    like["gradient"].requires_grad_()
    like["parameter"] = torch.nn.Parameter(torch.zeros(2))
    found = npzkit.load_tree(saved({"t": tree}), like={"t": like})["t"]
    for key, value in tree.items():
        assert torch.equal(found[key].detach(), value.detach()), key
        assert found[key].requires_grad == like[key].requires_grad
        assert type(found[key]) is type(like[key])


PLAIN = pytest.mark.remedy(
    "Save its parts, or tensor.to_dense(), tensor.dequantize(), tensor.full_tensor()."
)
DATA = pytest.mark.remedy("Save a tensor that has its data on the CPU.")
BYTES = pytest.mark.remedy("Save tensor.view(torch.uint8), which has the same bytes.")


@pytest.mark.parametrize(
    ("make", "text", "instead"),
    [
        pytest.param(
            lambda: torch.ones(2).to_sparse(), "sparse_coo", lambda t: t.to_dense(), marks=PLAIN
        ),
        pytest.param(
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "qint8",
            lambda t: t.dequantize(), marks=PLAIN,
        ),
        pytest.param(
            lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            "NestedTensor", lambda t: t.unbind()[0], marks=PLAIN,
        ),
        pytest.param(
            lambda: torch.empty(2, device="meta"), "no data",
            lambda t: torch.ones_like(t, device="cpu"), marks=DATA,
        ),
        pytest.param(
            torch.nn.UninitializedParameter, "UninitializedParameter",
            lambda t: t.materialize((2,), device="cpu") or t.detach().fill_(1), marks=DATA,
        ),
        pytest.param(
            lambda: torch.ones(2, dtype=torch.uint8).view(torch.bits8), "bits8",
            lambda t: t.view(torch.uint8), marks=BYTES,
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensors_without_plain_data_are_refused(tmp_path, make, text, instead):
    """A tensor that no array can hold is an error with its key, and no file appears."""
    path, tensor = tmp_path / "a.npz", make()
    with pytest.raises(UnsupportedError, match=text) as caught:
        npzkit.save(path, {"model": [tensor]})
    assert caught.value.key == "model/0"
    assert not path.exists()
    npzkit.save(path, {"model": [instead(tensor)]})
    assert np.load(path)["model/0"].round(3).tolist() == [1, 1]


def test_a_module_is_refused_with_what_to_save():
    """Only the state of a module can be saved, and the error says so."""
    with pytest.raises(npzkit.errors.PickleRefusedError, match=r"Linear .*'m/0'.*state_dict\(\)"):
        npzkit.save(io.BytesIO(), {"m": [torch.nn.Linear(1, 1)]})


def tied(dtype=torch.float32):
    """Return a module whose last weight is its first one."""
    module = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    module[1].weight = module[0].weight
    return module.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex32])
def test_tied_weights_are_stored_once(dtype):
    """Both keys come back, as one tensor if the example has one, and as two if it has two."""
    state = tied(dtype).state_dict()
    stream = saved({"model": state, "step": 1})
    assert npzkit.open(stream).files == ["model/0.weight", "step"]
    plain = npzkit.load_tree(stream)["model"]
    assert plain["0.weight"] is plain["1.weight"]
    again = npzkit.load_tree(stream, "model", like=tied(dtype).state_dict())
    assert again["0.weight"] is again["1.weight"]
    assert raw(again["1.weight"]) == raw(state["0.weight"])
    two = npzkit.load_tree(
        stream, "model", like={key: value.clone() for key, value in state.items()}
    )
    assert two["0.weight"].data_ptr() != two["1.weight"].data_ptr()
    assert raw(two["0.weight"]) == raw(two["1.weight"])
    opened = npzkit.load_tree(stream, like=...)["model"]
    assert opened["1.weight"] is opened["0.weight"]
    assert opened["1.weight"].dtype == dtype
    into = tied(dtype)
    npzkit.load_tree(stream, "model", into=into.state_dict())
    assert raw(into[1].weight) == raw(state["0.weight"])


def test_an_example_of_another_kind_gets_the_tensor():
    """Where the example has a value that is neither array nor number, the tensor comes back."""
    found = npzkit.load_tree(saved({"t": {"w": torch.ones(3)}}), like={"t": {"w": object()}})
    assert torch.equal(found["t"]["w"], torch.ones(3))


def test_a_part_has_the_weight_that_is_stored_elsewhere():
    """The second key of a tied weight is loaded alone, by a prefix and by a pattern."""
    w = torch.arange(3.0)
    stream = saved(
        {"enc": {"w": w, "x": w + 1}, "dec": {"w": w, "l": [w, {"b": w + 2}]}, "head": w}
    )
    assert npzkit.load_tree(stream, "head").tolist() == [0, 1, 2]
    dec = npzkit.load_tree(stream, "dec", like={"w": torch.zeros(3), "l": ...})
    assert torch.equal(dec["w"], w)
    assert torch.equal(dec["l"][0], w)
    found = npzkit.load_tree(stream, only=["dec/l/1", "head"])
    assert {key: type(value) for key, value in found.items()} == {"dec": dict, "head": np.ndarray}
    assert list(found["dec"]["l"]) == [1]


def test_a_tied_weight_outlives_the_key_that_has_its_array():
    """Removing, replacing or renaming one key of a tied weight leaves the others as they are."""
    w = torch.arange(3.0).to(torch.complex32)
    tree = {
        "new": {"w": w, "x": w.clone()},
        "best": {"w": w, "l": [w]},
        "n": {"p": Pair(w, 1), 0: w},
    }

    def changed(change):
        stream = saved(tree)
        with npzkit.NpzWriter(stream, "a") as writer:
            change(writer)
        assert npzkit.verify(stream).ok
        like = npzkit.load_tree(stream, like=...)
        same = [like["best"]["w"], like["best"]["l"][0], like["n"]["p"][0], like["n"][0]]
        assert all(tensor.dtype == w.dtype and raw(tensor) == raw(w) for tensor in same)
        assert all(tensor is same[0] for tensor in same)
        return like["new"], npzkit.open(stream).files

    assert changed(lambda writer: writer.__delitem__("new/w"))[0].keys() == {"x"}
    assert changed(lambda writer: writer.__delitem__("new/w.npy"))[1] == ["best/w", "new/x"]
    new, files = changed(lambda writer: writer.add("new/w", np.ones(2), overwrite=True))
    assert (new["w"].tolist(), files) == ([1, 1], ["best/w", "new/x", "new/w"])
    new, files = changed(
        lambda writer: writer.add("new", {"w": torch.ones(2), "y": w}, overwrite=True)
    )
    assert (new["w"].tolist(), raw(new["y"]), files) == (
        [1, 1],
        raw(w),
        ["best/w", "new/w", "new/y"],
    )
    new, files = changed(lambda writer: writer.rename("new/w", "new/z"))
    assert (sorted(new), files) == (["x", "z"], ["new/z", "new/x"])

    def all_at_once(writer):
        writer.rename("new/w", "new/z")
        del writer["new/z"]
        writer["best/w2"] = w
        writer.rename("best/w", "best/w3")
        writer.rename("best/w3", "best/w")

    assert changed(all_at_once)[1] == ["best/w", "new/x", "best/w2"]


@pytest.mark.parametrize("remove", [True, False])
def test_a_weight_that_was_untied_does_not_come_back_tied(remove):
    """A tied key that got an array of its own has neither that one nor the tied one once it is gone."""
    weight = torch.arange(3.0)
    stream = saved({"encoder": {"w": weight}, "decoder": {"w": weight, "lr": 0.1}})
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("decoder/w", np.zeros(3), overwrite=True)
    with npzkit.NpzWriter(stream, "a") as w:
        if remove:
            del w["decoder/w"]
        else:
            w.rename("decoder/w", "decoder/v")
    found = npzkit.load_tree(stream)
    assert found["encoder"]["w"].tolist() == [0, 1, 2]
    assert found["decoder"].keys() == ({"lr"} if remove else {"v", "lr"})


def test_equal_weights_of_another_program_are_tied_too():
    """What was saved twice is tied if the example ties it, unless the values differ."""
    w = torch.ones(2)
    stream = io.BytesIO()
    np.savez(stream, a=np.zeros(2, "f4"), b=np.zeros(2, "f4"), c=np.ones(2, "f4"))
    found = npzkit.load_tree(stream, like={"a": w, "b": w, "c": w})
    assert found["a"] is found["b"] is not found["c"]
    tied = "differing: 'c' .found other values, expected those of 'a', to which it is tied"
    with pytest.raises(TreeMismatchError, match=tied):
        npzkit.load_tree(stream, into={"a": w, "b": w, "c": w})
    assert w.tolist() == [1, 1]


def test_weights_that_the_example_unties_are_filled_apart():
    """What was tied when it was saved is filled, and returned, as the example has it."""
    w = torch.arange(6.0)
    stream = saved({"a": w, "b": w, "c": w})
    into = {"a": torch.zeros(6), "b": torch.zeros(6), "c": None}
    a, b = into["a"], into["b"]
    npzkit.load_tree(stream, into=into)
    assert into["a"] is a
    assert into["b"] is b
    for one in into.values():
        assert one.tolist() == w.tolist()
        one += 1
    tied = torch.zeros(6)
    npzkit.load_tree(stream, into={"a": tied, "b": tied, "c": ...})
    assert tied.tolist() == w.tolist()


def in_inference():
    with torch.inference_mode():
        return torch.zeros(3)


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda: torch.zeros(1).expand(3), "pass tensor.clone()"),
        (in_inference, "pass tensor.clone()"),
        (lambda: torch.zeros(3, device="meta"), "pass it as like="),
    ],
)
def test_a_tensor_that_cannot_be_filled_is_found_before_any_is(make, instead):
    """PyTorch refused to write to it when the others were filled, or did not write at all."""
    stream = saved({"a": torch.ones(3), "e": torch.ones(3)})
    first, tensor = torch.zeros(3), make()
    with pytest.raises(ValueError, match="the tensor 'e' ") as info:
        npzkit.load_tree(stream, into={"a": first, "e": tensor})
    assert str(info.value).endswith(instead)
    assert first.tolist() == [0, 0, 0]
    if "clone" in instead:
        filled = npzkit.load_tree(stream, into={"a": first, "e": tensor.clone()})
    else:
        filled = npzkit.load_tree(stream, like={"a": first, "e": tensor})
    assert filled["e"].tolist() == [1, 1, 1]


def test_memory_that_is_used_again_ties_nothing():
    """Tensors that a mapping makes one after the other are all saved."""

    class Made(dict):
        def items(self):
            return ((key, torch.full((1000,), float(self[key]))) for key in self)

    found = npzkit.load_tree(saved({"m": Made({str(i): i for i in range(20)})}))["m"]
    assert [found[str(i)][0] for i in range(20)] == list(range(20))


def test_what_does_not_fit_a_tensor_is_named():
    """Another dtype or shape is reported, and the example's tensors stay as they are."""
    stream = saved(
        {
            "a": torch.ones(2),
            "b": torch.ones(2, dtype=torch.bfloat16),
            "c": torch.ones(2),
            "n": None,
        }
    )
    like = {
        "a": torch.zeros(2, dtype=torch.bfloat16),
        "b": torch.zeros(3),
        "c": torch.zeros(2),
        "n": torch.zeros(1),
    }
    with pytest.raises(TreeMismatchError) as caught:
        npzkit.load_tree(stream, into=like)
    assert caught.value.differing == {
        "a": ("float32 (2,)", "bfloat16 (2,)"),
        "b": ("bfloat16 (2,)", "float32 (3,)"),
        "n": ("NoneType", "float32 (1,)"),
    }
    assert like["c"].tolist() == [0, 0]
    assert torch.equal(
        npzkit.load_tree(stream, like={"c": like["c"]}, only="c")["c"], torch.ones(2)
    )


def test_a_tensor_on_no_device_is_made_on_the_cpu():
    """A model without memory (device "meta") is an example too."""
    with torch.device("meta"):
        like = torch.nn.Linear(3, 2).state_dict()
    found = npzkit.load_tree(saved(torch.nn.Linear(3, 2).state_dict()), like=like)
    assert {value.device.type for value in found.values()} == {"cpu"}
    torch.nn.Linear(3, 2).load_state_dict(found)


def test_a_read_only_map_is_copied(tmp_path):
    """A tensor can be written to, also if the file is mapped for reading; other maps are shared."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"w": torch.zeros(100)})
    for mode in ("r", "c"):
        found = npzkit.load_tree(path, like={"w": torch.ones(100)}, mmap_mode=mode)
        found["w"] += 1
    assert npzkit.load_tree(path)["w"].sum() == 0


def states(seed):
    """Return a module, an optimizer and a scheduler with a few steps behind them."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    schedulers = [
        torch.optim.lr_scheduler.LinearLR(optimizer),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
    ]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, milestones=[2])
    for _ in range(seed):
        loss = module(torch.randn(5, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return {
        "model": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "rng": {
            "torch": torch.get_rng_state(),
            "numpy": np.random.default_rng(seed).bit_generator.state,
        },
    }


def is_same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


def test_state_dicts_come_back():
    """Modules, optimizers, schedulers, GradScaler and RNG states: also for a new optimizer."""
    tree = states(3)
    stream = saved(tree)
    for like in (states(4), states(0)):
        found = npzkit.load_tree(stream, like=like)
        assert is_same(found, tree)
        assert found["model"]._metadata == tree["model"]._metadata
        assert npzkit.load_tree(stream, into=like) is like
        assert is_same(like, tree)


def test_torch_is_imported_by_its_users_alone(tmp_path):
    """Loading what has tensors in it imports nothing, with or without an example."""
    npzkit.save(tmp_path / "a.npz", {"m": {"w": torch.ones(2)}, "n": {}})
    code = (
        "import sys, npzkit, numpy as np; path = sys.argv[1]; npzkit.load_tree(path); "
        "found = npzkit.load_tree(path, like={'m': {'w': np.ones(2, 'f4')}, 'n': None}); "
        "print(type(found['m']['w']).__name__, 'torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.npz")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (found.stdout, found.stderr) == ("ndarray False\n", "")


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(lambda: torch.zeros(3, 4), id="contiguous"),
        pytest.param(lambda: torch.zeros(4, 3).T, id="transposed"),
        pytest.param(lambda: torch.zeros(3, 8)[:, ::2], id="strided"),
        pytest.param(lambda: torch.zeros(3, 4, dtype=torch.bfloat16), id="bfloat16"),
        pytest.param(lambda: torch.zeros(3, 4, dtype=torch.complex64).conj(), id="conjugate"),
    ],
)
def test_tensors_of_each_layout_are_filled(tensor):
    """`into` fills tensors whatever the order of their memory, and the memory stays theirs."""
    into = tensor()
    there = into.data_ptr()
    values = torch.arange(12).reshape(3, 4).to(into.dtype)
    stream = io.BytesIO()
    npzkit.save(stream, {"x": {"w": values}})
    npzkit.load_tree(stream, into={"x": {"w": into}})
    assert torch.equal(into.resolve_conj(), values)
    assert into.data_ptr() == there


def test_autograd_notices_that_a_tensor_was_filled():
    """A tensor that is filled between forward and backward is an error there, as with `copy_`."""
    weight = torch.nn.Parameter(torch.ones(3))
    stream = io.BytesIO()
    npzkit.save(stream, {"x": {"w": weight}})
    loss = (weight**2).sum()
    npzkit.load_tree(stream, into={"x": {"w": weight}})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.remedy("Load it without like= and into=: it is a masked array of NumPy then.")
def test_a_mask_is_not_lost(tmp_path):
    """What repair has masked is no zero in a tensor: it is an error, and nothing is filled."""
    path = tmp_path / "a.npz"
    masked = np.ma.array([1, 2, 3], mask=[0, 1, 0])
    note = {"t": ["as", "tensor"]}
    npzkit.save(path, {"t": masked}, masked="split", metadata={"npzkit.tree": note})
    place, plain = torch.zeros(3, dtype=torch.int64), np.zeros(3, "i8")
    for example in (
        {"like": {}},
        {"like": {"t": place}},
        {"into": {"t": place}},
        {"into": {"t": plain}},
    ):
        with pytest.raises(npzkit.errors.UnsupportedError, match="masked") as caught:
            npzkit.load_tree(path, **example)
        assert (caught.value.path, caught.value.key) == (str(path), "t")
    assert not place.any()
    assert not plain.any()
    assert npzkit.load_tree(path)["t"].tolist() == [1, None, 3]
    assert npzkit.load_tree(path, like={"t": plain})["t"].tolist() == [1, None, 3]
