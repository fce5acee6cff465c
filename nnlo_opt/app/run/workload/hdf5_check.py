"""Checks HDF5 files in a separate process, because a damaged file can crash or hang libhdf5.

libhdf5 trusts what it reads: a cyclic list in a damaged file hangs it, a truncated chunk crashes it. Python can catch
neither. So the first rank that opens the files of a run first lets a separate process read them: all headers, and
samples that libhdf5 must decode. That process reports only the file it is reading: the rank will see any other error
itself.

The limit is CPU time, which an endless loop consumes, but a slow file system does not.
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

#: CPU seconds that a step may take, plus those for each byte it reads: 20 times as long as for short sequences
#: (measured)
STEP_S, BYTE_S = 0.5, 2.5e-6
#: most bytes of a file that count for the time limit of its headers, and bytes of samples per step
HEADER_BYTES, PIECE_BYTES = 24e6, 4 << 20
#: CPU seconds for reading samples, enough for about 1 GiB; the rest is not read
SAMPLES_S = 5.0
#: seconds for checking that samples without encoding are finite, enough for about 1 GiB in memory
PLAIN_S = 0.5
#: exit code if samples are not finite; the message follows on standard output
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
        names: features and labels, see `Hdf5Source`, and other data sets with one value for each sample; names that are
            None or missing in the files are skipped. Empty without data files.
        weights: weight files of Keras 1 or 2.
        external: True if the data files may link to other files.
        finite: which of features and labels must be finite; only a part of large files is read.
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
    """Read the files named on standard input; before each, print its number to standard output."""
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
    """Begin a step that reads `n_bytes` of a file; if it takes too much CPU time, SIGPROF ends the process."""
    os.write(1, f"{number}\n".encode())
    signal.setitimer(signal.ITIMER_PROF, STEP_S + BYTE_S * n_bytes)


if __name__ == "__main__":
    main()
