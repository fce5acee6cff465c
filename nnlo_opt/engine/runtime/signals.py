"""Signal handlers on a separate stack, for processes that compute.

While oneDNN multiplies matrices for TensorFlow (before oneDNN 3.12: github.com/uxlfoundation/oneDNN/issues/4845), the
stack pointer of the thread points into the heap. A signal handled at this moment corrupts the heap, unless the thread
has a separate signal stack. `faulthandler` sets one up for the main thread, which receives the signals of a process,
and Python's handlers run on it (SA_ONSTACK).

`faulthandler` also prints the stacks of a crashing process, and lets it end. If there is no crash handler when MPI
starts, Open MPI installs its own. That handler allocates memory, and hangs if the heap is corrupt.
"""

import faulthandler
import signal
from collections.abc import Callable
from typing import Any

#: standard error, even when redirected to the log of a rank
_STDERR = 2


def handle(signum: int, handler: Callable[[int, Any], Any]) -> None:
    """Install `handler` like `signal.signal`, on a separate stack.

    Call it in the main thread, and before MPI starts if crashes should end the process.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(_STDERR)
    signal.signal(signum, handler)
