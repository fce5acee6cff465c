"""Platoon's interface over MPI: a controller, and workers with your own training loops.

>>> from nnlo_opt.controller import EASGD, Controller, Worker, is_controller

Import it before any framework, so that ranks of a node divide its cores, unless `OMP_NUM_THREADS` is set. Invalid calls
raise `ConfigurationError`; `ControllerLostError` is raised in a worker whose controller has ended.
"""

from nnlo_opt.engine.runtime.devices import cap_threads
from nnlo_opt.engine.runtime.launched import is_rank

if is_rank():
    cap_threads()  # NumPy reads the variable only once

from nnlo_opt.controller.channel import EASGD, Controller, Worker, is_controller

__all__ = ["EASGD", "Controller", "Worker", "is_controller"]
