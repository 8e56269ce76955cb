"""PyTorch's tensors and JAX's arrays: as NumPy's arrays with the same bytes, and back.

Owns which of them can be kept, in which array, and what such an array cannot hold (of a
tensor its device, of JAX's array its sharding, whether its type is weak, the kind of a
random key). Imports neither package: whoever has such a value has imported it. A dtype that
NumPy lacks is that of ml_dtypes with the same name, or an array of another shape or dtype
with the same bytes.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.imported import imported
from npzkit.members.extension_dtypes import extension_name

SPECIAL = {"complex32": "float16", "float4_e2m1fn_x2": "uint8"}
"""Dtypes that neither NumPy nor ml_dtypes has, and those of the arrays with their bytes."""


class Form(NamedTuple):
    """The array that a tensor is saved as.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return is_tensor_type(type(value))


def is_tensor_type(kind: Any) -> bool:
    """Return whether a class is one of PyTorch's tensors."""
    torch = imported("torch")
    return torch is not None and _is_subclass(kind, torch.Tensor)


_is_subclass = functools.lru_cache(256)(issubclass)
"""Trees have many leaves of few classes."""


def form_of(tensor: Any) -> Form:
    """Return the shape and dtype of the array that a tensor is saved as.

    Raises
    ------
    UnsupportedError
        The tensor is sparse, quantized or of another kind without plain data.
    """
    _check_kind(tensor)
    shape, name = tuple(tensor.shape), _name_of(tensor.dtype)
    return Form((*shape, 2) if name == "complex32" else shape, _numpy_dtype(name))


def _check_kind(tensor: Any) -> None:
    """Check that a tensor has plain data."""
    torch = imported("torch")
    kind: Any = type(tensor)
    if _is_special(kind, torch):
        # Such a tensor may not even have a shape.
        raise _refused(kind.__name__)
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
        raise _refused(name)
    named: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return named


def _refused(found: str) -> UnsupportedError:
    return UnsupportedError(
        "this kind of tensor cannot be saved",
        found=found,
        expected="a dense tensor with its data in memory",
        remedy="Save tensor.to_dense(), the tensor's parts, or its full_tensor().",
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
            found=NpzkitError.shown(str(error)),
            remedy="Save a dense copy of it on the CPU.",
        ) from error
    return array


def native(array: Any) -> Any:
    """Return an array in the byte order of this machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def from_array(array: Any, special: object = None) -> Any:
    """Return a tensor on the CPU with the memory of an array, or a copy if it is read-only.

    Parameters
    ----------
    array : numpy.ndarray
    special : str, optional
        From `special_dtype` of the tensor. Ignored if the array has not its form.

    Returns
    -------
    torch.Tensor or numpy.ndarray
        The array itself if PyTorch has no such dtype.
    """
    torch = imported("torch")
    array = native(array)
    if not array.flags.writeable:
        array = array.copy()
    extension = extension_name(array.dtype)
    if extension is not None:
        dtype = getattr(torch, extension, None)
        bits = f"uint{8 * array.dtype.itemsize}"
        return array if dtype is None else torch.from_numpy(array.view(bits)).view(dtype)
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        return array
    tensor = torch.from_numpy(array)
    if special == "complex32" and array.dtype == np.float16 and array.shape[-1:] == (2,):
        return torch.view_as_complex(tensor) if array.size else tensor[..., 0].to(torch.complex32)
    if special == "float4_e2m1fn_x2" and array.dtype == np.uint8:
        return tensor.view(torch.float4_e2m1fn_x2)
    return tensor


def tensor_like(array: Any, like: Any) -> Any:
    """Return a tensor with the data of an array, and the device and gradient flag of another.

    Parameters
    ----------
    array : numpy.ndarray
        Of the `Form` of `like`.
    like : torch.Tensor
        Its data is not used. If it is on the device "meta", which has no
        memory, the new tensor is on the CPU.
    """
    torch = imported("torch")
    tensor = from_array(array, *special_dtype(like))
    if not like.is_meta:
        tensor = tensor.to(like.device)
    if type(like) is not torch.Tensor and isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=like.requires_grad)
    return tensor.requires_grad_(like.requires_grad)


def fill(tensor: Any, array: Any) -> None:
    """Copy an array of the `Form` of a tensor into it."""
    torch = imported("torch")
    inside = view_of(tensor) if tensor.is_contiguous() else None
    if inside is not None:
        # PyTorch's threads wait for each other: on a busy machine that takes six times as long.
        raw = f"V{array.itemsize}"
        np.copyto(inside.view(raw), array.view(raw))
        torch.autograd.graph.increment_version(tensor)
        return
    with torch.no_grad():
        tensor.copy_(from_array(array, *special_dtype(tensor)))


def view_of(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return the array that is a tensor's memory, or None if it cannot be written through.

    PyTorch has to hear of a write: call ``torch.autograd.graph.increment_version``.
    """
    torch = imported("torch")
    is_plain = tensor.is_cpu and not (tensor.is_inference() or tensor.is_conj() or tensor.is_neg())
    if not is_plain or not hasattr(torch.autograd.graph, "increment_version"):
        return None
    return to_array(tensor)


# -- JAX ------------------------------------------------------------------


def is_jax_array(value: object) -> bool:
    """Return whether a value is an array of JAX, or the description of one."""
    jax = imported("jax")
    return jax is not None and isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def is_random_key(value: object) -> bool:
    """Return whether a value is an array of random keys, as `jax.random.key` makes them."""
    return is_jax_array(value) and _holds_keys(value)


def _holds_keys(value: Any) -> bool:
    dtypes = imported("jax").dtypes
    return bool(dtypes.issubdtype(value.dtype, dtypes.prng_key))


def key_data(keys: Any) -> np.ndarray[Any, Any]:
    """Return the integers of random keys."""
    return np.asarray(imported("jax").random.key_data(keys))


def jax_form(like: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of the array that one of JAX's is saved as."""
    if _holds_keys(like):
        jax = imported("jax")
        like = jax.eval_shape(jax.random.key_data, like)
    return tuple(like.shape), like.dtype


def number_like(number: Any, like: Any) -> np.ndarray[Any, Any] | None:
    """Return the array of a Python number, or None if the example would change its value.

    A weak type is that of a Python number itself: `jax.eval_shape` describes numbers so.
    """
    if not isinstance(number, (bool, int, float, complex)):
        return None
    if np.asarray(number).dtype.kind != like.dtype.kind:
        return None
    try:
        array = np.asarray(number, like.dtype)
    except OverflowError:
        return None
    return array if like.weak_type or array.item() == number else None


def array_like(array: Any, like: Any) -> Any:
    """Return a JAX array with the devices, sharding and kind of type of an example.

    Parameters
    ----------
    array : numpy.ndarray
        Of the form of `like`. It must not be changed any more.
    like : jax.Array or jax.ShapeDtypeStruct
    """
    jax = imported("jax")
    if _holds_keys(like):
        # Keys that are only described do not say what their algorithm is.
        algorithm = jax.random.key_impl(jax.numpy.empty((), like.dtype))
        array = jax.random.wrap_key_data(array, impl=algorithm)
    elif like.weak_type:
        array = _weak(jax.numpy, array)
    return jax.device_put(array, like.sharding)


def _weak(jnp: Any, array: Any) -> Any:
    """Return a JAX array whose dtype gives way to others, as that of a Python number does."""
    zeros = jnp.full(array.shape, array.dtype.type(0).item())
    return zeros.at[...].set(array) if zeros.dtype == array.dtype else array
