import os
import signal
import subprocess
import sys

import pytest

from nnlo_opt.engine.runtime.preemption import Preemption


def test_a_request_counts_from_its_first_signal_and_also_before_there_is_a_grace():
    preemption = Preemption()
    assert (preemption.is_asked, preemption.left_s, preemption.is_over) == (False, None, False)
    preemption.ask()
    assert (preemption.is_asked, preemption.left_s) == (True, None)
    preemption.allow(100.0)
    first = preemption.left_s
    assert first is not None
    assert 0 < first <= 100
    preemption.ask()
    assert preemption.left_s <= first
    preemption.end()


def test_a_grace_without_a_request_ends_nothing():
    preemption = Preemption()
    preemption.allow(0.0)
    assert preemption.left_s is None
    assert not preemption.is_over
    preemption.ask()
    assert preemption.is_over
    preemption.end()


def test_the_signal_is_a_request():
    before = signal.getsignal(signal.SIGUSR1)
    preemption = Preemption()
    try:
        preemption.listen()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert preemption.is_asked


def test_a_process_that_does_not_come_to_its_end_is_ended():
    program = (
        "import time; from nnlo_opt.engine.runtime.preemption import Preemption\n"
        "p = Preemption(); p.listen(); p.allow(0.1); print('ready', flush=True)\n"
        "while True: time.sleep(100)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 75
