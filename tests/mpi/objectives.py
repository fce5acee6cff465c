"""Objective modules that tests write into a folder of theirs."""

GOOD = """
from nnlo_opt.space import Real


def objective(parameters, comm, report):
    total = comm.allreduce(parameters["x"])
    for epoch in (1, 2):
        report(epoch, total)
    assert comm.allreduce(1) == comm.Get_size()
    return (parameters["x"] - 0.3) ** 2


objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""

#: one rank raises for half of all points, before, between and after collective calls
RAISING = """
from nnlo_opt.space import Categorical, Real


def objective(parameters, comm, report):
    bad = parameters["x"] > 0.5 and comm.Get_rank() == comm.Get_size() - 1
    if bad and parameters["where"] == "first":
        raise ValueError("raised first")
    comm.Barrier()
    if bad and parameters["where"] == "before a report":
        raise ValueError("raised before a report")
    report(1, 0.0)
    if bad and parameters["where"] == "before a receive":
        raise ValueError("raised before a receive")
    if comm.Get_size() > 1:
        if comm.Get_rank() == comm.Get_size() - 1:
            comm.send(1, dest=0)
        elif comm.Get_rank() == 0:
            comm.recv(source=comm.Get_size() - 1)
    if bad:
        raise ValueError("raised last")
    return parameters["x"]


objective.parameter_range = [
    Real(0.0, 1.0, name="x"),
    Categorical(["first", "before a report", "before a receive", "last"], name="where"),
]
"""

FINITE = """
from nnlo_opt.space import Integer


def objective(parameters, comm, report):
    return float(parameters["n"])


objective.parameter_range = [Integer(1, 5, name="n")]
"""

#: long enough to be killed in the middle
SLOW = """
import time

from nnlo_opt.space import Real


def objective(parameters, comm, report):
    for epoch in (1, 2, 3):
        time.sleep(0.05)
        report(epoch, parameters["x"])
    return (parameters["x"] - 0.3) ** 2


objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""

NOT_A_NUMBER = """
from nnlo_opt.space import Real


def objective(parameters, comm, report):
    return float("nan") if parameters["x"] > 0.5 else "seven" if parameters["x"] > 0.25 else parameters["x"]


objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""

FRAMEWORKS = """
import sys

from nnlo_opt.space import Real


def objective(parameters, comm, report):
    loaded = [name for name in ("keras", "tensorflow", "torch", "jax", "skopt", "h5py") if name in sys.modules]
    if loaded:
        raise RuntimeError(f"loaded: {loaded}")
    return parameters["x"]


objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""
