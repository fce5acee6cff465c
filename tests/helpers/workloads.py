"""Workloads of command lines."""

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.workload.workload import ModuleWorkload


def workload_of(*words, program="TrainingDriver"):
    options = driver_options(program, [*map(str, words)])
    return ModuleWorkload(options, ProcessContext(), searches=program == "OptimizationDriver")


def prepared(*words):
    made = workload_of(*words)
    made.prepare()
    return made
