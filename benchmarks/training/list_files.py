"""Reads the digits that every process of training.py trains on."""

from pathlib import Path

import h5py
import numpy as np


def read(list_file: Path) -> tuple[np.ndarray, np.ndarray]:
    """All samples of the HDF5 files in a list."""
    paths = [list_file.parent / line for line in list_file.read_text().split("\n") if line.strip()]
    files = [h5py.File(path) for path in paths]
    x, y = (np.concatenate([file[name][:] for file in files]) for name in ("features", "labels"))
    return x, y
