"""Objective of chaos.py: a few short steps, and a line in `evaluations.jsonl` from the call itself."""

import json
import os
import time

from nnlo_opt.space import Integer, Real


def objective(parameters, comm, report):
    began_unix_s = time.time()
    value = 0.0
    for step in range(1, parameters["n_steps"] + 1):
        time.sleep(parameters["step_s"])
        # Every rank of the block takes part, and the value is the same however many there are.
        value = max(comm.allgather(parameters["x"] / step))
        report(step, value)
    if comm.Get_rank() == 0:
        note({"point": parameters, "value": value, "began_unix_s": began_unix_s, "ended_unix_s": time.time()})
    return value


objective.parameter_range = [
    Real(0.0, 1.0, name="x"),
    Integer(1, 4, name="n_steps"),
    Real(0.02, 0.08, name="step_s"),
]


def note(values):
    """One write of one line: a process that is killed leaves it whole or not at all."""
    line = json.dumps(values, default=float) + "\n"
    fd = os.open("evaluations.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(fd, line.encode())
    os.close(fd)
