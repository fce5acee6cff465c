"""Table of the timing of examples/lstm_platoon: 1 to 4 workers that sync every 10 batches, beside lone processes.

As in Platoon's own table this is the efficiency of computation, not of training. "Normal" is one process without a
controller. Independent processes do the same without any exchange, so that the ratio to them leaves out what a machine
with fewer cores than workers cannot give. All compared processes run in turns of a quarter of a second, so that other
load on the machine slows all of them alike.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "lstm_platoon"))
from turns import Contestant, rate, take_turns

from nnlo_opt.engine.runtime.environment import SESSION_FOLDER
from nnlo_opt.testing.mpirun import ENVIRONMENT, find_mpirun

#: one thread a process
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
START_TIMEOUT_S = 300.0
HERE = str(Path(__file__).resolve())


def train(stamps, worker=None):
    """Train endlessly; write the time and the number of batches after every ten of them."""
    from lstm import Lstm

    lstm = Lstm(seed=1 if worker is None else worker.rank)
    if worker is not None:
        from nnlo_opt.controller import EASGD

        worker.init_shared_params(lstm.params, EASGD(alpha=0.5))
    n_batches = 0
    with stamps.open("wb", buffering=0) as file:
        while worker is None or worker.send_request("next") == "train":
            for _ in range(10):
                lstm.train_batch()
            if worker is not None:
                lstm.read()
                worker.sync_params()
                lstm.write()
                worker.send_request({"done": 10})
            n_batches += 10
            file.write(np.array([time.time(), n_batches]).tobytes())


def run_rank(folder):
    """Be the controller, which lets its workers train endlessly, or a worker."""
    from nnlo_opt.controller import Controller, Worker, is_controller

    class Endless(Controller):
        def handle_control(self, request, worker):
            return "train"

    if is_controller():
        Endless().serve()
    else:
        worker = Worker()
        train(folder / f"{worker.rank}", worker)


def stamps_in(path):
    """Return a function that returns the stamps in a file, (n, 2)."""
    return lambda: np.fromfile(path).reshape(-1, 2) if path.exists() else np.empty((0, 2))


def start(stack, commands, folder, n_makers):
    """Start processes and return them as a contestant, stopped, when each of them trains."""
    environment = {**os.environ, **ENVIRONMENT, **dict.fromkeys(THREADS, "1"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", SESSION_FOLDER: str(folder)}
    folder.mkdir()
    started = [
        psutil.Popen([*command, "--folder", str(folder)], env=environment, stdout=subprocess.DEVNULL)
        for command in commands
    ]
    for process in started:
        stack.callback(end, process)
    makers = [stamps_in(folder / str(i)) for i in range(1, n_makers + 1)]
    until_s = time.monotonic() + START_TIMEOUT_S
    while not all(len(stamps()) > 2 for stamps in makers):
        if time.monotonic() > until_s or any(process.poll() is not None for process in started):
            raise SystemExit(f"The processes did not start: {' '.join(commands[0])}")
        time.sleep(0.1)
    below = [child for process in started for child in process.children(recursive=True)]
    ours = [process for process in (*started, *below) if HERE in process.cmdline()[:2]]
    return stack.enter_context(Contestant([process.pid for process in ours], makers))


def end(process):
    """End a process and all below it."""
    below = process.children(recursive=True)
    for one in (process, *below):
        if one.is_running():
            one.kill()
    psutil.wait_procs([process, *below])


def measure(n_workers, seconds, n_repeats):
    """Return batches a second of (one process, independent processes, workers), a row for each repeat."""
    alone = [[sys.executable, HERE, "--be", str(i)] for i in range(1, n_workers + 1)]
    ranks = [find_mpirun(), "-n", str(1 + n_workers), sys.executable, HERE, "--be", "rank"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        contestants = [
            start(stack, commands, Path(folder) / name, n)
            for name, commands, n in (
                ("normal", alone[:1], 1),
                ("independent", alone, n_workers),
                ("workers", [ranks], n_workers),
            )
        ]
        rows = []
        for _ in range(n_repeats):
            take_turns(contestants, seconds)
            rows.append([rate(contestant.made()) for contestant in contestants])
    return np.array(rows)


def spread(values, digits):
    """Return median, least and greatest as text."""
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    """Print the table, or be one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4], help="rows of the table")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each repeat")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each row")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        run_rank(options.folder) if options.be == "rank" else train(options.folder / options.be)
        return
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; {options.repeats} repeats of "
          f"{options.seconds:g} s; median (least to greatest)\n")  # fmt: skip
    print("| workers | batches/s, one process | independent processes | workers | against independent | speed-up |")
    print("|---|---|---|---|---|---|")
    for n_workers in options.workers:
        normal, independent, workers = measure(n_workers, options.seconds, options.repeats).T
        rates = " | ".join(f"{np.median(values):.1f}" for values in (normal, independent, workers))
        ratio, speed_up = spread(workers / independent, 3), spread(workers / normal, 2)
        print(f"| {n_workers} | {rates} | {ratio} | {speed_up} |", flush=True)


if __name__ == "__main__":
    main()
