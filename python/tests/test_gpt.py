"""A GPT of PyTorch and the GPT of C++ with the same weights, under the same policies.

HALFTONE_GPT_GRADIENTS is the program gpt_gradients (run.sh sets it).
"""
import json
import os
import struct
import subprocess

import numpy as np
import pytest
from read_vectors import read

import halftone as ht

PROGRAM = os.environ.get("HALFTONE_GPT_GRADIENTS")
HEADS, WIDTH, CONTEXT, LAYERS, WORDS = 2, 64, 16, 2, 40


def write(path, tensors):
    """Writes a .safetensors file of f32 and i64 arrays."""
    header, data, end = {}, b"", 0
    for name, x in tensors.items():
        raw = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": {"float32": "F32", "int64": "I64"}[x.dtype.name], "shape": list(x.shape), "data_offsets": [end, end + len(raw)]}
        data, end = data + raw, end + len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def gpt(torch):
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            q, k, v = (t.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for t in self.c_attn(x).split(WIDTH, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(x.shape))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), Mlp()

        def forward(self, x):
            y = x + self.attn(self.ln_1(x))
            return y + self.mlp(self.ln_2(y))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(WORDS, WIDTH), wpe=nn.Embedding(CONTEXT, WIDTH),
                                                  h=nn.ModuleList(Block() for _ in range(LAYERS)), ln_f=nn.LayerNorm(WIDTH)))
            self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
            self.lm_head.weight = self.transformer.wte.weight

        def forward(self, tokens):
            t = self.transformer
            x = t.wte(tokens) + t.wpe.weight[: tokens.shape[1]]
            for block in t.h:
                x = block(x)
            return self.lm_head(t.ln_f(x))

    torch.manual_seed(0)
    model = Gpt()
    with torch.no_grad():
        for x in model.parameters():
            x.copy_(torch.randn(x.shape) * 0.1 + (0.5 if x.dim() == 1 else 0))
    return model


@pytest.mark.skipif(not PROGRAM, reason="HALFTONE_GPT_GRADIENTS is not set: the program of C++ is not there")
@pytest.mark.parametrize("name, tolerance", [
    ("fp32", 2e-6), ("tf32", 1e-3), ("amp-bf16", 2e-2), ("mxfp8", 2e-2), ("mxfp6", 5e-2), ("te_current", 2e-2),
    ("deepseek_v3", 2e-2), ("mxfp4_backward", 0.2), ("nvfp4", 0.2)])
def test_against_cpp(torch, root, tmp_path, name, tolerance):
    model = gpt(torch)
    tokens, targets = torch.randint(WORDS, (4, CONTEXT)), torch.randint(WORDS, (4, CONTEXT))
    state = {k: v.numpy() for k, v in model.state_dict().items()}
    write(tmp_path / "in.safetensors", state | {"tokens": tokens.numpy(), "targets": targets.numpy()})
    path = root / "policies" / f"{name}.json"
    said = subprocess.run([PROGRAM, tmp_path / "in.safetensors", path, str(HEADS), tmp_path / "out.safetensors"],
                          check=True, capture_output=True, text=True).stdout
    expected, _ = read(tmp_path / "out.safetensors")
    there = json.loads(said)

    policy = ht.Policy.load(path)
    here = policy.resolved(model, tokens)

    def rows(table):
        keys = ("site", "parameter", "asks", "computes_in", "roles", "rules", "treatment")
        return [{k: s[k] for k in keys} for s in table["sites"] if s["op"] in ("linear", "scaled_dot_product_attention", "layer_norm", "gelu")]

    assert rows(here) == rows(there)
    assert here["rules"] == there["rules"]

    logits = policy.apply(model, tokens)(tokens)
    torch.nn.functional.cross_entropy(logits.reshape(-1, WORDS), targets.reshape(-1)).backward()

    def error(a, b):
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))

    worst = error(logits.detach().numpy(), expected["logits"])
    for key, x in model.named_parameters():
        worst = max(worst, error(x.grad.numpy(), expected["grad." + key]))
    print(f"{name}: largest relative error of logits and gradients: {worst:.2g}")
    assert worst <= tolerance
