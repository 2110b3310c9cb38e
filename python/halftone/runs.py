"""Runs of halftone-lab on disk."""
import glob
import json
import os

from . import _native


def read_runs(paths):
    """Returns the rows of `halftone-lab table` as a pandas.DataFrame; without pandas, as a list of dicts.

    paths: a folder of a run, a pattern ("runs/*"), or a list of them. Raises FormatError for a path
    without a run.
    """
    found = []
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        path = os.fspath(path)
        found += sorted(glob.glob(path)) or [path]
    rows = [json.loads(line) for line in _native.table(found).splitlines()]
    try:
        import pandas
    except ImportError:
        return rows
    columns = ["run", "policy", "seed", "step", "site", "role", "input", "statistic", "value"]
    return pandas.DataFrame(rows, columns=columns)
