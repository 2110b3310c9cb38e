"""Compares the number of each code with the value tables of IEEE P3109.

    git clone https://github.com/P3109/Public
    python check_p3109.py Public build/release/tools/halftone-lab

Reads the tables of the working group (504 formats, 8 million codes) and `halftone-lab vectors FORMAT
--table`, compares them in exact rationals, and prints how many differ. It takes some minutes.
"""
import csv
import subprocess
import sys
from fractions import Fraction
from pathlib import Path


def exact(text):
    """A value of a table: a hexadecimal float, which may be beyond a double, or Inf or NaN."""
    if text.strip().lower() in ("inf", "-inf", "nan"):
        return text.strip().lower()
    digits, exponent = text.strip().lower().split("p")
    sign = -1 if digits.startswith("-") else 1
    whole, _, fraction = digits.lstrip("-")[2:].partition(".")
    return sign * Fraction(int(whole + fraction, 16)) / 16 ** len(fraction) * Fraction(2) ** int(exponent)


def table_of(lab, name):
    lines = subprocess.run([lab, "vectors", name, "--table"], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return [exact(line.split(",")[1]) for line in lines[1:]]


def compare_tables(folder, lab):
    tables = codes = different = 0
    for path in sorted(folder.rglob("*.csv")):
        with open(path, encoding="utf-8-sig") as file:
            wanted = [exact(row["value"]) for row in csv.DictReader(file)]
        got = table_of(lab, path.stem.lower())
        tables, codes = tables + 1, codes + len(wanted)
        if len(got) != len(wanted):
            sys.exit(f"{path.stem}: {len(got)} codes, the table has {len(wanted)}")
        different += sum(a != b for a, b in zip(got, wanted))
    print(f"{tables} tables, {codes} codes: {different} differ")
    return different


if __name__ == "__main__":
    sys.exit(1 if compare_tables(Path(sys.argv[1]) / "Value Tables" / "Hexadecimal", sys.argv[2]) else 0)
