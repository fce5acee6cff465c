"""What ranks run in test_optimize_ranks.py: `mpirun python search_scripts.py NAME,...`, as in a user's own script."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import nnlo_opt
from nnlo_opt.core.base.errors import NnloError

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
SPACE = {"x": nnlo_opt.Real(-5, 5)}
FEW = {"num_iterations": 6, "hyper_opt": "random"}


def same(value):
    """`value`, which all ranks must have."""
    values = COMM.allgather(value)
    assert all(other == values[0] for other in values), values
    return value


def everybody_searches(block_size=2):
    sizes = []

    def objective(parameters, comm, report):
        sizes.append(1 if comm is None else comm.Get_size())
        total = parameters["x"] if comm is None else comm.allreduce(parameters["x"]) / comm.Get_size()
        return (total - 2) ** 2 if report(1, total) else np.inf

    result = nnlo_opt.optimize(objective, SPACE, block_size=block_size, **FEW)
    same([trial.parameters for trial in result.trials])
    same((result.figure_of_merit, result.ended_because))
    assert len(result.trials) == 6
    assert result.directory is None
    assert result.is_root == (RANK == 0)
    # Rank 0 coordinates, unless it is alone.
    assert sizes == [] if RANK == 0 < SIZE - 1 else set(sizes) == {min(block_size, max(1, SIZE - 1))}
    return result


def in_blocks_of_one():
    everybody_searches(block_size=1)


def a_run_is_kept_and_resumed():
    def objective(parameters):
        return parameters["x"] ** 2

    run = {"checkpoint": Path("kept/run"), "hyper_opt": "random"}
    first = nnlo_opt.optimize(objective, SPACE, num_iterations=6, **run)
    same(first.directory)
    resumed = nnlo_opt.optimize(objective, SPACE, num_iterations=9, opt_restore=True, **run)
    assert [trial.parameters for trial in resumed.trials[:6]] == [trial.parameters for trial in first.trials]
    assert len(resumed.trials) == 9


def an_exception_reaches_every_rank_and_the_next_search_works():
    def raises(parameters, comm, report):
        if comm is None or comm.Get_rank() == comm.Get_size() - 1:
            raise ZeroDivisionError("too small")
        return 1.0

    # The rank that raised gets its own exception.
    kind = ZeroDivisionError if RANK == SIZE - 1 else NnloError
    with pytest.raises(kind, match="too small"):
        nnlo_opt.optimize(raises, SPACE, catch=False, **FEW)
    result = nnlo_opt.optimize(raises, SPACE, catch=True, **FEW)
    assert {trial.state.value for trial in result.trials} == {"failed"}
    everybody_searches()


def a_trial_is_the_same_on_all_its_ranks():
    def objective(x, trial):
        comm = trial.comm
        mine = (trial.number, str(trial.directory), trial.directory.is_dir(), trial.report(1, x), trial.should_prune())
        theirs = [mine] if comm is None else comm.allgather(mine)
        return x if theirs == [mine] * len(theirs) and mine[2:] == (True, True, False) else np.nan

    result = nnlo_opt.optimize(objective, SPACE, block_size=2, **FEW)
    assert {trial.state.value for trial in result.trials} == {"complete"}, [trial.reason for trial in result.trials]


def processes_of_ones_own_are_refused():
    with pytest.raises(NnloError, match="Received: `n_parallel=2` under mpirun, whose ranks run the trials"):
        nnlo_opt.optimize(lambda p: 1.0, SPACE, n_parallel=2, **FEW)


def on_a_communicator_of_ones_own():
    part = COMM.Split(0 if RANK < 2 else 1, RANK)
    result = nnlo_opt.optimize(lambda p: p["x"] ** 2, SPACE, comm=part, seed=part.Get_size(), **FEW)
    assert len(result.trials) == 6
    part.Free()


def a_keras_model():
    if RANK == 0:
        rng = np.random.default_rng(0)
        for name in ("train", "val"):
            x = rng.normal(size=(200, 2)).astype(np.float32)
            with h5py.File(f"{name}.h5", "w") as file:
                file["features"], file["labels"] = x, np.eye(2, dtype=np.float32)[(x.sum(axis=1) > 0).astype(int)]
    COMM.Barrier()
    space = {"n_units": nnlo_opt.Integer(4, 8), "train.learning_rate": nnlo_opt.Real(0.01, 0.1)}
    options = {"num_iterations": 2, "hyper_opt": "random", "epochs": 3, "batch": 20, "checkpoint": "keras/run"}
    result = nnlo_opt.optimize(get_model, space, **options)
    same(result.figure_of_merit)
    assert {trial.state.value for trial in result.trials} == {"complete"}, [trial.reason for trial in result.trials]
    assert result.figure_of_merit < 0.4
    assert list(result.directory.glob("*.keras"))


def get_train():
    return ["train.h5"]


def get_val():
    return ["val.h5"]


def get_model(n_units):
    import keras

    layers = [keras.layers.Dense(n_units, "tanh"), keras.layers.Dense(2, "softmax")]
    return keras.Sequential([keras.Input((2,)), *layers])


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        globals()[name]()
        if RANK == 0:
            print(f"{name} is done", flush=True)
