"""How much a watcher slows a search down: `nnlo-opt watch` in a terminal, or a mirror, beside 2 blocks that compute.

Windows with the watcher at work and with the watcher stopped (SIGSTOP) take turns, in the order ABBA, and each is
compared with its neighbour: steps of the objective for each CPU second of the blocks, which other programs on the
machine change little. The CPU time that the watcher takes from blocks that have all cores is added.

`--beside optuna` and `--beside tensorboard` measure `--mirror`. A mirror pays for each epoch, so epochs last tenths of
a second then; beside `nnlo-opt watch` they last some milliseconds. Before a window begins, a watcher catches up.
"""

import argparse
import os
import pty
import signal
import statistics
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import psutil

N_BLOCKS, WINDOW_S, SETTLE_S = 2, 3.0, 1.5
#: watcher -> steps of an epoch
STEPS = {"watch": 1, "optuna": 100, "tensorboard": 100}
OBJECTIVE = """
import functools, mmap, os, pathlib
from nnlo_opt.space import Real

@functools.cache
def steps():
    path = pathlib.Path(__file__).with_name(f"steps-{{os.getpid()}}")
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("q")

def objective(parameters, comm, report):
    for epoch in range(1, 21):
        for _ in range({}):
            for _ in range(150_000):
                pass
            steps()[0] += 1
        report(epoch, parameters["x"])
    return parameters["x"]

objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""
WATCH = "import sys; from nnlo_opt.cli.main import tool; sys.argv[1:] = ['watch', {!r}]; tool()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=32, help=f"of {WINDOW_S:g} s each (default: %(default)s)")
    parser.add_argument("--beside", choices=STEPS, default="watch", help="the watcher (default: %(default)s)")
    given = parser.parse_args()
    n_windows, beside = given.windows, given.beside
    where = h.machine()
    with h.temporary_folder() as folder:
        (folder / "busy.py").write_text(OBJECTIVE.format(STEPS[beside]))
        arguments = ["--model", folder / "busy.py", "--num-iterations", 10**6, "--hyper-opt", "random"]
        arguments += ["--mirror", beside] * (beside != "watch")
        timeout_s = 60 + 2 * n_windows * (WINDOW_S + SETTLE_S)
        with h.Job("OptimizationDriver", N_BLOCKS + 1, arguments, folder, timeout_s) as job:
            if not job.watch(lambda: len(h.events_of(job.run_directory, "EpochEnded")) > 20, 0.5):
                raise SystemExit("The search has ended too soon.")
            watcher = watch(job.run_directory) if beside == "watch" else job.helper("nnlo_opt.tools.export.mirror")
            if watcher is None:
                raise SystemExit("The mirror is not there.")
            try:
                rates, shares = measure(job, watcher, n_windows, folder)
            finally:
                watcher.kill()
                with suppress(ChildProcessError):  # a mirror is a child of rank 0
                    os.waitpid(watcher.pid, 0)
    pairs = [(rates[i : i + 2], i // 2 % 2) for i in range(0, n_windows - 1, 2)]
    taken = statistics.fmean(shares) / where["n_cores"]
    slowed = [100 * (1 - pair[first] / pair[1 - first]) + taken for pair, first in pairs]
    error = statistics.stdev(slowed) / len(slowed) ** 0.5
    results = {
        "beside": beside,
        "slowed_percent": h.spread(slowed, 3),
        "slowed_percent_mean": h.rounded(statistics.fmean(slowed), 3),
        "slowed_percent_standard_error": h.rounded(error, 2),
        "watcher_cpu_percent_of_a_core": h.spread(shares, 3),
        "steps_per_cpu_s": h.spread(rates),
    }
    h.report("watching", results, {"slowed_percent": ("<", 1, statistics.median(slowed))}, where)


def watch(run: Path) -> psutil.Process:
    """The process of `nnlo-opt watch` in a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(h.environment(), TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-c", WATCH.format(str(run))])
    threading.Thread(target=read, args=(terminal,), daemon=True).start()
    return psutil.Process(pid)


def measure(job: h.Job, watcher: psutil.Process, n_windows: int, folder: Path) -> tuple[list[float], list[float]]:
    """Steps per CPU second of the blocks in every window, and the share of a core of the watcher at work."""
    blocks = [process for rank, process in job.ranks().items() if rank]

    def reached() -> tuple[int, float, float]:
        n_steps = sum(int.from_bytes(path.read_bytes(), sys.byteorder) for path in folder.glob("steps-*"))
        return n_steps, sum(map(h.cpu_s, blocks)), h.cpu_s(watcher)

    rates, shares = [], []
    time.sleep(5.0)
    for i in range(n_windows):
        works = i % 4 in (0, 3)
        watcher.send_signal(signal.SIGCONT if works else signal.SIGSTOP)
        time.sleep(SETTLE_S)
        before = reached()
        time.sleep(WINDOW_S)
        n_steps, of_blocks_s, of_watcher_s = (after - b for after, b in zip(reached(), before, strict=True))
        rates.append(n_steps / of_blocks_s)
        shares += [100 * of_watcher_s / WINDOW_S] * works
    return rates, shares


def read(terminal: int) -> None:
    """Read all that the watcher shows."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


if __name__ == "__main__":
    main()
