"""How much a watcher slows a search down: `nnlo-opt watch` in a terminal beside 2 blocks that compute all the time.

Windows with the watcher at work and with the watcher stopped (SIGSTOP) take turns, in the order ABBA, and each is
compared with its neighbour: epochs in the journal for each CPU second of the blocks, which other programs on the
machine change little. The CPU time that the watcher takes from blocks that have all cores is added.
"""

import argparse
import os
import pty
import signal
import statistics
import sys
import threading
import time

import harness as h
import psutil

N_BLOCKS, WINDOW_S = 2, 3.0
OBJECTIVE = """
from nnlo_opt.space import Real

def objective(parameters, comm, report):
    for epoch in range(1, 21):
        for _ in range(150_000):
            pass
        report(epoch, parameters["x"])
    return parameters["x"]

objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""
WATCH = "import sys; from nnlo_opt.cli.main import tool; sys.argv[1:] = ['watch', {!r}]; tool()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=32, help=f"of {WINDOW_S:g} s each (default: %(default)s)")
    n_windows = parser.parse_args().windows
    where = h.machine()
    with h.temporary_folder() as folder:
        (folder / "busy.py").write_text(OBJECTIVE)
        arguments = ["--model", folder / "busy.py", "--num-iterations", 10**6, "--hyper-opt", "random"]
        with h.Job(
            "OptimizationDriver", N_BLOCKS + 1, arguments, folder, timeout_s=60 + 2 * n_windows * WINDOW_S
        ) as job:
            if not job.watch(lambda: len(h.events_of(job.run_directory, "EpochEnded")) > 20, 0.5):
                raise SystemExit("The search has ended too soon.")
            rates, shares = measure(job, n_windows)
    pairs = [(rates[i : i + 2], i // 2 % 2) for i in range(0, n_windows - 1, 2)]
    taken = statistics.fmean(shares) / where["n_cores"]
    slowed = [100 * (1 - pair[first] / pair[1 - first]) + taken for pair, first in pairs]
    error = statistics.stdev(slowed) / len(slowed) ** 0.5
    results = {
        "slowed_percent": h.spread(slowed, 3),
        "slowed_percent_mean": h.rounded(statistics.fmean(slowed), 3),
        "slowed_percent_standard_error": h.rounded(error, 2),
        "watcher_cpu_percent_of_a_core": h.spread(shares, 3),
        "epochs_per_cpu_s": h.spread(rates),
    }
    h.report("watching", results, {"slowed_percent": ("<", 1, statistics.median(slowed))}, where)


def measure(job: h.Job, n_windows: int) -> tuple[list[float], list[float]]:
    """Epochs per CPU second of the blocks in every window, and the share of a core of the watcher at work."""
    run, blocks = job.run_directory, [process for rank, process in job.ranks().items() if rank]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(h.environment(), TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-c", WATCH.format(str(run))])
    threading.Thread(target=read, args=(terminal,), daemon=True).start()
    watcher, bounds, shares = psutil.Process(pid), [], []
    try:
        time.sleep(5.0)
        for i in range(n_windows):
            works = i % 4 in (0, 3)
            watcher.send_signal(signal.SIGCONT if works else signal.SIGSTOP)
            time.sleep(0.2)
            began_s, before_s, of_blocks_s = time.time(), h.cpu_s(watcher), sum(map(h.cpu_s, blocks))
            time.sleep(WINDOW_S)
            bounds.append((began_s, time.time(), sum(map(h.cpu_s, blocks)) - of_blocks_s))
            shares += [100 * (h.cpu_s(watcher) - before_s) / WINDOW_S] * works
    finally:
        watcher.kill()
        os.waitpid(pid, 0)
    (started,) = h.events_of(run, "RunStarted")
    times = [started["unix_s"] + event["time_s"] for event in h.events_of(run, "EpochEnded")]
    return [sum(a <= t < b for t in times) / cpu_s for a, b, cpu_s in bounds], shares


def read(terminal: int) -> None:
    """Read all that the watcher shows."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


if __name__ == "__main__":
    main()
