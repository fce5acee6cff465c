"""Handlers of signals in a process that computes: they have a stack of their own, and a crash ends the process.

While oneDNN multiplies matrices for TensorFlow (before its 3.12: github.com/uxlfoundation/oneDNN/issues/4845) the stack
pointer of the thread points into the heap. A signal that is handled there and then breaks the heap, unless the thread
has another stack for signals. `faulthandler` gives one to the main thread, which signals to a process go to, and
Python's handlers run on it (SA_ONSTACK).

It also writes the stacks of a process that crashes, which then dies. Open MPI's handler of crashes, which it installs
where nobody else has when MPI begins, allocates memory to do so: it waits for ever where the heap is what has broken.
"""

import faulthandler
import signal
from collections.abc import Callable
from typing import Any

#: standard error, also when it is turned to the log of a rank
_STDERR = 2


def handle(signum: int, handler: Callable[[int, Any], Any]) -> None:
    """As `signal.signal`, without the harm. From the main thread; before MPI begins, for crashes to end the process."""
    if not faulthandler.is_enabled():
        faulthandler.enable(_STDERR)
    signal.signal(signum, handler)
