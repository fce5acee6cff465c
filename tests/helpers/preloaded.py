"""Runs a console command on one rank for every line of standard input, each in a process of its own.

The processes are forked from this one, which has imported what they all need: the modules in its arguments. A line is
{"command": [words], "cwd": folder, "variables": {name: value}, "out": file, "err": file, "modules": file}; answered by
the exit code. `modules` is for the names of what the process had imported when it left.
"""

import atexit
import importlib
import json
import os
import runpy
import sys
from pathlib import Path

from nnlo_opt.cli import main


def python():
    """Run a program, as Python does."""
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


COMMANDS = {
    "OptimizationDriver": main.optimization_driver,
    "TrainingDriver": main.training_driver,
    "nnlo-opt": main.tool,
    "python": python,
}


def become(request):
    """In the forked process: run the command, and leave with its code."""
    os.chdir(request["cwd"])
    os.environ.update(request["variables"])
    for fd, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    atexit.register(lambda: Path(request["modules"]).write_text(json.dumps(sorted(sys.modules))))
    sys.argv = request["command"]
    COMMANDS[sys.argv[0]]()
    sys.exit()


for module in sys.argv[1:]:
    importlib.import_module(module)
assert "mpi4py.MPI" not in sys.modules, "a forked process must initialise MPI itself"
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        become(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
