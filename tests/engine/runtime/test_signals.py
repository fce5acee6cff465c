import signal

import pytest

from tests.helpers.launcher import python

STRUCK = """
import signal, time
import tensorflow as tf
from nnlo_opt.engine.runtime.signals import handle

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
n_heard = 0

def hear(*_):
    global n_heard
    n_heard += 1

handle(signal.SIGALRM, hear)
a, b = tf.ones((100, 5000)), tf.ones((5000, 128))
signal.setitimer(signal.ITIMER_REAL, 5e-4, 5e-4)
until_s = time.monotonic() + 2
while time.monotonic() < until_s:
    # Arrays come and go, so that a heap that is broken is found out.
    result = tf.matmul(a, b).numpy().copy()
signal.setitimer(signal.ITIMER_REAL, 0)
print(n_heard > 20, float(result.min()), float(result.max()))
"""

CRASHES = """
import os, signal
from nnlo_opt.engine.runtime.signals import handle
handle(signal.SIGUSR1, print)
os.abort()
"""


@pytest.mark.proof
@pytest.mark.keras
def test_signals_break_no_matrices_that_are_multiplied():
    done = python(STRUCK)
    assert (done.code, done.out) == (0, "True 5000.0 5000.0\n"), done.err


def test_a_crash_ends_the_process_and_leaves_its_stacks():
    done = python(CRASHES)
    assert done.code == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.err
    assert 'File "<string>", line 5 in <module>' in done.err
