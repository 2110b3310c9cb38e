import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "core" / "formats" / "vectors"))  # read_vectors.py


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed, so its parts are not tested")
