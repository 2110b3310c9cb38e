"""Products that a function computes, whatever it is called."""
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def _rnn_layer(x, w_ih, w_hh, *_):
    return 2 * (w_ih.numel() + w_hh.numel()) * (x.numel() // max(x.size(-1), 1))


_OF_MATRIX = lambda x, y, *_: 2 * x.numel() * (y.numel() // max(y.size(-1), 1))
_OTHERS = {
    "mv": lambda x, *_: 2 * x.numel(), "dot": lambda x, *_: 2 * x.numel(), "vdot": lambda x, *_: 2 * x.numel(),
    "addmv": lambda _, x, *__: 2 * x.numel(), "addmv_": lambda _, x, *__: 2 * x.numel(),
    "addbmm": lambda _, x, y, **__: 2 * x.numel() * y.size(-1), "addbmm_": lambda _, x, y, **__: 2 * x.numel() * y.size(-1),
    "addmm_": lambda _, x, y, **__: 2 * x.numel() * y.size(-1), "baddbmm_": lambda _, x, y, **__: 2 * x.numel() * y.size(-1),
    "mkldnn_rnn_layer": _rnn_layer, "_trilinear": lambda x, w, *_: 2 * x.numel() * w.size(1),
    "_cdist_forward": _OF_MATRIX, "_euclidean_dist": _OF_MATRIX,
}


class Products(TorchDispatchMode):
    """Counts the multiplications and additions of the products that run inside of it."""

    def __init__(self):
        super().__init__()
        self.flops, self.met = 0, False  # met: whether there is a product, also one of no elements

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():  # a mode for functions would take the operation for a call of the model
            return self._counted(function, args, kwargs or {})

    def _counted(self, function, args, kwargs):
        packet = function._overloadpacket
        name, counts = packet.__name__, flop_registry.get(packet)
        if not counts and name not in _OTHERS:
            with self:
                y = function.decompose(*args, **kwargs)
            if y is not NotImplemented:
                return y
        y = function(*args, **kwargs)
        self.met = self.met or bool(counts) or name in _OTHERS
        if counts:
            self.flops += counts(*args, **kwargs, out_val=y)
        elif name in _OTHERS and packet is getattr(torch.ops.aten, name, None):
            self.flops += _OTHERS[name](*args, **kwargs)
        return y
