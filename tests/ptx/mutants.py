#!/usr/bin/env python3
"""Changes one instruction of a compiled kernel at a time, and says how many of the changes a test program finds.

usage: mutants.py PROGRAM FAMILY [COUNT] [SEED]
       mutants.py PROGRAM FILE PATTERN [COUNT] [SEED]
PROGRAM is halftone_ptx_tests. FAMILY is one of FAMILIES below: a file of tests and a regular expression for the names of
kernels; FILE and PATTERN give others. COUNT (40) changes are drawn from the instructions that these tests execute: each is
dropped, has two operands swapped or its guard inverted. A change is found if the program fails, or takes ten times as long.
The tests stop at the first failure, and grids have two blocks. A change that was not found is printed.
Example: mutants.py build/release/tests/ptx/halftone_ptx_tests table"""
import os
import random
import re
import subprocess
import sys
import tempfile
import time

FAMILIES = {
    "table": ("moves_test.cpp", "_indexing_cu_"),
    "reduction": ("reductions_test.cpp", "_reduction_cu_"),
    "optimizer": ("update_test.cpp", "_optimizer_cu_"),
    "quantize": ("quantize_test.cpp", "_quantize_cu_"),
    "convolution": ("conv_test.cpp", "_conv_cu_|(add_splits|columns|narrow|narrow_deep|product)_kernel"),
    "attention": ("attention_test.cpp", "_attention_cu_"),
}
# Swapped values of these are another result.
ORDERED = re.compile(r"(sub|div|rem|selp|shl|shr|setp\.(lt|le|gt|ge)u?|fma|mad)\.")


# Grids of two blocks: kernels walk in grid strides then. Each tensor has its own allocation, so accesses after its end are found.
SETTING = {"HALFTONE_CUDA_LIBRARIES": "off", "HALFTONE_TEST_BACKENDS": "cuda", "OMP_NUM_THREADS": "1", "HALFTONE_PTX_BLOCKS": "2", "HALFTONE_CUDA_CACHE": "off"}
HIGH_WORD = re.compile(r"and\.b64 \S+ \S+ -4294967296")


def run(program, filter_, variables, limit):
    command = [program, "--source-file=*/tests/kernels/" + filter_, "--abort-after=1"]
    try:
        return subprocess.run(command, env=os.environ | SETTING | variables, timeout=limit,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    except subprocess.TimeoutExpired:
        return 124


def executed(path, pattern):
    """Every instruction that was executed, of the kernels that are wanted."""
    found, kernel, chooses = [], "", 0
    for line in open(path, encoding="utf-8"):
        words = line.rstrip("\n").split(" ", 2)
        if words[0] == "kernel":
            kernel = words[1]
        elif words[0].isdigit():
            # Quotients of 64 bits are computed with 32 where the numbers allow it: either way is right.
            chooses = 3 if HIGH_WORD.match(words[2]) else chooses - 1
            if chooses == 3 and found and found[-1][2].startswith("or.b64"):
                found.pop()
            if int(words[0]) > 0 and chooses <= 0 and re.search(pattern, kernel):
                found.append((kernel, words[1], words[2]))
    return found


def kinds_of(text):
    guard, rest = re.match(r"(@!?%\w+\s+)?(.*)", text, re.S).groups()
    # Registers start with all bits set.
    kinds = [] if re.match(r"ret|mov\.[bus]\d+ \S+, -1$", rest) else ["drop"]
    values = [part.strip() for part in rest.split(",")][-2:]
    swaps = ORDERED.match(rest) and len(set(values)) == 2
    return kinds + (["invert"] if guard else []) + (["swap"] if swaps else [])


def main():
    arguments = sys.argv[1:]
    if len(arguments) < 2 or (arguments[1] not in FAMILIES and len(arguments) < 3):
        sys.exit(__doc__)
    program, family = arguments[:2]
    numbers = 2 if family in FAMILIES else 3
    filter_, pattern = FAMILIES.get(family) or arguments[1:3]
    count, seed = (int(x) for x in (arguments[numbers:] + ["40", "1"][len(arguments) - numbers:])[:2])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "coverage")
        start = time.monotonic()
        if run(program, filter_, {"HALFTONE_PTX_COVERAGE": path}, 3600) != 0:
            sys.exit("the tests fail without a change")
        limit = 10 * (time.monotonic() - start) + 10
        all_changes = [(k, place, text, kind) for k, place, text in executed(path, pattern) for kind in kinds_of(text)]
    drawn = random.Random(seed).sample(all_changes, min(count, len(all_changes)))
    found = 0
    for kernel, place, text, kind in drawn:
        if run(program, filter_, {"HALFTONE_PTX_MUTANT": f"{kernel} {place} {kind}"}, limit) != 0:
            found += 1
        else:
            print(f"not found: {kind} {place} `{text}` in {kernel}", flush=True)
    print(f"{family}: {found} of {len(drawn)} changes found ({100 * found / max(len(drawn), 1):.0f} %), seed {seed}", flush=True)


main()
