"""Objectives that start processes by `multiprocessing` in new interpreters, which import the objective's module."""

import os

import pytest

from tests.helpers import launcher
from tests.helpers.launcher import results_of
from tests.helpers.objective_runs import search

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

OBJECTIVE = """
import concurrent.futures, multiprocessing
from dataclasses import dataclass
IMPORTS
from nnlo_opt.space import Real

@dataclass
class Item:
    x: float

def doubled(item):
    return Item(2 * item.x)

def objective(x):
    total = 0.0
    for how in ("spawn", "forkserver"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            total += sum(item.x for item in pool.map(doubled, [Item(x), Item(1.0)]))
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return total - sum(item.x for item in pool.map(doubled, [Item(x)])) - 2 * x

objective.parameter_range = [Real(0, 1, name="x")]
"""
FROM_PYTHON = """
import sys
import nnlo_opt
if __name__ == "__main__":
    result = nnlo_opt.optimize("objective.py", num_iterations=2, n_parallel=int(sys.argv[1]))
    print(result.figure_of_merit)
"""


@pytest.mark.parametrize("n_ranks", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_processes_of_an_objective_find_its_module(tmp_path, n_ranks):
    # A module that imports MPI does not join the job in such a process.
    text = OBJECTIVE.replace("IMPORTS", "from mpi4py import MPI; MPI.COMM_WORLD.Get_size()" if n_ranks > 1 else "")
    search(tmp_path, text, n_ranks, "--num-iterations", "1")
    (row,) = results_of(tmp_path / "checkpoints/S")
    assert float(row["figure_of_merit"]) == pytest.approx(4.0)


@pytest.mark.parametrize("n_parallel", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_processes_of_an_objective_of_a_script_find_its_module(tmp_path, n_parallel):
    (tmp_path / "objective.py").write_text(OBJECTIVE.replace("IMPORTS", ""))
    (tmp_path / "script.py").write_text(FROM_PYTHON)
    python = os.path.join(launcher.BIN, "python")
    done = launcher.run(1, [python, "script.py", str(n_parallel)], tmp_path)
    assert float(done.out.split()[-1]) == pytest.approx(4.0)


LOADS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, x):
        self.x = x
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return self.x + i

def objective(x):
    batches = DataLoader(Numbers(x), 2, num_workers=2, multiprocessing_context="spawn")
    return sum(float(batch.sum()) for batch in batches)
"""


@pytest.mark.needs("torch")
def test_workers_of_a_data_loader_find_its_data_set(tmp_path):
    space = "from nnlo_opt.space import Constant\nparameter_range = [Constant(2.0, name='x')]"
    (tmp_path / "space.py").write_text(space)
    search(tmp_path, LOADS, 1, "--num-iterations", "1", "--search-space", "space.py")
    (row,) = results_of(tmp_path / "checkpoints/S")
    assert float(row["figure_of_merit"]) == 14.0
