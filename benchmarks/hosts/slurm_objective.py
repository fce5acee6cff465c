"""An objective of some seconds, for searches under Slurm; `hosts` in the working directory says where it has run."""

import os
import socket
import time

from nnlo_opt.space import Real


def objective(parameters, comm, report):
    with open("hosts", "a") as file:
        file.write(f"{socket.gethostname()}\n")
    time.sleep(float(os.environ.get("TRIAL_S", "1")))
    return (parameters["x"] - 0.3) ** 2


objective.parameter_range = [Real(0.0, 1.0, name="x")]
