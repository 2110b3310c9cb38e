"""A model of PyTorch under a policy: hooks say which module runs, a function mode says which operation."""
import torch
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from . import _native
from .arrays import torch_to_numpy
from .torch_functions import OPERATIONS, Treated, passed

_RESULTS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class _Mode(TorchFunctionMode):
    def __init__(self, native):
        super().__init__()
        self.native = native

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        operation = OPERATIONS.get(function)
        parts = operation and operation.split(function, args, kwargs)
        if not parts:
            return function(*args, **kwargs)
        name, tensors, compute = parts
        call = self.native.begin(name, [passed(x) for x in tensors], operation.f32_result)
        if not call.changes():
            return function(*args, **kwargs)
        y = Treated.apply(call, operation, compute, *tensors)
        return y.to(_RESULTS[call.result]) if call.result else y


def _parameters(model):
    """Names and memory; each parameter once."""
    for name, x in model.named_parameters():
        if x.dtype != torch.float32:
            from .errors import DTypeError

            raise DTypeError(f"[Policy.apply] parameter {name} is {x.dtype}. Give the policy a model in f32: it casts itself.")
    return [(name, torch_to_numpy(x, "Policy.apply")[0]) for name, x in model.named_parameters()]


class Emulated(torch.nn.Module):
    """`model` under a policy. Parameters, training mode and state dictionary are the model's.

    Operations of model(...) follow the rules; those outside of it, such as a loss, do not. Call
    end_step() after each step of the optimizer: rules with steps, and scales from history, move then.
    """

    def __init__(self, file, model):
        super().__init__()
        self.model = model
        self._paths = dict((module, i) for i, (_, module) in enumerate(model.named_modules()))
        paths = [path for path, _ in model.named_modules()]
        self._native = _native.Emulation(file, paths, _parameters(model))
        self._pointers = self._where()

    def _where(self):
        return [x.data_ptr() for x in self.model.parameters()]

    def forward(self, *args, **kwargs):
        if self._where() != self._pointers:
            self._native.follow(_parameters(self.model))
            self._pointers = self._where()
        native, paths = self._native, self._paths
        results = []

        def enter(module, _):
            if module in paths:
                native.enter(paths[module])

        def leave(module, _, __):
            if module in paths:
                native.leave()

        def run():
            with _Mode(native):
                results.append(self.model(*args, **kwargs))

        handles = [hooks.register_module_forward_pre_hook(enter), hooks.register_module_forward_hook(leave, always_call=True)]
        try:
            native.forward(run, torch.is_grad_enabled())
        finally:
            for handle in handles:
                handle.remove()
        y = results[0]
        return y.float() if isinstance(y, torch.Tensor) and y.dtype in (torch.float16, torch.bfloat16) else y

    def end_step(self):
        """Ends a step: raises UsageError for a rule that matched nothing until the first one."""
        self._native.end_step()

    def table(self):
        """The table of `halftone-lab show`, of the sites met until now."""
        return self._native.table()


def survey(file, model, example):
    """Returns the session of one pass with gradients; buffers and random numbers are as before it."""
    emulated = Emulated(file, model)
    inputs = example if isinstance(example, tuple) else (example,)
    buffers = [(x, x.detach().clone()) for x in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            emulated(*inputs)
    finally:
        with torch.no_grad():
            for x, before in buffers:
                x.copy_(before)
    emulated._native.require_all_rules_used()
    return emulated._native
