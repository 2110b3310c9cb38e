#!/usr/bin/env python3
"""Joins files that HALFTONE_PTX_COVERAGE made: which kernels ran, which of their instructions never did.

usage: coverage.py [--missing] FILE...
Prints kernels that ran, of all, and for each source file its executed instructions. --missing lists the instructions
that no run executed, by kernel."""
import re
import sys


def read(paths):
    """By kernel: launches, and by place the count and the text of an instruction."""
    kernels = {}
    for path in paths:
        current = None
        for line in open(path, encoding="utf-8"):
            words = line.rstrip("\n").split(" ", 2)
            if words[0] == "kernel":
                name, launches = words[1], int(words[2].split()[0])
                current = kernels.setdefault(name, [0, {}])
                current[0] += launches
            elif words[0].isdigit() and current is not None:
                place = int(words[1])
                count = current[1].get(place, (0, ""))[0]
                current[1][place] = (count + int(words[0]), words[2])
    return kernels


def source_of(name):
    """The .cu file that nvcc puts into the name of an anonymous namespace."""
    found = re.search(r"_[0-9a-f]{8}_\d+_(\w+?)_cu_[0-9a-f]{8}", name)
    return found.group(1) + ".cu" if found else "headers"


def main():
    paths = [a for a in sys.argv[1:] if not a.startswith("--")]
    if not paths:
        sys.exit(__doc__)
    kernels = read(paths)
    ran = {name: k for name, k in kernels.items() if k[0] > 0}
    files = {}
    for name, (_, code) in ran.items():
        counts = files.setdefault(source_of(name), [0, 0, 0])
        counts[0] += 1
        counts[1] += sum(1 for count, _ in code.values() if count)
        counts[2] += len(code)
    print(f"{len(ran)} of {len(kernels)} kernels ran")
    for file, (count, executed, of) in sorted(files.items()):
        print(f"{file:28} {count:4} kernels  {executed:7} of {of:7} instructions  {100 * executed / of:5.1f} %")
    total = [sum(c[n] for c in files.values()) for n in range(3)]
    print(f"{'all':28} {total[0]:4} kernels  {total[1]:7} of {total[2]:7} instructions  {100 * total[1] / max(total[2], 1):5.1f} %")
    for name in sorted(set(kernels) - set(ran)):
        print("never ran:", name)
    if "--missing" in sys.argv:
        for name, (_, code) in sorted(ran.items()):
            for place, (count, text) in sorted(code.items()):
                if count == 0:
                    print(f"{name} {place} {text}")


main()
