"""NVIDIA's management library: the load of a GPU, and the GPUs that this process may use."""

import functools
import logging
from contextlib import suppress

import pynvml

logger = logging.getLogger(__name__)


@functools.cache
def uuids() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that the driver shows this process, by index; empty if it does not answer.

    A batch system that confines each task to GPUs of its own (cgroups) has the driver show no others.
    """
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    return ()


class NvidiaGauge:
    """One NVIDIA GPU, read by the management library of the driver.

    Args:
        gpu: the name that `CUDA_VISIBLE_DEVICES` gives the GPU. An index counts as the driver does, by bus; CUDA counts
            so only with CUDA_DEVICE_ORDER=PCI_BUS_ID, or if all GPUs of the node are alike.

    Raises:
        pynvml.NVMLError: there is no driver, or the driver does not know this GPU.
    """

    def __init__(self, gpu: str) -> None:
        pynvml.nvmlInit()
        by_name = pynvml.nvmlDeviceGetHandleByUUID
        self._device = pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdigit() else by_name(gpu)
        #: True if the driver measures the use of this device: of a slice (MIG) it does not
        self._measures_use = True
        try:
            self.read()
        except pynvml.NVMLError:
            self._measures_use = False
            self.read()

    def read(self) -> dict[str, float]:
        figures = {}
        if self._measures_use:
            figures["gpu_percent"] = float(pynvml.nvmlDeviceGetUtilizationRates(self._device).gpu)
        figures["gpu_memory_mb"] = pynvml.nvmlDeviceGetMemoryInfo(self._device).used / 1e6
        return figures


def gauge_of(gpu: str) -> NvidiaGauge | None:
    """Return the gauge of a GPU; None if no driver answers, or it does not know this GPU."""
    try:
        return NvidiaGauge(gpu)
    except pynvml.NVMLError as error:
        logger.info("the GPU is not monitored: %s", error)
        return None
