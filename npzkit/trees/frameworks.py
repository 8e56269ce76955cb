"""NumPy's arrays as PyTorch's tensors and JAX's arrays again, on their own or like an example.

Owns what such a value has that its array does not: of a tensor its device and whether it has
gradients, of JAX's array its sharding, the kind of its type and of its keys. Which array a value
has is `npzkit.members.tensors`'s. Imports neither package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.errors import UnsupportedError
from npzkit.imported import imported
from npzkit.members.tensors import extension_name, holds_keys, is_spread, special_dtype, to_array

if TYPE_CHECKING:
    from npzkit.reading.indexing import Box


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
    check_unmasked(array)
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


def check_unmasked(array: Any) -> None:
    """Raise UnsupportedError for a masked array, which would lose its mask."""
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedError(
            "values of the array are masked, and what it is loaded to has no mask",
            remedy="Load it without like= and into=: it is a masked array of NumPy then.",
        )


def tensor_like(array: Any, like: Any) -> Any:
    """Return a tensor with the data of an array, and the device and gradient flag of another.

    Parameters
    ----------
    array : numpy.ndarray
        Of the shape and dtype that `form_of` returns for `like`.
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
    """Copy an array of the shape and dtype of `form_of` into a tensor."""
    torch = imported("torch")
    inside = view_of(tensor) if tensor.is_contiguous() else None
    if inside is not None:
        # PyTorch's threads wait for each other: on a busy machine that takes six times as long.
        if inside.ctypes.data != array.ctypes.data:
            raw = f"V{array.itemsize}"
            np.copyto(inside.view(raw), array.view(raw))
        torch.autograd.graph.increment_version(tensor)
        return
    with torch.no_grad():
        tensor.copy_(from_array(array, *special_dtype(tensor)))


def check_fillable(tensor: Any, key: str) -> None:
    """Raise ValueError for a tensor that PyTorch would not write to."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    why = ""
    if tensor.is_meta:
        why = "has no memory (device 'meta') and cannot be filled: pass it as like="
    elif any(size > 1 and not stride for size, stride in strides):
        why = "is expanded, and its values share memory: pass tensor.clone()"
    elif tensor.is_inference() and not imported("torch").is_inference_mode_enabled():
        why = "was made in torch.inference_mode(), which is off now: pass tensor.clone()"
    if why:
        raise ValueError(f"the tensor {key!r} {why}")


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


def jax_form(like: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of the array that one of JAX's is saved as."""
    if holds_keys(like):
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


class ReadBoxes:
    """An array of which the boxes were read that devices of this process have."""

    # A dataclass or a namedtuple would be a container of a tree.
    def __init__(
        self, shape: tuple[int, ...], dtype: Any, boxes: Mapping[Box, np.ndarray[Any, Any]]
    ) -> None:
        self.shape, self.dtype, self.boxes = shape, dtype, boxes


def boxes_of(like: Any) -> list[Box]:
    """Return the boxes of a spread array that devices of this process have."""
    found = like.sharding.addressable_devices_indices_map(like.shape).values()
    return list(dict.fromkeys(_box_of(index, like) for index in found))


def _box_of(index: tuple[slice, ...], like: Any) -> Box:
    return tuple(axis.indices(n)[:2] for axis, n in zip(index, like.shape, strict=False))


def array_like(array: Any, like: Any) -> Any:
    """Return a JAX array with the devices, sharding and kind of type of an example.

    Parameters
    ----------
    array : numpy.ndarray, LazyArray or ReadBoxes
        Of the form of `like`. It must not be changed any more.
    like : jax.Array or jax.ShapeDtypeStruct
        If it is spread over processes, this one gets the parts of its devices. Of a lazy
        array, only these are read.
    """
    jax = imported("jax")
    if is_spread(like):
        return _spread_like(jax, array, like)
    if holds_keys(like):
        array = _keys_of(jax, array, like)
    elif like.weak_type:
        array = _weak(jax.numpy, array)
    return jax.device_put(array, like.sharding)


def _spread_like(jax: Any, array: Any, like: Any) -> Any:
    """Return an array of which each process has made the parts that its devices have."""

    @functools.cache
    def part_in(box: Box) -> Any:
        # The Ellipsis makes an array of one without dimensions too.
        is_read = isinstance(array, ReadBoxes)
        found = array.boxes[box] if is_read else array[(*(slice(*ends) for ends in box), ...)]
        return _keys_of(jax, found, like) if holds_keys(like) else found

    def part(index: tuple[slice, ...]) -> Any:
        # Devices with the same part share what was read.
        return part_in(_box_of(index, like))

    made = jax.make_array_from_callback(like.shape, like.sharding, part, like.dtype)
    if not holds_keys(like) and like.weak_type:
        made = jax.jit(partial(_weak, jax.numpy), out_shardings=like.sharding)(made)
    return made


def _keys_of(jax: Any, array: Any, like: Any) -> Any:
    # Keys that are only described do not say what their algorithm is.
    algorithm = jax.random.key_impl(jax.numpy.empty((), like.dtype))
    return jax.random.wrap_key_data(array, impl=algorithm)


def _weak(jnp: Any, array: Any) -> Any:
    """Return a JAX array whose dtype gives way to others, as that of a Python number does."""
    zeros = jnp.full(array.shape, np.dtype(array.dtype).type(0).item())
    return zeros.at[...].set(array) if zeros.dtype == array.dtype else array
