"""A controller with training loops of one's own, on ranks of MPI, after Platoon.

>>> from nnlo_opt.controller import EASGD, Controller, Worker, is_controller

Import it before a framework: ranks that mpirun has started then share the cores of their node, unless `OMP_NUM_THREADS`
is set. Wrong calls raise `ConfigurationError`; a worker whose controller has ended gets `ControllerLostError`.
"""

from nnlo_opt.engine.runtime.devices import cap_threads
from nnlo_opt.engine.runtime.launched import is_rank

if is_rank():
    cap_threads()  # NumPy reads it once

from nnlo_opt.controller.channel import EASGD, Controller, Worker, is_controller

__all__ = ["EASGD", "Controller", "Worker", "is_controller"]
