"""Functions of PyTorch as operations of halftone: their names, their tensors, their gradients."""
import torch
from torch.nn import functional as F

from .arrays import torch_memory, torch_over

_SHORT = (torch.float16, torch.bfloat16)


class StraightThrough(torch.autograd.Function):
    """A function whose gradient is that of the identity."""

    @staticmethod
    def forward(ctx, x, function):
        return function(x)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class Operation:
    """One function of PyTorch: the operation's name, and where its tensors are among the arguments.

    slots: (position, name) of each tensor, in halftone's order. wide: which gradients stay f32 if
    the operand was cast from f32. f32_result: the operation can write f32 from short floats.
    """

    def __init__(self, name, *slots, wide=(), f32_result=False, drop=()):
        self.name, self.slots, self.wide, self.f32_result, self.drop = name, slots, wide, f32_result, drop

    def split(self, function, args, kwargs):
        """Returns the name, the tensors (None: absent), and a function that computes the result from others."""
        args, kwargs = list(args), {k: v for k, v in kwargs.items() if k not in self.drop}
        tensors, places = [], []
        for position, name in self.slots:
            place = position if position < len(args) else name if name in kwargs else None
            value = None if place is None else args[place] if isinstance(place, int) else kwargs[place]
            value = value if isinstance(value, torch.Tensor) else None
            tensors.append(value)
            places.append(None if value is None else place)

        def compute(*replaced):
            own_args, own_kwargs = list(args), dict(kwargs)
            for place, tensor in zip(places, replaced):
                if place is not None:
                    (own_args if isinstance(place, int) else own_kwargs)[place] = tensor
            return function(*own_args, **own_kwargs)

        return self.name, tensors, compute


class AddMM(Operation):
    """bias + x w, as a linear layer: its weight is w transposed."""

    def split(self, function, args, kwargs):
        named = dict(zip(("input", "mat1", "mat2"), args), **{k: v for k, v in kwargs.items() if k not in ("beta", "alpha")})
        if set(named) != {"input", "mat1", "mat2"}:
            return None
        bias, x, weight = named["input"], named["mat1"], named["mat2"]
        return self.name, [x, weight.t(), bias], F.linear


class Gelu(Operation):
    """Two operations: by the error function, or by tanh."""

    def split(self, function, args, kwargs):
        _, *rest = super().split(function, args, kwargs)
        return "gelu" if kwargs.get("approximate") == "tanh" else "gelu_erf", *rest


class Binary(Operation):
    """With a number instead of the second tensor it is halftone's affine."""

    def split(self, function, args, kwargs):
        name, tensors, compute = super().split(function, args, kwargs)
        if tensors[0] is None:
            return None
        return ("affine", tensors[:1], compute) if tensors[1] is None else (name, tensors, compute)


def _table():
    x, two = (0, "input"), ((0, "input"), (1, "other"))
    linear = Operation("linear", x, (1, "weight"), (2, "bias"), wide=(0, 1, 2))
    matmul = Operation("matmul", *two, wide=(0, 1))
    conv = Operation("conv2d", x, (1, "weight"), (2, "bias"), wide=(1, 2))
    table = {
        F.linear: linear, torch.addmm: AddMM("linear", wide=(0, 1, 2)), torch.Tensor.addmm: AddMM("linear", wide=(0, 1, 2)),
        torch.matmul: matmul, torch.Tensor.matmul: matmul, torch.Tensor.__matmul__: matmul,
        torch.mm: Operation("matmul", x, (1, "mat2"), wide=(0, 1)),
        torch.bmm: Operation("matmul", x, (1, "mat2"), wide=(0, 1)),
        torch.Tensor.mm: Operation("matmul", x, (1, "mat2"), wide=(0, 1)),
        torch.Tensor.bmm: Operation("matmul", x, (1, "mat2"), wide=(0, 1)),
        F.conv2d: conv, torch.conv2d: conv,
        F.conv_transpose2d: Operation("conv_transpose2d", x, (1, "weight"), (2, "bias"), wide=(1, 2)),
        F.scaled_dot_product_attention: Operation(
            "scaled_dot_product_attention", (0, "query"), (1, "key"), (2, "value"), (3, "attn_mask")),
        F.embedding: Operation("embedding", (1, "weight"), x),
        F.layer_norm: Operation("layer_norm", x, (2, "weight"), (3, "bias"), f32_result=True),
        F.group_norm: Operation("group_norm", x, (2, "weight"), (3, "bias"), f32_result=True),
        F.batch_norm: Operation("batch_norm", x, (3, "weight"), (4, "bias")),
        F.dropout: Operation("dropout", x, drop=("inplace",)),
        F.max_pool2d: Operation("max_pool2d", x), F.avg_pool2d: Operation("avg_pool2d", x),
        F.adaptive_avg_pool2d: Operation("adaptive_avg_pool2d", x),
        F.cross_entropy: Operation("cross_entropy", x, (1, "target"), f32_result=True),
        F.nll_loss: Operation("nll_loss", x, (1, "target"), f32_result=True),
        F.gelu: Gelu("gelu", x, f32_result=True),
    }
    if hasattr(F, "rms_norm"):
        table[F.rms_norm] = Operation("rms_norm", x, (2, "weight"), f32_result=True)
    for name in ("relu", "leaky_relu", "silu", "elu", "softplus", "softmax", "log_softmax"):
        table[getattr(F, name)] = Operation(name, x, f32_result=True, drop=("inplace", "_stacklevel"))
    for name in ("relu", "softmax", "log_softmax", "tanh", "sigmoid", "exp", "log", "sqrt", "abs", "sum", "mean"):
        for owner in (torch, torch.Tensor):
            table[getattr(owner, name)] = Operation(name, x, f32_result=name != "mean")
    for name, short in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "div"), ("true_divide", "div")):
        for owner in (torch, torch.Tensor):
            table[getattr(owner, name)] = Binary(short, *two)
    for name, short in (("__add__", "add"), ("__radd__", "add"), ("__sub__", "sub"), ("__mul__", "mul"),
                        ("__rmul__", "mul"), ("__truediv__", "div")):
        table[getattr(torch.Tensor, name)] = Binary(short, *two)
    return table


OPERATIONS = _table()


def passed(x):
    """A tensor as the native module takes it; None if it is absent, or of a dtype that halftone lacks."""
    if x is None:
        return None
    if any(stride < 0 for stride in x.stride()):
        x = x.contiguous()
    return torch_memory(x, "emulate")


def taken(pair):
    return None if pair is None else torch_over(*pair)


class Treated(torch.autograd.Function):
    """An operation whose tensors a policy rounds, forward and backward."""

    @staticmethod
    def forward(ctx, call, operation, compute, *tensors):
        ctx.call, ctx.operation, ctx.needs = call, operation, list(ctx.needs_input_grad[3:])
        ctx.wide = [x is not None and x.dtype == torch.float32 for x in tensors]
        random = []  # the states before and after the first of two runs, which both draw the same numbers
        source = torch.cuda if any(x is not None and x.is_cuda for x in tensors) else torch
        f32_result = call.f32_result

        def run(operands, keeps):
            operands = [taken(x) for x in operands]
            leaves = [x.float() if x is not None and x.dtype in _SHORT else x for x in operands]
            short = next((x.dtype for x in operands if x is not None and x.dtype in _SHORT), None)
            # A tensor that is a leaf of its own: the gradient of this operation alone goes there.
            leaves = [x.detach().requires_grad_(True) if needed and keeps else x
                      for x, needed in zip(leaves, ctx.needs)]
            if not keeps:
                random.append(source.get_rng_state())
            elif random:
                source.set_rng_state(random[0])
            with torch.set_grad_enabled(keeps and any(ctx.needs)):
                y = compute(*leaves)
                if short is not None and not f32_result and y.dtype == torch.float32:
                    y = y.to(short)
            if keeps:
                ctx.local = leaves, operands, y
            return passed(y)

        return taken(call.forward(run))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        leaves, operands, y = ctx.local

        def differentiate(gradient, wanted):
            places = [i for i, needed in enumerate(ctx.needs) if needed and wanted >> i & 1]
            found = torch.autograd.grad(y, [leaves[i] for i in places], taken(gradient), retain_graph=True, allow_unused=True)
            gradients = [None] * len(leaves)
            for i, g in zip(places, found):
                wide = i in ctx.operation.wide and ctx.wide[i]
                gradients[i] = None if g is None else passed(g if wide else g.to(operands[i].dtype))
            return gradients

        gradients = ctx.call.backward(passed(dy.to(y.dtype).contiguous()), ctx.needs, differentiate)
        return (None, None, None, *[taken(g) for g in gradients])
