#!/usr/bin/env python3
"""The time of a step by kernel, from NVIDIA's profiler.

usage: ncu --csv --metrics gpu__time_duration.sum PROGRAM... | kernel_times.py STEPS [ROWS]
STEPS: how many steps PROGRAM ran. Prints milliseconds and launches a step, and the share, of the ROWS (default: 25) slowest kernels; kernels
that differ only in template arguments of types count alone. Launches of one-time work (initialization) are in the table, too.
"""

import collections
import csv
import re
import sys

UNITS = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1, "msecond": 1, "s": 1e3, "second": 1e3}


def short(name):
    """The name without the return type, namespaces, arguments and all template arguments after 60 characters."""
    name = re.sub(r"\((?:int|bool|long|unsigned int)\)", "", name)
    name = re.sub(r"^(?:void |static )+", "", name).split("(")[0] or name
    name = re.sub(r"(?:halftone|cuda|at|native|cutlass|cudnn|internal|\(anonymous namespace\)|<unnamed>)::", "", name)
    return name if len(name) <= 110 else name[:107] + "..."


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    steps, rows = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 25
    lines = [line for line in sys.stdin if line.startswith('"')]
    time, launches = collections.Counter(), collections.Counter()
    for row in csv.DictReader(lines):
        if row["Metric Name"] == "gpu__time_duration.sum":
            name = short(row["Kernel Name"])
            time[name] += float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
            launches[name] += 1
    total = sum(time.values())
    if not total:
        print("kernel_times.py: the profiler printed no kernel")
        return 1
    print(f"{total / steps:9.3f} ms a step in kernels, {sum(launches.values()) / steps:.1f} launches")
    for name, value in time.most_common(rows):
        print(f"{value / steps:9.3f} ms {100 * value / total:5.1f} % {launches[name] / steps:7.1f} x  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
