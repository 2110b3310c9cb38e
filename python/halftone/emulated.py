"""A model of PyTorch under a policy: hooks say which module runs, a function mode says which operation."""
import threading

import torch
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, resolve_name

from . import _native
from .arrays import on_device_of, torch_memory
from .composed import COMPOSED
from .errors import DTypeError, UnsupportedError, UsageError
from .products import Products
from .segments import RUNNING
from .torch_functions import OPERATIONS, Treated, passed

_RESULTS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_NO_PRODUCT = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}  # and what the first call shows
_ACCESS = ("__get__", "__set__", "__delete__")


class _Mode(TorchFunctionMode):
    def __init__(self, native):
        super().__init__()
        self.native = native

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        composed = COMPOSED.get(function)
        if composed:
            with self:
                y = composed(*args, **kwargs)
            if y is not NotImplemented:
                return y
        operation = OPERATIONS.get(function)
        parts = operation and operation.split(function, args, kwargs)
        if not parts:
            return self._without_rules(function, args, kwargs)
        name, tensors, compute = parts
        call = self.native.begin(name, [passed(x) for x in tensors], operation.f32_result)
        if not call.changes():
            return function(*args, **kwargs)
        y = Treated.apply(call, operation, compute, *tensors)
        return y.to(_RESULTS[call.result]) if call.result else y

    def _without_rules(self, function, args, kwargs):
        """Runs a function that halftone does not know. Its products are noted, or refused."""
        if function in _NO_PRODUCT or getattr(function, "__name__", "") in _ACCESS:
            return function(*args, **kwargs)
        with Products() as products:
            y = function(*args, **kwargs)
        if products.flops:
            self.native.unseen(resolve_name(function) or str(function), products.flops)
        elif not products.met:
            _NO_PRODUCT.add(function)
        return y


def _on_device_of(model):
    return on_device_of(next(model.parameters(), None))


def _parameters(model):
    """Names and memory; each parameter once."""
    for name, x in model.named_parameters():
        if x.dtype != torch.float32:
            raise DTypeError(f"[Policy.apply] parameter {name} is {x.dtype}. Give the policy a model in f32: it casts itself.")
    devices = sorted({str(x.device) for x in model.parameters()})
    if len(devices) > 1:
        raise UnsupportedError(f"[Policy.apply] the parameters are on {' and '.join(devices)}. Move the model to one device.")
    with _on_device_of(model):
        return [(name, torch_memory(x, "Policy.apply")[0]) for name, x in model.named_parameters()]


def _parts(modules):
    """Paths, each with the part of a model that the module is; the head is the last matrix outside of blocks."""
    parts = {path: "embedding" if isinstance(module, torch.nn.Embedding) else
             "router" if type(module).__name__.endswith("Router") else "" for path, module in modules}
    for path, module in reversed(modules):
        weight = getattr(module, "weight", None)
        in_block = any(segment.isdigit() for segment in path.split(".")[:-1])
        if path and not in_block and not parts[path] and isinstance(weight, torch.Tensor) and weight.dim() >= 2:
            parts[path] = "head"
            break
    return list(parts.items())


def _refuse_compiled(modules):
    for path, module in modules:
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None):
            what = f'module "{path}"' if path else "the model"
            raise UnsupportedError(f"[Policy.apply] {what} was compiled by torch.compile, where no rule reaches. "
                                   "Give the policy the model as it was before.")


class _Bound:
    """A native emulation, and the modules and parameters that it was made for."""

    def __init__(self, file, model):
        self.modules = list(model.named_modules())
        _refuse_compiled(self.modules)
        self.paths = {module: i for i, (_, module) in enumerate(self.modules)}
        self.native = _native.Emulation(file, _parts(self.modules), _parameters(model))
        self.parameters, self.pointers = self._parameters_of(model)

    @staticmethod
    def _parameters_of(model):
        named = list(model.named_parameters())
        return [(name, x.shape, x.stride()) for name, x in named], [x.data_ptr() for _, x in named]

    def follows(self, model):
        """Follows parameters with new memory. Returns False if modules or parameters were replaced by others."""
        parameters, pointers = self._parameters_of(model)
        modules = list(model.named_modules())
        if parameters != self.parameters or len(modules) != len(self.modules):
            return False
        if any(a[0] != b[0] or a[1] is not b[1] for a, b in zip(modules, self.modules)):
            return False
        if pointers != self.pointers:
            self.native.follow(_parameters(model))
            self.pointers = pointers
        return True


class Emulated(torch.nn.Module):
    """`model` under a policy. Parameters, training mode and state dictionary are the model's.

    Operations of model(...) follow the rules; those outside of it, such as a loss, do not. Call
    end_step() after each step of the optimizer: rules with steps, and scales from history, move then.
    Modules may be replaced between calls. Calls from several threads run one after the other.
    """

    def __init__(self, file, model):
        super().__init__()
        self.model = model
        self._file, self._lock, self._bound = file, threading.RLock(), _Bound(file, model)

    _native = property(lambda self: self._bound.native)

    def __getstate__(self):
        with self._lock, _on_device_of(self.model):
            state = self.__dict__.copy()
            del state["_file"], state["_lock"], state["_bound"]
            return state | {"_text": self._file.text, "_session": self._native.state()}

    def __setstate__(self, state):
        state = dict(state)
        text, session = state.pop("_text"), state.pop("_session")
        super().__setstate__(state)
        self._file, self._lock = _native.parse_policy(text, "text"), threading.RLock()
        self._bound = _Bound(self._file, self.model)
        self._native.load_state(session)

    def _follow(self):
        if not self._bound.follows(self.model):
            with _on_device_of(self.model):
                session = self._native.state()
                self._bound = _Bound(self._file, self.model)
                self._native.load_state(session)

    def _run(self, bound, start, work):
        """Returns work() in the mode, with hooks, where start(function) calls the function in the native module."""
        native, paths, thread = bound.native, bound.paths, threading.get_ident()
        results, compiled = [], []

        def enter(module, _):
            if module in paths and threading.get_ident() == thread:
                native.enter(paths[module])
                if isinstance(module, torch.jit.ScriptModule):  # its operations pass no mode for functions
                    compiled.append(Products())
                    compiled[-1].__enter__()

        def leave(module, _, __):
            if module in paths and threading.get_ident() == thread:
                try:
                    if isinstance(module, torch.jit.ScriptModule):
                        products = compiled.pop()
                        products.__exit__(None, None, None)
                        if products.flops:
                            native.unseen(f"torch.jit.{module.original_name}", products.flops)
                finally:
                    native.leave()

        def run():
            if any(isinstance(mode, _Mode) and mode.native is native for mode in _get_current_function_mode_stack()):
                results.append(work())
                return
            with _Mode(native):
                results.append(work())

        inside = any(each[1] is bound for each in RUNNING.stack)  # its hooks are there already
        handles = [] if inside else [hooks.register_module_forward_pre_hook(enter),
                                     hooks.register_module_forward_hook(leave, always_call=True)]
        RUNNING.stack.append((self, bound))
        try:
            with _on_device_of(self.model):
                start(run)
        finally:
            RUNNING.stack.pop()
            for handle in handles:
                handle.remove()
        return results[0]

    def _segment(self, bound):
        """Returns a function that runs another one in backward as it would run here and now."""
        place = bound.native.segment()

        def again(function):
            with self._lock:
                return self._run(bound, lambda run: bound.native.run_again(place, run), function)

        return again

    def _new_pass(self, calls, work):
        if RUNNING.stack:
            raise UsageError("[Emulated.forward] a module under a policy is called inside of another one. "
                             "Put one policy on the whole model: its rules name modules by their paths.")
        with self._lock:
            self._follow()
            bound = self._bound
            records = torch.is_grad_enabled() or (calls is not None and calls.records)

            def noted():
                if calls:
                    calls.passes.append(self._segment(bound))
                return work()

            return self._run(bound, lambda run: bound.native.forward(run, records), noted)

    def forward(self, *args, **kwargs):
        calls = RUNNING.calls
        again = calls.next() if calls else None
        if again:
            y = again(lambda: self.model(*args, **kwargs))
        else:
            y = self._new_pass(calls, lambda: self.model(*args, **kwargs))
        return y.float() if isinstance(y, torch.Tensor) and y.dtype in (torch.float16, torch.bfloat16) else y

    def end_step(self):
        """Ends a step: raises UsageError for a rule that matched nothing until the first one."""
        with self._lock, _on_device_of(self.model):
            self._native.end_step()

    def table(self):
        """The table of `halftone-lab show`, of the sites met until now."""
        with self._lock:
            return self._native.table()


def survey(file, model, example):
    """Returns the session of one pass with gradients; buffers and random numbers are as before it."""
    emulated = Emulated(file, model)
    inputs = example if isinstance(example, tuple) else (example,)
    buffers = [(x, x.detach().clone()) for x in model.buffers()]
    try:
        gpus = {x.device.index for x in model.parameters() if x.is_cuda}
        with torch.random.fork_rng(devices=gpus), torch.enable_grad():
            emulated(*inputs)
    finally:
        with torch.no_grad():
            for x, before in buffers:
                x.copy_(before)
    emulated._native.require_all_rules_used()
    return emulated._native
