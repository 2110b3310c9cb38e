#!/usr/bin/env python3
"""Registers, shared memory and spills of every CUDA kernel, as ptxas reports them; the table of docs/gpu_kernels.md.

usage: kernel_report.py [--architecture 90] [--include BUILD/include] [--all]
Without --all: prints the largest kernel of each file, and every kernel that spills.

       kernel_report.py --instructions BUILD [--all]
Counts the machine code (SASS) of the kernels in BUILD's objects, by file or, with --all, by kernel. Needs cuobjdump and
nvdisasm (packages cuda-cuobjdump and cuda-nvdisasm, or nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm of PyPI).

       kernel_report.py --hot [--architecture 80,86,89,90]
Compiles the files whose kernels take most of a training step, and counts their machine code for each architecture, without
the kernels for f64, integers and strided tensors.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def kernels_of(source, architecture, include):
    command = ["nvcc", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xptxas=-v", "-cubin", "-o", "/dev/null",
               f"-gencode=arch=compute_{architecture},code=sm_{architecture}", f"-I{include}", str(source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    text = subprocess.run(["c++filt"], check=True, input=text, capture_output=True, text=True).stdout
    entry = None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(.*)' for", line):
            entry = {"name": found[1], "spill": 0, "stack": 0}
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            entry["stack"], entry["spill"] = int(found[1]), int(found[2]) + int(found[3])
        elif found := re.search(r"Used (\d+) registers", line):
            entry["registers"] = int(found[1])
            shared = re.search(r"(\d+) bytes smem", line)
            entry["shared"] = int(shared[1]) if shared else 0
            yield entry


def short(name):
    """Returns a name without namespaces and the argument list."""
    name = re.sub(r"halftone::|cuda::|\(anonymous namespace\)::|<unnamed>::", "", name)
    name = re.sub(r"^void ", "", name)
    return re.sub(r"\(.*", "", name)


# The counts of the machine code: a column's title, and the opcodes.
COLUMNS = {
    "instructions": r"",
    "loads of 16 bytes": r"LD[GS]\.(\S+\.)?128",
    "other loads": r"LD[GS](?!\S*128)",
    "stores of 16 bytes": r"ST[GS]\.(\S+\.)?128",
    "other stores": r"ST[GS](?!\S*128)",
    "local memory": r"(LDL|STL)",
    "tensor cores": r"[HID]MMA",
    "fused": r"[FD]FMA",
    "products and sums": r"[FD](MUL|ADD)",
    "approximations": r"MUFU",
}


def instructions_of(path):
    """Returns the counts of COLUMNS by kernel."""
    text = subprocess.run(["cuobjdump", "-sass", str(path)], check=True, capture_output=True, text=True).stdout
    text = subprocess.run(["c++filt"], check=True, input=text, capture_output=True, text=True).stdout
    kernels, counts = {}, None
    for line in text.splitlines():
        if found := re.match(r"\s*Function : (.*)", line):
            counts = kernels.setdefault(short(found[1]), dict.fromkeys(COLUMNS, 0))
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(\S+).*;", line):
            for title, pattern in COLUMNS.items():
                counts[title] += re.match(pattern, found[1]) is not None and found[1] != "NOP"
    return kernels


HOT = ["attention", "elementwise", "layer_norm", "matmul", "optimizer", "softmax"]
# Kernels that a training step in f32, f16 or bf16 does not run.
RARE = re.compile(r"[<, ](double|long|int|unsigned)|strided|^prepare_kernel")


def print_hot(architectures, include):
    print("| file | sm | kernels | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 3))
    with tempfile.TemporaryDirectory() as folder:
        for file in HOT:
            for architecture in architectures:
                path = pathlib.Path(folder) / "kernels.cubin"
                subprocess.run(["nvcc", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-cubin", "-o", str(path), f"-I{include}",
                                f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
                                str(ROOT / f"backends/cuda/{file}.cu")], check=True)
                kernels = [counts for name, counts in instructions_of(path).items() if not RARE.search(name)]
                row = [f"{file}.cu", architecture, len(kernels), *(sum(c[title] for c in kernels) for title in COLUMNS)]
                print("| " + " | ".join(map(str, row)) + " |", flush=True)


def print_instructions(build, every):
    objects = sorted(pathlib.Path(build).glob("backends/CMakeFiles/halftone_backends_cuda.dir/cuda/*.cu.o"))
    titles = ["file", "kernels"] + (["kernel"] if every else []) + list(COLUMNS)
    print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    for path in objects:
        file, kernels = path.name.removesuffix(".o"), instructions_of(path)
        if every:
            rows = [[file, len(kernels), f"`{name}`", *counts.values()] for name, counts in kernels.items()]
        else:
            rows = [[file, len(kernels), *(sum(c[title] for c in kernels.values()) for title in COLUMNS)]]
        for row in rows if kernels else []:
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--architecture", default="90")
    parser.add_argument("--include", default=str(ROOT / "build/release/include"))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--instructions", metavar="BUILD")
    parser.add_argument("--hot", action="store_true")
    a = parser.parse_args()
    if a.hot:
        return print_hot(a.architecture.split(","), a.include)
    if a.instructions:
        return print_instructions(a.instructions, a.all)
    print(f"sm_{a.architecture}\n\n| file | kernels | kernel | registers | shared bytes | stack bytes | spilled bytes |")
    print("|---|---|---|---|---|---|---|")
    for source in sorted((ROOT / "backends/cuda").glob("*.cu")):
        kernels = list(kernels_of(source, a.architecture, a.include))
        if not kernels:
            continue
        largest = max(kernels, key=lambda k: k["registers"])
        shown = kernels if a.all else [largest] + [k for k in kernels if k["spill"] and k is not largest]
        for k in shown:
            print(f"| {source.name} | {len(kernels)} | `{short(k['name'])}` | {k['registers']} | {k['shared']} | "
                  f"{k['stack']} | {k['spill']} |", flush=True)


if __name__ == "__main__":
    main()
