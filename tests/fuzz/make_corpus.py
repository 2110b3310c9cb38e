#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets into corpus/ in this folder: small files of every kind, from
which mutation starts, and those that once were findings. Most images are not here: run.sh takes
tests/fixtures/images, and amp/policies/*.json. Run it after a change of a format; it is not part of the build.
"""

import gzip
import json
import struct
import zlib
from pathlib import Path

HERE = Path(__file__).parent
PAIRS = HERE.parent / "fixtures" / "byte_pairs"
SEPARATOR = b"\xff"


def put(target, name, data):
    path = HERE / "corpus" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def idx(*sizes, data=None):
    count = 1
    for size in sizes:
        count *= size
    header = bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
    return header + (bytes(i % 251 for i in range(count)) if data is None else data)


def make_idx():
    plain = {"labels": idx(10), "images": idx(3, 4, 5), "pair": idx(2, 7), "colours": idx(2, 3, 4, 3),
             "empty": idx(0, 28, 28), "endless": idx(0xFFFFFFFF, data=b"ab"), "overflow": idx(65536, 65536, data=b"")}
    for name, data in plain.items():
        put("idx", name, data)
    put("idx", "images.gz", gzip.compress(plain["images"], mtime=0))
    put("idx", "zeros.gz", gzip.compress(idx(1, 600, 600, data=bytes(360000)), mtime=0))
    put("idx", "two_members.gz", gzip.compress(plain["pair"][:9], mtime=0) + gzip.compress(plain["pair"][9:], mtime=0))


def make_cifar10():
    record = bytes(i * 7 % 256 for i in range(3072))
    for name, labels in {"one": [3], "two": [0, 9], "no_label": [10]}.items():
        put("cifar10", name, b"".join(bytes([label]) + record for label in labels))


def safetensors(tensors, metadata=None, spaces=True):
    """tensors: name to (dtype, shape, data), in the order of the data."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if spaces:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def make_safetensors():
    put("safetensors", "empty", safetensors({}))
    put("safetensors", "metadata", safetensors({"x": ("F32", [], bytes(4))}, {"format": "pt", "note": "\u00fc\"\n"}))
    widths = {"BOOL": 1, "U8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4,
              "F64": 8, "I64": 8}
    for dtype, width in widths.items():
        values = bytes([1, 0]) if width == 1 else bytes(range(2 * width))
        put("safetensors", dtype.lower(), safetensors({"weight": (dtype, [2, 1], values)}))
    several = {name: (dtype, [3, 2], bytes(6 * widths[dtype])) for name, dtype in
               {"a.weight": "F64", "a.bias": "F32", "b": "BF16", "c": "U8"}.items()}
    put("safetensors", "several", safetensors(several, {}))
    put("safetensors", "no_elements", safetensors({"none": ("F32", [0, 7], b""), "one": ("U8", [1], b"x")}))
    put("safetensors", "foreign", safetensors({"u": ("U64", [1], bytes(8))}, spaces=False))
    # Found: a message that would have sent the key's escape sequence to the terminal.
    hostile = json.dumps({"x": {"\x1b[2J\0": []}}).encode()
    put("safetensors", "control_characters", struct.pack("<Q", len(hostile)) + hostile)
    put("safetensors", "overflow", safetensors({"x": ("F32", [1 << 62, 4], b"")}))


def state(numbers, texts, step=12):
    return (json.dumps({"step": step, "epoch": 1, "batches": 3, "numbers": dict(sorted(numbers.items())),
                        "texts": dict(sorted(texts.items()))}, indent=1, ensure_ascii=False) + "\n").encode()


def manifest(files):
    return (json.dumps({"format": "halftone checkpoint", "version": 1,
                        "files": [{"name": name, "bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}
                                  for name, data in files.items()]}, indent=1) + "\n").encode()


def make_checkpoint():
    rich = ({"loss": 0.25, "best \"so\" far": -0.0, "small": 5e-324, "lost": "nan", "most": "-inf"},
            {"strategy": "fp32", "note": "line\n\u00fc"})
    model = safetensors({"weight": ("F32", [2], bytes(8))}, {"format": "pt"})
    others = safetensors({"optimizer.step": ("F64", [1], bytes(8))}, {"format": "pt"})
    misplaced = safetensors({"model.weight": ("F32", [], bytes(4))}, {"format": "pt"})
    files = {"model.safetensors": model, "optimizer.safetensors": others, "state.json": state(*rich)}
    put("checkpoint", "state", state({}, {}))
    put("checkpoint", "rich_state", state(*rich))
    put("checkpoint", "manifest", manifest(files))
    # Found: a float beyond 64 bits was converted to an integer.
    put("checkpoint", "large_number", state({}, {}, 1e300))

    def directory(name, content):
        """content: bytes by step. The target makes a directory of those whose checksum is a multiple of 8."""
        put("checkpoint", name, next(data for step in range(1000) if zlib.crc32(data := content(step)) % 8 == 0))

    directory("directory", lambda step: SEPARATOR.join(
        [manifest(files | {"state.json": state(*rich, step)}), state(*rich, step), model, others]))
    directory("fitting", lambda step: SEPARATOR.join([b"", state({}, {}, step), model, others]))
    directory("misplaced", lambda step: SEPARATOR.join([b"", state({}, {}, step), model, misplaced]))


def make_csv():
    put("csv", "plain", b"a,b,kind\n1,2.5,x\n-3e4,nan,y\n")
    put("csv", "quotes", b'"a ""b""","c, d"\r\n"1\n2",3\r\n')
    put("csv", "semicolons", b";x;y\n1;2;3\n")
    put("csv", "mark", b"\xef\xbb\xbfa,b\n\n1,2")
    put("csv", "open_quote", b'a,b\n"1,2')
    put("csv", "ragged", b"a,b\n1\n")


def make_tokenizer():
    vocabulary, merges = (PAIRS / "vocab.json").read_bytes(), (PAIRS / "merges.txt").read_bytes()
    text = "It's 12 o'clock,   we'll\tsee \u00fc\u4e2d\U0001f600\n".encode()
    put("tokenizer", "files", SEPARATOR.join([vocabulary, merges, text]))
    put("tokenizer", "merges", SEPARATOR.join([b"", merges, text + b"\x80\xff\xfe"]))
    # Found: bytes after a zero byte were never looked at.
    put("tokenizer", "zero_byte", SEPARATOR.join([vocabulary.rstrip() + b"\0{", b"", b""]))
    put("tokenizer", "short", SEPARATOR.join([b"", b"a a\naa a\r\na b\n", b"aaab aaaa aab"]))


def png(width, depth, colour, row, *chunks):
    """One row of pixels; the chunks stand before them."""
    text = b"\x89PNG\r\n\x1a\n"
    header = (b"IHDR", struct.pack(">IIBBBBB", width, 1, depth, colour, 0, 0, 0))
    for kind, data in (header, *chunks, (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")):
        text += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return text


def make_image():
    # Found: pixels that point beyond the palette showed what the decoder's stack held.
    put("image", "short_palette.png", png(8, 8, 3, bytes(range(0, 256, 32)), (b"PLTE", b"\1\2\3")))
    # Found: the four bytes of an unknown kind went into a message as they were.
    put("image", "unknown_chunk.png", png(1, 8, 0, b"x", (b"P\x1bc\0", b"")))


def policy(**entries):
    return json.dumps({"halftone_policy": 1, "name": "p"} | entries, ensure_ascii=False).encode()


def make_policy_file():
    # The shipped ones, which run.sh takes, lack some words of the grammar.
    put("policy_file", "small", policy())
    put("policy_file", "quantizers", policy(
        formats={"f": {"exponent": 3, "fraction": 2, "max": 28, "infinity": False, "subnormals": False}},
        quantizers={"a": {"about": "\u00fc", "format": "f", "rounding": "stochastic", "random_bits": 8, "hadamard": 4,
                          "scale": {"per": "tensor", "from": "history", "history": 3, "take": "latest", "margin": 1,
                                    "power_of_two": True, "least": 0.5}},
                    "b": {"like": "a", "scale": {"per": "block", "block": [2, 16], "format": "e8m0", "rule": "even"}}},
        optimizer={"state_dtype": "f32", "parameters": "int4", "states": {"exp_avg": "b"}}))
    put("policy_file", "rules", policy(rules=[
        {"match": {"op": ["linear", "matmul"], "asks": "low_precision", "path": "h.[0:-1].{a,b_*}.**",
                   "except": ["h.[-1]", "*"], "steps": [3, None]},
         "compute": "f32", "result": "f16", "weight.backward": "as_used", "bias": "none", "optional": True,
         "accumulate": {"format": "e8m13", "rounding": "toward_zero", "chunk": 128}}]))
    put("policy_file", "strategy", policy(
        extends="o2-fp16", weights={"dtype": "f16", "form": "kahan", "fused": False}, autocast=None,
        lists={"preset": "none", "banned": ["softmax"], "as_is": ["linear"]},
        loss_scale={"init": 8, "growth": 4, "backoff": 0.25, "interval": 5, "min": 1, "max": 64, "hysteresis": 2},
        evaluation="reference", seed=2**63 - 1))


for make in (make_idx, make_cifar10, make_safetensors, make_checkpoint, make_csv, make_tokenizer, make_image,
             make_policy_file):
    make()
