"""Tensors of PyTorch on a GPU: the same bits as on the CPU. Runs on a GPU, or on the emulated one (HALFTONE_EMULATED_GPU), whose
memory is the host's: there PyTorch computes on the CPU, with tensors that say they are on a GPU."""
import copy
import ctypes
import os

import pytest

import halftone as ht

torch = pytest.importorskip("torch", reason="torch is not installed, so its parts are not tested")
_CPU, _CUDA = 1, 2  # DLPack's devices
_EMULATED = "HALFTONE_EMULATED_GPU" in os.environ


class OnGpu(torch.Tensor):
    """A tensor in the memory of the emulated GPU."""
    device = property(lambda self: torch.device("cuda", 0))
    is_cuda = property(lambda self: True)


def _moved(capsule, before, after):
    """Writes another device into a DLPack capsule, after the pointer to the data."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    device = ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8)
    assert device.value == before
    device.value = after
    return capsule


class _Anywhere:
    """Stands in for torch.cuda.device."""
    def __init__(self, device):
        assert torch.device(device).type == "cuda"

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


class _Stream:
    cuda_stream = 0


def _on_emulated_gpu(x):
    if isinstance(x, torch.nn.Module):
        x = copy.deepcopy(x)
        for module in x.modules():
            for name, p in module._parameters.items():
                module._parameters[name] = p if p is None else torch.nn.Parameter(p.detach().as_subclass(OnGpu))
        return x
    return x.detach().clone().as_subclass(OnGpu)


@pytest.fixture
def on_gpu(monkeypatch):
    """A function that moves a tensor or a module to the GPU."""
    if not _EMULATED:
        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")
        return lambda x: copy.deepcopy(x).cuda() if isinstance(x, torch.nn.Module) else x.cuda()
    given, taken = torch.utils.dlpack.to_dlpack, torch.utils.dlpack.from_dlpack
    monkeypatch.setattr(torch.utils.dlpack, "to_dlpack", lambda x: _moved(given(x.as_subclass(torch.Tensor)), _CPU, _CUDA))
    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", lambda c: taken(_moved(c, _CUDA, _CPU)).as_subclass(OnGpu))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: _Stream())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", _Anywhere)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device=0: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device=0: torch.set_rng_state(state))
    return _on_emulated_gpu


def same(on_gpu, on_cpu):
    assert (on_gpu.is_cuda or _EMULATED) and on_gpu.dtype == on_cpu.dtype and on_gpu.shape == on_cpu.shape
    bits = [x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (on_gpu.as_subclass(torch.Tensor).cpu(), on_cpu)]
    assert torch.equal(*bits)


def test_numbers(on_gpu):
    torch.manual_seed(0)
    x = torch.randn(6, 64) * 3
    for quantizer in ht.quantizers():
        same(ht.quantize(on_gpu(x), quantizer), ht.quantize(x, quantizer))
    for dtype, grid in ((torch.bfloat16, "mxfp4"), (torch.float64, "mxfp4"), (torch.float16, "e4m3")):
        same(ht.quantize(on_gpu(x.to(dtype)), grid, axis=0), ht.quantize(x.to(dtype), grid, axis=0))
    same(ht.quantize(on_gpu(x).t(), "mxfp8"), ht.quantize(x.t(), "mxfp8"))
    same(ht.round_to(on_gpu(x), "e4m3", rounding="stochastic", seed=5), ht.round_to(x, "e4m3", rounding="stochastic", seed=5))
    same(ht.round_to(on_gpu(x[:0]), "e4m3"), x[:0])
    a, b = (x * 64).to(torch.bfloat16), x.t().to(torch.bfloat16)
    same(ht.matmul(on_gpu(a), on_gpu(b), "h100-wgmma"), ht.matmul(a, b, "h100-wgmma"))
    with pytest.raises(ht.DTypeError, match="float8"):
        ht.quantize(on_gpu(x.to(torch.float8_e4m3fn)), "e4m3")


def test_gradient_passes(on_gpu):
    x = on_gpu(torch.randn(4, 32)).requires_grad_(True)
    (ht.quantize(x, "mxfp4") * 3).sum().backward()
    same(x.grad, torch.full((4, 32), 3.0))


def _network():
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))


@pytest.mark.parametrize("name", ["mxfp8", "amp-bf16", "te_delayed_hybrid", "te_current"])
def test_policies(on_gpu, name):
    """Losses, gradients and scales of four steps. PyTorch's own products differ between devices, so on a GPU only nearly."""
    policy = ht.Policy.named(name)
    model, x = _network(), torch.randn(16, 32)
    cpu, gpu = policy.apply(model, x), policy.apply(on_gpu(model), on_gpu(x))
    for step in range(4):
        if step == 2:
            scales, gpu = gpu._native.state(), policy.apply(gpu.model)
            gpu._native.load_state(scales)
        losses = []
        for emulated, batch in ((cpu, x), (gpu, on_gpu(x))):
            emulated.zero_grad()
            loss = emulated(batch).square().mean()
            loss.backward()
            emulated.end_step()
            losses.append(loss.detach())
        pairs = [(losses[1], losses[0])] + [(p.grad, q.grad) for p, q in zip(gpu.parameters(), cpu.parameters())]
        for ours, expected in pairs:
            if _EMULATED:
                same(ours, expected)
            else:
                assert ours.is_cuda and torch.allclose(ours.cpu(), expected, rtol=0.1, atol=0.02 * expected.abs().max().item())
    assert gpu.table() == cpu.table()


def test_dropout_draws_the_same_numbers_twice(on_gpu):
    """Other operands in backward need a second run of the operation, with the random numbers of the first."""
    policy = ht.Policy.parse({"halftone_policy": 1, "name": "t", "rules": [
        {"match": {"op": "dropout"}, "input": "e4m3", "input.backward": "e5m2"}]})
    x = on_gpu(torch.ones(64, 64)).requires_grad_(True)
    y = policy.apply(torch.nn.Dropout(0.5))(x)
    y.sum().backward()
    assert y.is_cuda and torch.equal(y == 0, x.grad == 0) and 0.3 < (y == 0).double().mean() < 0.7


def test_refusals(on_gpu, monkeypatch):
    x = torch.randn(4, 32)
    with pytest.raises(ht.DeviceError, match="the operands are on cuda:0 and cpu"):
        ht.matmul(on_gpu(x), x.t(), "h100-wgmma")
    model = on_gpu(_network())
    model[0] = torch.nn.Linear(32, 64)
    with pytest.raises(ht.UnsupportedError, match="the parameters are on cpu and cuda:0. Move the model to one device"):
        ht.Policy.named("amp-bf16").apply(model)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ht.UnsupportedError, match="a CUDA graph is captured"):
        ht.quantize(on_gpu(x), "e4m3")


def test_without_a_gpu():
    if _EMULATED or torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from halftone import _native
    with pytest.raises(ht.DeviceError, match="the memory is on a device of DLPack's type 10. Copy it to the CPU"):
        _native.round_to(_moved(torch.utils.dlpack.to_dlpack(torch.ones(3)), _CPU, 10), "", ht.Format("e4m3"), "nearest_even", None)
    with pytest.raises(ht.DeviceError, match=r"\[quantize\] the tensor is on cuda:1, and halftone has no GPU: .*Copy the tensor to the CPU: x.cpu\(\)"):
        _native.use_stream("quantize", 1, 0)


def test_streams(on_gpu):
    """Work moves with PyTorch's current stream, and waits for what was issued before."""
    if _EMULATED:
        pytest.skip("PyTorch has no streams there")
    x = torch.randn(1 << 22)
    expected, side = ht.quantize(x, "mxfp4"), torch.cuda.Stream()
    for _ in range(20):
        y = ht.quantize(on_gpu(x), "mxfp4")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = ht.quantize(y, "mxfp4")
        torch.cuda.current_stream().wait_stream(side)
        same(z, expected)
