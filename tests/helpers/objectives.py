"""Objective modules that tests write into a folder of theirs."""

HEAD = """
import math
import os
import sys
import time

import numpy as np
from nnlo_opt.space import Categorical, Integer, Real, When


def objective(parameters, comm, report):"""


def module(body: str, *dimensions: str) -> str:
    """Return a module with an objective that does `body`, which is indented; without `dimensions`, of x in 0..1."""
    space = ", ".join(dimensions or ['Real(0.0, 1.0, name="x")'])
    return f"{HEAD}{body}\n\nobjective.parameter_range = [{space}]\n"


GOOD = module("""
    total = comm.allreduce(parameters["x"])
    for epoch in (1, 2):
        report(epoch, total)
    assert comm.allreduce(1) == comm.Get_size()
    return (parameters["x"] - 0.3) ** 2
""")

#: one rank raises for half of all points, before, between and after collective calls
RAISING = module(
    """
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
""",
    'Real(0.0, 1.0, name="x")',
    'Categorical(["first", "before a report", "before a receive", "last"], name="where")',
)

#: reports nine epochs unless it is told to stop
CURVES = module("""
    for epoch in range(1, 10):
        comm.Barrier()
        if not report(epoch, parameters["x"] + 1 / epoch):
            return None
    return parameters["x"]
""")

FINITE = module('\n    return float(parameters["n"])\n', 'Integer(1, 5, name="n")')

#: long enough to be killed in the middle
SLOW = module("""
    for epoch in (1, 2, 3):
        time.sleep(0.05)
        report(epoch, parameters["x"])
    return (parameters["x"] - 0.3) ** 2
""")

#: the same, with collective calls, and without reports that would be waited for
SLOW_TOGETHER = module("""
    for _ in range(5):
        time.sleep(0.03)
        assert comm.allreduce(1) == comm.Get_size()
    report(1, parameters["x"])
    return (parameters["x"] - 0.3) ** 2
""")

#: finds its first report in the journal before it makes the second
LIVE = module("""
    report(1, parameters["x"])
    with open("checkpoints/S/journal.jsonl") as journal:
        reports = [line for line in journal if "EpochEnded" in line]
    report(2, parameters["x"])
    return float(len(reports) % 2)
""")

NOT_A_NUMBER = module("""
    return float("nan") if parameters["x"] > 0.5 else "0.5" if parameters["x"] > 0.25 else parameters["x"]
""")

FRAMEWORKS = module("""
    loaded = [name for name in ("keras", "tensorflow", "torch", "jax", "skopt", "h5py") if name in sys.modules]
    if loaded:
        raise RuntimeError(f"loaded: {loaded}")
    return parameters["x"]
""")

#: what ranks do that do not call the same things, or code that catches what it is told -> why its trial fails
MISUSES = {
    "fine": "",
    "catches a bad report": "a finite number at epoch 1; received: inf",
    "reports on one rank": "rank 0 is in `report` while block rank 1 has returned",
    "reports on another rank": "rank 0 is in `Barrier` while block rank 1 is in `report`",
    "leaves a barrier out": "rank 0 is in `Barrier` while block rank 1 has returned",
    "calls something else": "rank 0 is in `Barrier` while block rank 1 is in `allreduce`",
    "sends to one that raised": "ValueError: raised",
}
MISUSED = module(
    """
    rank, how = comm.Get_rank(), parameters["how"]
    if how == "catches a bad report":
        try:
            report(1, math.inf)
        except Exception:
            pass
        comm.Barrier()
    elif how == "reports on one rank" and rank == 0:
        report(1, 0.5)
    elif how == "reports on another rank" and rank == 1:
        report(1, 0.5)
    elif how == "leaves a barrier out" and rank == 1:
        return 1.0
    elif how == "calls something else":
        comm.allreduce(1) if rank else comm.Barrier()
    elif how == "sends to one that raised":
        if rank == 1:
            raise ValueError("raised")
        if rank == 0:
            comm.Ssend(np.zeros(10), dest=1)
    if how != "reports on one rank":
        comm.Barrier()
    if how == "fine":
        part = comm.Dup().Split(rank, 0)
        assert part.allreduce(1) == 1
        assert comm.sendrecv(rank, rank ^ 1, source=rank ^ 1) == rank ^ 1
        got = np.empty(1)
        comm.Sendrecv(np.full(1, float(rank)), rank ^ 1, recvbuf=got, source=rank ^ 1)
        assert got[0] == rank ^ 1
        report(1, 0.5 if rank == 0 else None)
    return np.array([0.25]) if rank == 0 else None
""",
    f'Categorical({[*MISUSES]}, name="how")',
)

#: a parameter under a condition, and a constraint; 9 feasible points, of which 4 have a momentum
RICH = (
    module(
        """
    assert ("momentum" in parameters) == (parameters["optimizer"] == "sgd")
    assert comm.allreduce(parameters["n"]) == parameters["n"] * comm.size
    return parameters["n"] - parameters.get("momentum", 0)
""",
        'Integer(1, 9, name="n")',
        'Categorical(["sgd", "adam"], name="optimizer")',
        'Integer(1, 2, name="momentum", condition=When("optimizer", "sgd"))',
    )
    + """
LIMIT = 5


def feasible(parameters):
    return parameters["n"] + 2 * parameters.get("momentum", 0) <= LIMIT
"""
)

#: says what each rank has to compute with
SHOWS = module("""
    seen = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TF_FORCE_GPU_ALLOW_GROWTH")]
    with open(f"rank-{comm.rank}.txt", "w") as file:
        print(*seen, file=file)
    return comm.allreduce(parameters["x"])
""")

#: two figures, after EPOCHS reports
TWO = module(
    """
    x = parameters["x"]
    for epoch in range(1, 1 + EPOCHS):
        time.sleep(0.05)
        if not report(epoch, x):
            return None
    return {"here": x * x, "there": (x - 1) ** 2}
""",
    'Real(-1.0, 2.0, name="x")',
)

#: takes SECONDS after its report
STUCK = module(
    """
    report(1, 1.0)
    time.sleep(SECONDS)
    return float(parameters["x"])
""",
    'Integer(0, 1000, name="x")',
)

#: what the last rank does that other trials are not to feel -> why its trial fails; empty if it does not
UNRULY = {
    "fine": "",
    "is cancelled": "CancelledError: enough",
    "ends a generator": "GeneratorExit",
    "exits": "SystemExit: 3",
    "cannot speak": "SpeechlessError: its message raises KeyError",
    "speaks too much": "characters left out",
    "goes elsewhere": "",
    "returns twice": "",
}
UNRULY_OBJECTIVE = (
    module(
        """
    how = parameters["how"] if comm.rank == comm.size - 1 else "fine"
    if how == "is cancelled":
        raise asyncio.CancelledError("enough")
    if how == "ends a generator":
        raise GeneratorExit
    if how == "exits":
        raise SystemExit(3)
    if how == "cannot speak":
        raise SpeechlessError
    if how == "speaks too much":
        raise ValueError("x" * 5_000_000)
    if how == "goes elsewhere":
        os.chdir("/")
    if how == "returns twice" and (child := os.fork()):
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    return 1.0
""",
        f'Categorical({[*UNRULY]}, name="how")',
    )
    + """
import asyncio


class SpeechlessError(Exception):
    def __str__(self):
        raise KeyError
"""
)

#: does at its second call what no run survives
ENDS_ALL = module("""
    calls.append(comm.rank)
    if len(calls) == 2 and comm.rank == int(os.environ.get("UNRULY_RANK", 0)):
        if os.environ["UNRULY"] == "closes":
            os.closerange(3, 64)
        elif os.environ["UNRULY"] == "removes":
            import shutil

            shutil.rmtree("checkpoints/S")
    return parameters["x"]
""").replace("def objective", "calls = []\n\n\ndef objective")

#: leaves a child behind that holds everything open but its output
LEAVES_A_CHILD = module("""
    if not os.path.exists("child"):
        child = os.fork()
        if not child:
            os.closerange(0, 3)
            time.sleep(100)
            os._exit(0)
        open("child", "w").write(str(child))
    return parameters["x"]
""")
