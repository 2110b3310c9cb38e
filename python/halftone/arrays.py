"""Arrays of other libraries over the same memory: numpy arrays, on a GPU DLPack capsules. Results in the caller's kind."""
import contextlib
import sys

import numpy as np

from . import _native
from .errors import DeviceError, DTypeError, UnsupportedError

_SIMPLE = {"float64", "float32", "float16", "int64", "int32", "int16", "uint8", "bool"}

_HOST_MEMORY = (1, 3, 11)  # DLPack's kDLCPU, kDLCUDAHost, kDLROCMHost


def is_torch(x):
    """Says whether x is a tensor of PyTorch, without importing it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def on_device_of(x):
    """A context in which x's GPU is the current one, and again the one before it afterwards."""
    if not is_torch(x) or not x.is_cuda:
        return contextlib.nullcontext()
    return sys.modules["torch"].cuda.device(x.device)


def _work_in_stream_of(device, op):
    """Issues halftone's kernels where PyTorch issues its own, so that neither waits for the other."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(f"[{op}] a CUDA graph is captured, whose replays would use memory that halftone has freed. "
                               "Run the model outside of the capture.")
    _native.use_stream(op, device.index, torch.cuda.current_stream(device).cuda_stream)


def torch_memory(x, op="quantize"):
    """Returns (numpy array or capsule over the tensor's memory, "bf16" if numpy has no such dtype, else "").

    On a GPU, the native call that takes it must follow, in the context on_device_of(x).
    """
    import torch

    if x.device.type not in ("cpu", "cuda"):
        raise DeviceError(f"[{op}] the tensor is on {x.device}. Copy it to the CPU: x.cpu().")
    x = x.detach()
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        raise DTypeError(f"[{op}] the tensor is {x.layout}, or a lazy conjugate. Make it dense: x.to_dense().")
    if x.dtype != torch.bfloat16 and str(x.dtype).removeprefix("torch.") not in _SIMPLE:
        raise DTypeError(f"[{op}] the tensor is {x.dtype}. Convert it: x.float().")
    if x.device.type == "cuda":
        _work_in_stream_of(x.device, op)
        return torch.utils.dlpack.to_dlpack(x), ""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(np.uint16), "bf16"
    return x.numpy(), ""


def torch_over(array, dtype=""):
    """Returns a tensor of PyTorch over the memory of an array or a capsule."""
    import torch

    if not isinstance(array, np.ndarray):
        return torch.utils.dlpack.from_dlpack(array)
    if dtype == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(x, op="quantize"):
    """Returns (numpy array or capsule, "bf16" or "", function that returns a result in the caller's kind).

    Nothing is copied, except lists, scalars, and arrays with negative strides.
    """
    if is_torch(x):
        array, dtype = torch_memory(x, op)
        return array, dtype, lambda y: torch_over(y, dtype)
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
