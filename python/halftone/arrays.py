"""Arrays of other libraries as numpy arrays over the same memory, and results in the caller's kind."""
import sys

import numpy as np

from .errors import DeviceError, DTypeError

_SIMPLE = {"float64", "float32", "float16", "int64", "int32", "int16", "uint8", "bool"}

_HOST_MEMORY = (1, 3, 11)  # DLPack's kDLCPU, kDLCUDAHost, kDLROCMHost


def is_torch(x):
    """Says whether x is a tensor of PyTorch, without importing it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def torch_to_numpy(x, op="quantize"):
    """Returns (numpy array over the tensor's memory, "bf16" or "")."""
    import torch

    if x.device.type != "cpu":
        raise DeviceError(f"[{op}] the tensor is on {x.device}. Copy it to the CPU: x.cpu().")
    x = x.detach()
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        raise DTypeError(f"[{op}] the tensor is {x.layout}, or a lazy conjugate. Make it dense: x.to_dense().")
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(np.uint16), "bf16"
    if str(x.dtype).removeprefix("torch.") not in _SIMPLE:
        raise DTypeError(f"[{op}] the tensor is {x.dtype}. Convert it: x.float().")
    return x.numpy(), ""


def torch_from_numpy(array, dtype=""):
    """Returns a tensor of PyTorch over the array's memory."""
    import torch

    if dtype == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(x, op="quantize"):
    """Returns (numpy array, "bf16" or "", function that returns a result in the caller's kind).

    Nothing is copied, except lists, scalars, and arrays with negative strides.
    """
    if is_torch(x):
        array, dtype = torch_to_numpy(x, op)
        return array, dtype, lambda y: torch_from_numpy(y, dtype)
    if isinstance(x, np.ndarray) or not hasattr(x, "__dlpack__"):
        array, back = np.asarray(x), lambda y: y
    else:
        device = int(x.__dlpack_device__()[0])
        if device not in _HOST_MEMORY:
            raise DeviceError(f"[{op}] {type(x).__name__} is on a device of DLPack's type {device}. Copy it to the CPU.")
        try:
            array = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError) as error:
            raise DeviceError(f"[{op}] {type(x).__name__} gives no memory of the CPU: {error}") from error
        space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else sys.modules.get(type(x).__module__.split(".")[0])
        back = space.from_dlpack if hasattr(space, "from_dlpack") else lambda y: y
    dtype = ""
    if array.dtype.name == "bfloat16":
        own = array.dtype
        array, dtype, back = array.view(np.uint16), "bf16", lambda y: y.view(own)
    elif array.dtype.name not in _SIMPLE:
        raise DTypeError(f"[{op}] the array is {array.dtype}. Convert it: x.astype(numpy.float32).")
    elif not array.dtype.isnative:
        raise DTypeError(f"[{op}] the array has bytes in another order. Convert it: x.astype(x.dtype.newbyteorder('=')).")
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array).reshape(array.shape)
    return array, dtype, back
