import json
import os
import threading

import numpy as np
import pytest

from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.engine.runtime.monitor import MemoryGauge, Monitor, make_monitor
from tests.helpers.launcher import python
from tests.helpers.manual_clock import ManualClock
from tests.helpers.nvidia_driver import built_driver


class ListGauge:
    """Reads the figures it was given, one after another, then raises."""

    def __init__(self, *readings):
        self.readings = list(readings)

    def read(self):
        if not self.readings:
            raise OSError("empty")
        return self.readings.pop(0)


class EventGauge:
    """Tells when it was read."""

    def __init__(self):
        self.was_read = threading.Event()

    def read(self):
        self.was_read.set()
        return {"memory_mb": 1.0}


def idle_monitor(*gauges, clock=None, cpu_s=lambda: 0.0):
    """A monitor whose thread does not come to sample."""
    return Monitor(clock or ManualClock(), gauges, period_s=3600.0, cpu_s=cpu_s)


# ---------------------------------------------------------------- figures per epoch


def test_an_epoch_has_means_and_maxima_of_its_own_samples():
    gauge = ListGauge(*({"memory_mb": value, "gpu_percent": value / 10} for value in (10.0, 30.0, 20.0, 7.0)))
    monitor = idle_monitor(gauge)
    monitor.sample()
    monitor.sample()
    first = monitor.end_epoch()
    assert first == {"cpu_percent": 0.0, "memory_mb": 20.0, "memory_max_mb": 30.0, "gpu_percent": 2.0}
    assert monitor.end_epoch() == {"cpu_percent": 0.0, "memory_mb": 7.0, "memory_max_mb": 7.0, "gpu_percent": 0.7}


def test_cpu_is_the_part_of_one_core_that_the_process_took_in_the_epoch():
    clock, used = ManualClock(), [5.0]
    monitor = idle_monitor(clock=clock, cpu_s=lambda: used[0])
    clock.advance(2.0)
    used[0] += 3.0
    assert monitor.end_epoch() == {"cpu_percent": 150.0}
    clock.advance(4.0)
    used[0] += 1.0
    assert monitor.end_epoch() == {"cpu_percent": 25.0}
    assert monitor.end_epoch() == {"cpu_percent": 0.0}


def test_what_happens_between_two_folds_belongs_to_none():
    clock, used = ManualClock(), [0.0]
    gauge = ListGauge({"memory_mb": 100.0}, {"memory_mb": 1.0})
    monitor = idle_monitor(gauge, clock=clock, cpu_s=lambda: used[0])
    monitor.start()
    monitor.sample()
    clock.advance(10.0)
    monitor.start()
    clock.advance(1.0)
    used[0] += 0.5
    assert monitor.end_epoch() == {"cpu_percent": 50.0, "memory_mb": 1.0, "memory_max_mb": 1.0}
    monitor.stop()


def test_a_gauge_that_fails_is_left_out_and_other_gauges_continue(caplog):
    steady = ListGauge(*({"memory_mb": 1.0} for _ in range(9)))
    monitor = idle_monitor(ListGauge({"gpu_percent": 50.0}), steady)
    assert monitor.end_epoch()["gpu_percent"] == 50.0
    for _ in range(3):
        assert set(monitor.end_epoch()) == {"cpu_percent", "memory_mb", "memory_max_mb"}
    assert caplog.text.count("is no longer read") == 1


# ---------------------------------------------------------------- the thread


def test_a_thread_samples_while_the_rank_works_and_ends_with_stop():
    gauge = EventGauge()
    monitor = Monitor(SystemClock(), [gauge], period_s=0.001)
    monitor.start()
    monitor.start()
    threads = [thread for thread in threading.enumerate() if thread.name == "monitor"]
    assert len(threads) == 1
    assert threads[0].daemon
    assert gauge.was_read.wait(10)
    monitor.stop()
    monitor.stop()
    assert not threads[0].is_alive()
    gauge.was_read.clear()
    monitor.start()
    assert gauge.was_read.wait(10)
    monitor.stop()


def test_a_monitor_may_be_stopped_before_it_has_begun():
    monitor = idle_monitor(MemoryGauge())
    monitor.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "monitor"]
    monitor.start()
    assert "memory_mb" in monitor.end_epoch()
    monitor.stop()


# ---------------------------------------------------------------- this machine


def test_a_rank_without_a_gpu_has_only_its_cpu_and_its_memory():
    for gpu in (None, "-1"):
        figures = make_monitor(SystemClock(), gpu).end_epoch()
        assert set(figures) == {"cpu_percent", "memory_mb", "memory_max_mb"}
        assert all(np.isfinite(value) and value >= 0 for value in figures.values())


def test_resident_memory_grows_with_what_is_touched():
    gauge = MemoryGauge()
    before = gauge.read()["memory_mb"]
    held = np.ones(64 << 20, np.uint8)
    assert gauge.read()["memory_mb"] - before > held.nbytes / 1e6 / 2


# ---------------------------------------------------------------- the GPU


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return built_driver(tmp_path_factory.mktemp("driver"))


def figures(gpu, libraries):
    """Names and values of one epoch in a process whose driver is the one in the folder `libraries`."""
    program = (
        "import json, sys; from nnlo_opt.core.base.clock import SystemClock;"
        "from nnlo_opt.engine.runtime.monitor import make_monitor;"
        "print(json.dumps(make_monitor(SystemClock(), sys.argv[1]).end_epoch()))"
    )
    found = json.loads(python(program, gpu, env={**os.environ, "LD_LIBRARY_PATH": str(libraries)}).expect(0).out)
    assert {"cpu_percent", "memory_mb", "memory_max_mb"} <= found.keys()
    return {name: value for name, value in found.items() if name.startswith("gpu")}


@pytest.mark.parametrize("gpu", ["0", "GPU-a1"])
def test_a_gpu_tells_its_use_and_its_memory(driver, gpu):
    assert figures(gpu, driver) == {"gpu_percent": 73.0, "gpu_memory_mb": 5000.0}


def test_a_slice_of_a_gpu_tells_its_memory_only(driver):
    assert figures("MIG-b2", driver) == {"gpu_memory_mb": 5000.0}


@pytest.mark.parametrize("gpu", ["1", "GPU-zz"])
def test_a_gpu_that_the_driver_does_not_know_is_no_error(driver, gpu):
    assert figures(gpu, driver) == {}


def test_a_driver_that_is_damaged_or_another_library_is_no_error(tmp_path):
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("no library")
    assert figures("0", tmp_path) == {}
    # A library without the driver's functions.
    library.unlink()
    library.symlink_to(np._core._multiarray_umath.__file__)
    assert figures("0", tmp_path) == {}


@pytest.mark.parametrize(
    ("environ", "uuids"),
    [({}, ("GPU-a1",)), ({"FAKE_GPU_OF_TASK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, ("GPU-of-task-2",))],
)
def test_the_driver_tells_the_uuids_of_the_gpus_that_a_process_may_use(driver, environ, uuids):
    program = "from nnlo_opt.engine.runtime.nvidia import uuids; print(uuids())"
    environ = {**os.environ, **environ, "LD_LIBRARY_PATH": str(driver)}
    assert python(program, env=environ).expect(0).out == f"{uuids}\n"


def test_without_a_driver_there_are_no_uuids(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    program = "from nnlo_opt.engine.runtime.nvidia import uuids; print(uuids())"
    assert python(program, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}).expect(0).out == "()\n"
