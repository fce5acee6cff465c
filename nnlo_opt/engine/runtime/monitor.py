"""Load of a rank per epoch (`--monitor`): CPU, memory, its NVIDIA GPU.

A `Monitor` samples its gauges in a daemon thread and summarises them per epoch. The figures:

    cpu_percent      CPU time of the process (all threads, user and system) / time passed; 100: one core the whole time
    memory_mb        resident memory, mean of the samples, in 10^6 bytes
    memory_max_mb    resident memory, maximum of the samples, in 10^6 bytes
    gpu_percent      part of the time in which a kernel ran on the GPU, mean of the samples
    gpu_memory_mb    memory in use on the GPU, mean of the samples, in 10^6 bytes

The CPU figure is exact, not sampled. GPU figures are of the whole device: ranks that share one report the same. Without
a GPU or a working NVIDIA driver only their keys are missing. The driver does not measure the use of a GPU slice (MIG):
there `gpu_percent` is missing.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psutil

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.engine.runtime.nvidia import gauge_of

logger = logging.getLogger(__name__)

_MB = 1e6
#: seconds that `stop` waits for a running reading: a hung driver must not block the rank
_JOIN_TIMEOUT_S = 1.0


class Gauge(Protocol):
    """Reads current figures."""

    def read(self) -> dict[str, float]:
        """Return figures by name, always with the same names. A gauge that raises is not read again."""


class MemoryGauge:
    """Resident memory of this process."""

    def read(self) -> dict[str, float]:
        return {"memory_mb": psutil.Process().memory_info().rss / _MB}


class Monitor:
    """Samples gauges and returns figures per epoch. A process has one monitor, for all its roles.

    `start` begins a period, `end_epoch` returns the figures of the period and begins another, `stop` ends the sampling.
    A second `start` discards the period, so that the time between two folds is not counted in any epoch.

    Args:
        clock: source of the monotonic time.
        gauges: the gauges to sample; see `make_monitor` for those of a rank.
        period_s: seconds between two samples.
        cpu_s: returns the CPU time of this process so far, in seconds.
    """

    def __init__(
        self,
        clock: Clock,
        gauges: Sequence[Gauge],
        period_s: float = 1.0,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock = clock
        self._gauges = list(gauges)
        self._period_s = period_s
        self._cpu_s = cpu_s
        #: guards the gauges and their figures
        self._lock = threading.Lock()
        #: figure -> (number of samples, sum, maximum) since the period began
        self._read: dict[str, tuple[int, float, float]] = {}
        #: start of the period, and CPU time at that moment
        self._since = (clock.monotonic_s(), cpu_s())
        #: the thread that samples, None while stopped; and the event that ends the thread
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin a period, and start sampling if stopped."""
        self._begin_period()
        if self._thread is None:
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._sample_until, args=(self._ended,), name="monitor", daemon=True)
            self._thread.start()

    def sample(self) -> None:
        """Read every gauge once."""
        with self._lock:
            for gauge in list(self._gauges):
                try:
                    figures = gauge.read()
                except Exception as error:
                    # A measurement must not end the training.
                    logger.warning("%s is no longer read: %s", type(gauge).__name__, error)
                    self._gauges.remove(gauge)
                    continue
                for name, value in figures.items():
                    n, total, highest = self._read.get(name, (0, 0.0, -math.inf))
                    self._read[name] = (n + 1, total + value, max(highest, value))

    def end_epoch(self) -> dict[str, float]:
        """Return the figures of the period, from at least one sample, and begin another period."""
        self.sample()
        with self._lock:
            passed_s = self._clock.monotonic_s() - self._since[0]
            used_s = self._cpu_s() - self._since[1]
            figures = {"cpu_percent": 100.0 * used_s / passed_s if passed_s > 0 else 0.0}
            for name, (n, total, highest) in self._read.items():
                figures[name] = total / n
                if name == "memory_mb":
                    figures["memory_max_mb"] = highest
        self._begin_period()
        return figures

    def stop(self) -> None:
        """Stop sampling; does nothing if stopped."""
        thread, self._thread = self._thread, None
        self._ended.set()
        if thread is not None:
            thread.join(_JOIN_TIMEOUT_S)

    def _begin_period(self) -> None:
        with self._lock:
            self._read.clear()
            self._since = (self._clock.monotonic_s(), self._cpu_s())

    def _sample_until(self, ended: threading.Event) -> None:
        while not ended.wait(self._period_s):
            self.sample()


def make_monitor(clock: Clock, gpu: str | None) -> Monitor:
    """Return the monitor of this process; `gpu` as in `devices.NodeShare`: None or "-1" if the process uses none."""
    gauges: list[Gauge] = [MemoryGauge()]
    if gpu not in (None, "-1") and (of_gpu := gauge_of(gpu)) is not None:
        gauges.append(of_gpu)
    return Monitor(clock, gauges)
