"""Archives in memory: arrays over the same bytes, without a copy."""

import io
import pickle

import npzkit
import numpy as np
import pytest
from npzkit.errors import ClosedArchiveError, NotMappableError


def some_bytes(arrays, save=npzkit.save):
    stream = io.BytesIO()
    save(stream, arrays) if save is npzkit.save else save(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize("save", [npzkit.save, np.savez])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_arrays_are_read_only_views_of_the_memory(arrays, save, kind):
    """Aligned or not, of every dtype, from npzkit's files and NumPy's, after the archive closed."""
    plain = {key: np.asanyarray(array) for key, array in arrays.items()}
    plain = {key: array for key, array in plain.items() if not array.dtype.hasobject}
    data = kind(some_bytes(plain, save))
    memory = np.frombuffer(data, "u1")
    with npzkit.open(data, mmap_mode="r") as npz:
        found = {key: npz[key] for key in npz}
    assert list(found) == list(plain)
    for key, array in plain.items():
        assert found[key].dtype == array.dtype
        assert found[key].shape == array.shape
        assert found[key].tobytes() == array.tobytes()
        assert not found[key].flags.writeable
        assert not array.nbytes or np.shares_memory(found[key], memory)
        assert np.array_equal(pickle.loads(pickle.dumps(found[key])), array)


def test_arrays_with_attributes_keep_their_dtype():
    """Such an array has more headers, and a dtype that NPY cannot name."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as writer:
        writer.add("a", np.ones(3, ml_dtypes.bfloat16), attrs={"unit": "m"})
    data = stream.getvalue()
    found = npzkit.open(data).memmap("a")
    assert found.dtype == ml_dtypes.bfloat16
    assert found.tolist() == [1, 1, 1]
    assert np.shares_memory(found, np.frombuffer(data, "u1"))


def test_what_cannot_be_a_view_is_refused():
    """Compressed arrays, and maps that could be written to."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.zeros(1000)}, compression="deflated")
    with pytest.raises(NotMappableError, match="deflated"):
        npzkit.open(stream.getvalue(), mmap_mode="r")["a"]
    data = bytearray(some_bytes({"a": np.zeros(3)}))
    for mode in ("c", "r+"):
        with pytest.raises(NotMappableError, match="mode 'r'"):
            npzkit.open(data, mmap_mode=mode)["a"]
    npz = npzkit.open(data, mmap_mode="r")
    npz.close()
    with pytest.raises(ClosedArchiveError):
        npz["a"]


def test_load_all_returns_arrays_of_their_own():
    """As of a file that is mapped, they are new and writable."""
    data = some_bytes({"a": np.arange(3), "b": np.arange(100_000)})
    found = npzkit.open(data, mmap_mode="r").load_all()
    assert all(array.flags.writeable for array in found.values())
    assert not np.shares_memory(found["b"], np.frombuffer(data, "u1"))
