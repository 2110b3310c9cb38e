"""Compares IEEE P3109's formats with the value tables of the working group, and their rounding with gfloat.

    git clone https://github.com/P3109/Public
    python check_p3109.py Public build/release/tools/halftone-lab
    python check_p3109.py gfloat                                 # needs the Python module and gfloat 0.5

The first reads the tables (504 formats, 8 million codes) and `halftone-lab vectors FORMAT --table`,
compares them in exact rationals, and prints how many differ. The second rounds numbers of all sizes,
midpoints and their neighbors to every format that tensors can have. gfloat rounds negative numbers in
unsigned formats, and what a finite format cannot hold, as the standard does not; these are left out.
Both take some minutes.
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


def numbers_for(info, gfloat, np, rng):
    """Floats from below the smallest number to above the largest, and every kind of tie."""
    exponents = rng.uniform(np.log2(float(info.smallest)) - 3, min(np.log2(float(info.max)) + 2, 127.9), 1500)
    codes = rng.integers(0, 2**info.k, 200)
    grid = np.array([gfloat.decode_float(info, int(code)).fval for code in codes])
    grid = np.sort(grid[np.isfinite(grid)])
    ties = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    signs = rng.choice([-1, 1], exponents.size)
    x = np.concatenate([np.exp2(exponents) * signs, grid, ties, np.nextafter(ties, np.float32(np.inf)),
                        [0.0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    return x if info.is_signed else np.abs(x)


def compare_roundings():
    import gfloat
    import gfloat.formats
    import halftone as ht
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    modes = {"nearest_even": gfloat.RoundMode.TiesToEven, "nearest_away": gfloat.RoundMode.TiesToAway,
             "toward_zero": gfloat.RoundMode.TowardZero, "up": gfloat.RoundMode.TowardPositive,
             "down": gfloat.RoundMode.TowardNegative}
    signs = {"s": gfloat.Signedness.Signed, "u": gfloat.Signedness.Unsigned}
    domains = {"e": gfloat.Domain.Extended, "f": gfloat.Domain.Finite}
    formats = numbers = different = 0
    for k, p, s, d in ((k, p, s, d) for k in range(3, 17) for p in range(1, k) for s in signs for d in domains):
        name = f"binary{k}p{p}{s}{d}"
        try:
            ht.quantize(torch.zeros(1), {"format": name})
        except ValueError:
            continue  # its exponents do not fit into f32
        info = gfloat.formats.format_info_p3109(k, p, signs[s], domains[d])
        x = numbers_for(info, gfloat, np, rng)
        formats += 1
        for rounding, mode in modes.items():
            for overflow in ("saturate",) if d == "f" else ("saturate", "infinity"):
                y = ht.quantize(torch.from_numpy(x), {"format": name, "rounding": rounding, "overflow": overflow})
                z = gfloat.round_ndarray(info, x.astype(np.float64), mode, sat=overflow == "saturate")
                numbers, different = numbers + x.size, different + int((y.numpy() != z).sum())
    print(f"{formats} formats, {numbers} numbers: {different} differ")
    return different


if __name__ == "__main__":
    if sys.argv[1] == "gfloat":
        sys.exit(1 if compare_roundings() else 0)
    sys.exit(1 if compare_tables(Path(sys.argv[1]) / "Value Tables" / "Hexadecimal", sys.argv[2]) else 0)
