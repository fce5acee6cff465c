"""Objective of chaos_join.py: that of chaos.py, slower, and one point of it kills its process."""

import json
import os
import signal
import time
from pathlib import Path

from chaos_objective import note
from chaos_objective import objective as quick


def objective(parameters, comm, report):
    setting = json.loads(Path("setting.json").read_text())
    began_unix_s = time.time()
    if parameters["x"] == setting["poison"]:
        os.kill(os.getpid(), signal.SIGKILL)
    value = 0.0
    for step in range(1, parameters["n_steps"] + 1):
        time.sleep(setting["slower"] * parameters["step_s"])
        value = max(comm.allgather(parameters["x"] / step))
        report(step, value)
    if comm.Get_rank() == 0:
        note({"point": parameters, "value": value, "began_unix_s": began_unix_s, "ended_unix_s": time.time()})
    return value


objective.parameter_range = quick.parameter_range
