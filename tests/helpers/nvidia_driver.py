"""A library with the interface of NVIDIA's driver, for machines without a GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

#: a driver with GPU 0, GPU-a1 (the same) and MIG-b2, a slice whose utilisation is not told. With FAKE_GPU_OF_TASK GPU 0
#: is another one for each rank of the node, as a batch system shows it to tasks that it confines (cgroups)
_FAKE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
static int whole, slice, ready;
int nvmlInitWithFlags(unsigned int flags) { ready = 1; return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return ready ? 0 : 1; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
    const char *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (!rank) rank = getenv("MPI_LOCALRANKID");
    if (device != &whole) return 2;
    if (getenv("FAKE_GPU_OF_TASK")) snprintf(uuid, length, "GPU-of-task-%s", rank ? rank : "?");
    else snprintf(uuid, length, "GPU-a1");
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (!ready) return 1;
    if (index > 0) return 2;
    *device = &whole;
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (!ready) return 1;
    if (!strcmp(uuid, "GPU-a1")) *device = &whole;
    else if (!strcmp(uuid, "MIG-b2")) *device = &slice;
    else return 6;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization *out) {
    if (device != &whole) return 3;
    out->gpu = 73; out->memory = 11;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *out) {
    out->total = 150ULL << 30; out->used = 5000000000ULL; out->free = out->total - out->used;
    return 0;
}
"""


def built_driver(folder: Path) -> Path:
    """Build the library in a folder, which is returned, for LD_LIBRARY_PATH; without a compiler the test is skipped."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "fake.c").write_text(_FAKE)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "fake.c"], check=True, timeout=60)
    return folder
