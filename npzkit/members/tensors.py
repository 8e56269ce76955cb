"""PyTorch's tensors, JAX's arrays and ml_dtypes' dtypes: what NumPy or NPY lacks.

Owns which values can be kept, in which array with the same bytes, and which dtypes NPY cannot
name: bfloat16, float8 and others of ml_dtypes. The ``descr`` of such an array is a void of the
same size, such as ``<V2``, so that np.load can read it. The name of the dtype is an attribute of
the member, which is believed if it fits.

Imports neither PyTorch nor JAX: whoever has such a value has imported it. How an array becomes
one again is `npzkit.trees.frameworks`'s.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from npzkit.errors import (
    NotAnArrayError,
    NpzkitError,
    PickleRefusedError,
    UnsupportedError,
    shown_value,
    warn,
)
from npzkit.format.descr import (
    AMBIGUOUS,
    descr_to_dtype,
    is_legacy,
    long_double_name,
    other_long_double,
)
from npzkit.imported import imported
from npzkit.members.refused_values import check_integers, check_unlabelled, instead_of

SPECIAL = {"complex32": "float16", "float4_e2m1fn_x2": "uint8"}
"""Dtypes that neither NumPy nor ml_dtypes has, and those of the arrays with their bytes."""
DTYPE_ATTRIBUTE = "npzkit.dtype"
"""The attribute of an array with the name of its dtype, of ml_dtypes."""
_DATA_REMEDY = "Save a tensor that has its data on the CPU."
_PLAIN_REMEDY = "Save its parts, or tensor.to_dense(), tensor.dequantize(), tensor.full_tensor()."


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return is_tensor_type(type(value))


def is_tensor_type(kind: Any) -> bool:
    """Return whether a class is one of PyTorch's tensors."""
    torch = imported("torch")
    return torch is not None and _is_subclass(kind, torch.Tensor)


_is_subclass = functools.lru_cache(256)(issubclass)
"""Trees have many leaves of few classes."""


def form_of(tensor: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of the array that a tensor is saved as.

    Raises
    ------
    UnsupportedError
        The tensor is sparse, quantized or of another kind without plain data.
    """
    _check_kind(tensor)
    shape, name = tuple(tensor.shape), _name_of(tensor.dtype)
    return (*shape, 2) if name == "complex32" else shape, _numpy_dtype(name)


def _check_kind(tensor: Any) -> None:
    """Check that a tensor has plain data."""
    torch = imported("torch")
    kind: Any = type(tensor)
    if _is_special(kind, torch):
        # Such a tensor may not even have a shape.
        lacks_data = not hasattr(kind, "__tensor_flatten__")
        raise _refused(kind.__name__, remedy=_DATA_REMEDY if lacks_data else _PLAIN_REMEDY)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise _refused("nested" if tensor.is_nested else f"{tensor.layout}, {tensor.dtype}")


@functools.lru_cache(256)
def _is_special(kind: type[Any], torch: Any) -> bool:
    """Return whether the data of a tensor is elsewhere: on other processes, or not made yet."""
    lazy = torch.nn.parameter.UninitializedTensorMixin
    return issubclass(kind, lazy) or hasattr(kind, "__tensor_flatten__")


@functools.cache
def _name_of(dtype: Any) -> str:
    """Return the name of a dtype of PyTorch."""
    return str(dtype).removeprefix("torch.")


def special_dtype(tensor: Any) -> tuple[str, ...]:
    """Return the name of the tensor's dtype if its array has another one, or nothing.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any kind that `form_of` accepts.
    """
    name = _name_of(tensor.dtype)
    return (name,) if name in SPECIAL else ()


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    name = SPECIAL.get(name, name)
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            f"tensors of {name} need the package ml_dtypes",
            remedy="Install it: python -m pip install ml_dtypes",
        ) from None
    if not hasattr(ml_dtypes, name):
        raise _refused(name, remedy="Save tensor.view(torch.uint8), which has the same bytes.")
    named: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return named


def _refused(found: str, *, remedy: str = _PLAIN_REMEDY) -> UnsupportedError:
    return UnsupportedError(
        "this kind of tensor cannot be saved",
        found=found,
        expected="a dense tensor with its data in memory",
        remedy=remedy,
    )


def identity(tensor: Any) -> Any:
    """Return what two tensors have in common if they are the same memory, or None if empty.

    Raises
    ------
    UnsupportedError
        As `form_of`.
    """
    _check_kind(tensor)
    if tensor.is_meta or not tensor.numel():
        return None
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@functools.cache
def _bits_of(dtype: Any) -> str | None:
    """Return the dtype as which NumPy takes a tensor's bytes, or None if it has this one."""
    name = _name_of(dtype)
    array_dtype = _numpy_dtype(name)
    is_known = name not in SPECIAL and extension_name(array_dtype) is None
    return None if is_known else f"uint{8 * array_dtype.itemsize}"


def to_array(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the array of a tensor. It shares memory if the tensor is on the CPU.

    Raises
    ------
    UnsupportedError
        The tensor has no plain data, or PyTorch cannot convert it.
    """
    _check_kind(tensor)
    torch, dtype = imported("torch"), _numpy_dtype(_name_of(tensor.dtype))
    bits, plain = _bits_of(tensor.dtype), tensor
    try:
        if tensor.dtype is torch.complex32:
            plain = torch.view_as_real(tensor.detach().resolve_conj())
        elif bits is not None:
            plain = tensor.detach().view(getattr(torch, bits))
        array: np.ndarray[Any, Any] = plain.numpy(force=True)
        array = array if array.dtype == dtype else array.view(dtype)
    except RecursionError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedError(
            "PyTorch cannot make an array of this tensor",
            found=shown_value(str(error)),
            remedy=_DATA_REMEDY,
        ) from error
    return array


# -- JAX ------------------------------------------------------------------


def is_jax_array(value: object) -> bool:
    """Return whether a value is an array of JAX, or the description of one."""
    jax = imported("jax")
    return jax is not None and isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def is_spread(value: Any) -> bool:
    """Return whether other processes have parts of an array of JAX, or of one described."""
    sharding = value.sharding if is_jax_array(value) else None
    return sharding is not None and not sharding.is_fully_addressable


def holds_keys(value: Any) -> bool:
    """Return whether an array of JAX has random keys."""
    dtypes = imported("jax").dtypes
    return bool(dtypes.issubdtype(value.dtype, dtypes.prng_key))


# -- any value -----------------------------------------------------------


def as_array(value: Any, key: str, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Convert an object to a NumPy array.

    Raises
    ------
    NotAnArrayError
        NumPy, or the object itself, cannot make one.
    UnsupportedError
        The tensor cannot be kept in an array.
    """
    try:
        if is_tensor(value):
            value = to_array(value)
        elif type(value) is not np.ndarray and is_jax_array(value) and holds_keys(value):
            value = np.asarray(imported("jax").random.key_data(value))
        return np.asanyarray(value) if dtype is None else np.asarray(value, dtype)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__
    except (OSError, MemoryError, OverflowError, RecursionError):
        raise
    except Exception as error:
        # An object's own `__array__` may raise anything.
        raise NotAnArrayError(
            f"NumPy cannot make an array of this object: {shown_value(str(error))}",
            key=key,
            found=type(value).__name__,
            remedy=_remedy_for(value, dtype),
        ) from error


def _remedy_for(value: Any, dtype: Any) -> str:
    if dtype is not None:
        with contextlib.suppress(ValueError):
            np.asarray(value)
            return f"Pass values that {dtype} can represent, or choose another dtype."
    if isinstance(value, (list, tuple)):
        return (
            "Items of different lengths cannot form an array: save each under its own key, or pad "
            "them to the same length."
        )
    if is_spread(value):
        return "npzkit.save and CheckpointStore.save save what several processes have together."
    return "Convert it to a NumPy array first."


def as_unlabelled(value: Any, key: str, *, allow_pickle: bool = False) -> np.ndarray[Any, Any]:
    """Convert an object to an array of its own, and refuse what has more than an array keeps."""
    if type(value) is np.ndarray:
        return value
    if type(value) is bytes:
        # NumPy's strings of bytes lose zeros at their end.
        return np.frombuffer(value, np.uint8)
    check_unlabelled(value, key)
    array = as_array(value, key)
    check_integers(value, array, key)
    if array.dtype == object and not (allow_pickle or isinstance(value, np.ndarray)):
        raise without_pickle(value, key)
    return array


def without_pickle(value: Any, key: str | None = None) -> PickleRefusedError:
    """Return the error of a value that is no array, or of an item of a list, with its remedy."""
    while isinstance(value, (list, tuple)):
        items = (item for item in value if np.asarray(item).dtype == object)
        value = next(items, None)
    what = f"a value of type {type(value).__name__} cannot be saved without pickle"
    return PickleRefusedError(what, key=key, remedy=instead_of(value))


# -- dtypes ---------------------------------------------------------------


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise UnsupportedError if a field would lose its dtype, or `dtype` its byte order."""
    if not dtype.isnative and extension_name(dtype) is not None:
        raise UnsupportedError(
            f"the byte order of {dtype} is not this machine's, and would be lost",
            remedy="Save array.astype(array.dtype.newbyteorder('=')).",
        )
    _check_fields(dtype)


def _check_fields(dtype: np.dtype[Any]) -> None:
    for name in dtype.names or ():
        field = dtype[name].base
        if extension_name(field) is not None:
            raise UnsupportedError(
                f"the field {name!r} would lose its dtype {field}, which NPY cannot name",
                remedy="Save the field as a separate array.",
            )
        _check_fields(field)


def extension_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name of a dtype whose ``descr`` does not have it, or None."""
    return dtype.name if dtype.isbuiltin == 2 and is_legacy(dtype) else None


def check_long_double(dtype: np.dtype[Any] | None, attrs: Mapping[str, Any]) -> None:
    """Raise UnsupportedError if the long doubles of an array are those of another machine."""
    if dtype is None or dtype.char not in AMBIGUOUS:
        return
    name, own = attrs.get(DTYPE_ATTRIBUTE), long_double_name(dtype)
    if own is not None and name not in (None, own):
        raise other_long_double(name)


def restore(array: np.ndarray[Any, Any], attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return a view of a void array with the dtype that its attributes name.

    Returns `array` itself if ml_dtypes is not installed, has no such dtype, or
    has one of another size.
    """
    check_long_double(array.dtype, attrs)
    dtype = restored_dtype(array.dtype, attrs)
    return array if dtype is array.dtype else array.view(dtype)


def restored_dtype(dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the dtype that the attributes name for a void dtype, or `dtype` itself."""
    name = attrs.get(DTYPE_ATTRIBUTE)
    if not isinstance(name, str) or dtype.type is not np.void or dtype.names is not None:
        return dtype
    what = f"this array has the dtype {name[:40]!r}, but is read as bytes"
    if (ml_dtypes := package("ml_dtypes", what)) is None:
        return dtype
    scalar = getattr(ml_dtypes, name, None) if name.isidentifier() else None
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        return dtype
    named = np.dtype(scalar)
    return named if named.itemsize == dtype.itemsize else dtype


def described(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the ``descr`` of a dtype, and its name if ``descr`` does not have it."""
    if (name := extension_name(dtype)) is not None:
        return f"V{dtype.itemsize}", name
    return (dtype.str if dtype.names is None else dtype.descr,)


def dtype_of(descr: Any, name: Any = None) -> np.dtype[Any]:
    """Return the dtype of what `described` returned."""
    return restored_dtype(descr_to_dtype(descr), {DTYPE_ATTRIBUTE: name})


def package(name: str, what: str) -> Any:
    """Return a package, or warn and return None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        install = f"Install it: python -m pip install {name}"
        warn(f"{what} because the package {name} is not installed. {install}", UserWarning)
        return None
