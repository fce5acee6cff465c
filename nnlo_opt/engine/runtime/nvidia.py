"""NVIDIA's management library: the load of a GPU, and the GPUs that this process may use."""

import functools
import logging
from contextlib import suppress

import pynvml

logger = logging.getLogger(__name__)


@functools.cache
def uuids() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that the driver shows this process, by index; empty if it does not answer.

    If the batch system assigns GPUs to each task by cgroups, the driver shows only those.
    """
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    return ()


class NvidiaGauge:
    """One NVIDIA GPU, read by the management library of the driver.

    Args:
        gpu: name of the GPU for `CUDA_VISIBLE_DEVICES`. An index is in the driver's order, by bus; CUDA uses that order
            only with CUDA_DEVICE_ORDER=PCI_BUS_ID, or if all GPUs of the node are alike.

    Raises:
        pynvml.NVMLError: there is no driver, or the driver does not know this GPU.
    """

    def __init__(self, gpu: str) -> None:
        pynvml.nvmlInit()
        by_name = pynvml.nvmlDeviceGetHandleByUUID
        self._device = pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdigit() else by_name(gpu)
        #: True if the driver measures the use of this device, which it does not for a MIG slice
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
    """Return the gauge of a GPU; None without a driver, or if the driver does not know this GPU."""
    try:
        return NvidiaGauge(gpu)
    except pynvml.NVMLError as error:
        logger.info("the GPU is not monitored: %s", error)
        return None
