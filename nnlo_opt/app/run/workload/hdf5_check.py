"""Checks HDF5 files in a separate process, because a damaged file can crash or hang libhdf5.

libhdf5 trusts what it reads: a list in a damaged file that leads back to itself keeps it for ever, a chunk that is
shorter than it should be crashes it. No handler of Python sees either. So the first rank that looks at the files of a
run lets a process read them before: all headers, and samples that libhdf5 has to decode. That process reports nothing
but the file that it is at: an error that it meets is met again by the rank.

The time is limited by processor time, which a loop takes, but a slow file system does not.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.data.source import NotFiniteError
from nnlo_opt.engine.data.hdf5.source import Hdf5Source
from nnlo_opt.engine.models.legacy.weight_files import read_saved_weights
from nnlo_opt.engine.runtime.environment import module_command, start_helper

#: seconds of processor time that a step may take, for any bytes, and for each byte that it reads: a twentyfold of what
#: short sequences take (measured)
STEP_S, BYTE_S = 0.5, 2.5e-6
#: bytes for which the headers of a file get time at most, and bytes of samples that are read in a step
HEADER_BYTES, PIECE_BYTES = 24e6, 4 << 20
#: seconds of processor time after which no samples are read any more; about 1 GiB
SAMPLES_S = 5.0
#: seconds in which samples are read that libhdf5 need not decode, to see if they are finite; about 1 GiB in memory
PLAIN_S = 0.5
#: exit code with the sentence about samples that are not finite
NOT_FINITE = 64


def check_files(
    data: Sequence[Any],
    names: Sequence[Any],
    weights: Sequence[Path] = (),
    *,
    external: bool,
    finite: Sequence[str] = (),
) -> None:
    """Raise ConfigurationError with the name of the first file that crashes or hangs libhdf5, or has NaN.

    Args:
        data: paths of data files.
        names: features and labels, as `Hdf5Source` takes them, and further data sets with one value for each sample; a
            name that is None or in no file is passed over. Empty without data files.
        weights: files of weights of Keras 1 or 2.
        external: True if the data files may lead to other files.
        finite: which of features and labels must be finite; of large files, only a part is read.
    """
    paths = [*map(str, data), *map(str, weights)]
    command = module_command("nnlo_opt.app.run.workload.hdf5_check")
    process = start_helper(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    found, _ = process.communicate(json.dumps([paths, len(data), names, external, finite]).encode())
    code = process.returncode
    if code == NOT_FINITE:
        raise ConfigurationError(json.loads(found.splitlines()[-1]))
    if code < 0 and found:
        what = "does not end" if code == -signal.SIGPROF else f"ends the process ({signal.strsignal(-code)})"
        raise ConfigurationError(
            f"An HDF5 file must be complete and readable. Received: {paths[int(found.split()[-1])]}; reading it "
            f"{what}. Write it again or leave it out."
        )


def main() -> None:
    """Read the files that standard input names; the number of each goes to standard output before it is read."""
    began_s = time.monotonic()
    paths, n_data, names, external, finite = json.load(sys.stdin)
    for number, path in enumerate(paths):
        with suppress(Exception):
            _begin(number, min(os.path.getsize(path), HEADER_BYTES))
            if number >= n_data:
                read_saved_weights(Path(path))
                continue
            source = Hdf5Source([path], *names[:2], external=external, finite=finite)
            for name in names[2:]:
                with suppress(Exception):
                    source.read_column(name)
            _read_samples(number, source, began_s + PLAIN_S if finite else 0.0)


def _read_samples(number: int, source: Hdf5Source, until_s: float) -> None:
    info = source.info
    n = -(-max(1, PIECE_BYTES // max(1, info.sample_bytes)) // info.chunk_samples) * info.chunk_samples
    for first in range(0, info.n_samples, n):
        if time.process_time() < SAMPLES_S if source.is_coded else time.monotonic() < until_s:
            rows = np.arange(first, min(first + n, info.n_samples))
            _begin(number, len(rows) * info.sample_bytes)
            try:
                source.read(rows)
            except NotFiniteError as error:
                os.write(1, json.dumps(str(error)).encode())
                sys.exit(NOT_FINITE)
            except Exception:
                continue


def _begin(number: int, n_bytes: float) -> None:
    """Begin a step of a file that reads `n_bytes`; if it takes too much processor time, SIGPROF ends the process."""
    os.write(1, f"{number}\n".encode())
    signal.setitimer(signal.ITIMER_PROF, STEP_S + BYTE_S * n_bytes)


if __name__ == "__main__":
    main()
