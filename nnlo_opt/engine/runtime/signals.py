"""Signal handlers of a process that computes, which run on a stack of their own.

While oneDNN multiplies matrices for TensorFlow (before oneDNN 3.12: github.com/uxlfoundation/oneDNN/issues/4845), the
stack pointer of the thread points into the heap. A signal that is handled at this moment breaks the heap, unless the
thread has another stack for signals. `faulthandler` gives this stack to the main thread, which receives the signals of
a process, and Python's handlers run on it (SA_ONSTACK).

`faulthandler` also writes the stacks of a process that crashes, and lets it end. Open MPI installs a crash handler of
its own if there is none when MPI starts. That handler allocates memory: it waits for ever if the heap is broken.
"""

import faulthandler
import signal
from collections.abc import Callable
from typing import Any

#: standard error, also when it goes to the log of a rank
_STDERR = 2


def handle(signum: int, handler: Callable[[int, Any], Any]) -> None:
    """Install `handler` like `signal.signal`, on a separate stack.

    Call it in the main thread, and before MPI starts if crashes should end the process.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(_STDERR)
    signal.signal(signum, handler)
