"""Reads halftone's vectors, with numpy alone. docs/vectors.md lists the tensors."""
import json
import pathlib
import struct

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent


def read(path):
    """Returns (tensors by name, metadata) of a .safetensors file; f32 tensors and i32 words."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind = {"F32": np.float32, "I32": np.uint32}[entry["dtype"]]
        raw = data[8 + length + begin : 8 + length + end]
        tensors[name] = np.frombuffer(raw, kind).reshape(entry["shape"])
    return tensors, metadata


def same(a, b):
    """Returns where two f32 arrays have the same bits; every NaN counts as the same."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))


class Report:
    """Prints a line for each comparison, with the first difference."""

    def __init__(self, library):
        self.library, self.differing = library, 0

    def compare(self, what, x, expected, got, why=""):
        differs = ~same(expected, got)
        count = int(differs.sum())
        self.differing += count
        line = f"{what:28} {x.size:6} inputs, {count:5} differ"
        if count:
            i = np.argwhere(differs.reshape(-1))[0, 0]
            values = [float(np.asarray(v, np.float32).reshape(-1)[i]) for v in (x, expected, got)]
            line += "; first: x = {:.9g}: halftone {:.9g}, {} {:.9g}".format(*values[:2], self.library, values[2])
        print(line + (f"  ({why})" if why and count else ""))

    def end(self):
        print(f"{self.library}: {self.differing} differences")
