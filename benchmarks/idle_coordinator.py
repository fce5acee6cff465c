"""CPU the coordinator uses while all blocks are busy: 4 blocks of one rank, each asleep in an `objective`.

Twice: in a search without a budget of time, and in one with every such budget, which it looks at twice a second.

The control does nothing but what waiting costs at the least: a Python process that sleeps a millisecond, again and
again, as the message loop does between two looks.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import harness as h
import psutil

N_BLOCKS, WINDOW_S = 4, 5.0
BUDGETS = ("--timeout", "1:00:00", "--walltime", "1:00:00", "--trial-timeout", "1:00:00")
OBJECTIVE = """
import os, pathlib, time
from nnlo_opt.space import Real

def objective(parameters, comm, report):
    pathlib.Path({folder!r}, f"busy-{{os.getpid()}}").touch()
    time.sleep({sleep_s})
    return parameters["x"]

objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""
CONTROL = "import time\nwhile True: time.sleep(1e-3)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=4, help=f"of {WINDOW_S:g} s each (default: %(default)s)")
    n_windows = parser.parse_args().windows
    where = h.machine()
    with h.temporary_folder() as folder:
        shares, frameworks = measure(folder / "plain", n_windows)
        budgeted, _ = measure(folder / "budgeted", n_windows, *BUDGETS)
    control = psutil.Popen([sys.executable, "-c", CONTROL], env=h.environment(), stdin=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        control_percent = share_percent({"control": control})["control"]
    finally:
        control.kill()
        control.wait()
    spreads = {f"{name}_cpu_percent_of_a_core": h.spread([s[name] for s in shares], 3) for name in shares[0]}
    spreads |= {
        f"{name}_with_budgets_cpu_percent_of_a_core": h.spread([s[name] for s in budgeted], 3) for name in shares[0]
    }
    results = {
        "n_blocks": N_BLOCKS,
        "window_s": WINDOW_S,
        **spreads,
        "control_1ms_sleeps_cpu_percent_of_a_core": h.rounded(control_percent, 3),
        "frameworks_loaded_on_any_rank": sorted(frameworks),
    }
    names = ("coordinator_cpu_percent_of_a_core", "coordinator_with_budgets_cpu_percent_of_a_core")
    targets: dict[str, h.Target] = {name: ("<", 3, spreads[name]["median"]) for name in names}
    h.report("idle_coordinator", results, targets, where)


def measure(folder: Path, n_windows: int, *options: object) -> tuple[list[dict[str, float]], set[str]]:
    """CPU shares by process in every window, and the frameworks that some rank has loaded."""
    folder.mkdir()
    module = folder / "asleep.py"
    module.write_text(OBJECTIVE.format(folder=str(folder), sleep_s=n_windows * WINDOW_S + 60))
    arguments = ["--model", module, "--block-size", 1, "--num-iterations", 8, "--hyper-opt", "random", *options]
    shares: list[dict[str, float]] = []
    with h.Job("OptimizationDriver", N_BLOCKS + 1, arguments, folder / "job", timeout_s=300) as job:
        if not job.watch(lambda: len(list(folder.glob("busy-*"))) == N_BLOCKS, 0.1):
            raise SystemExit("The blocks were not busy all at once.")
        time.sleep(2.0)
        ranks, search = job.ranks(), job.helper("nnlo_opt.search.serve")
        reporter = job.helper("nnlo_opt.reporting.follow")
        watched = {"coordinator": ranks[0]}
        watched |= {name: p for name, p in (("search_process", search), ("reporter", reporter)) if p is not None}
        for _ in range(n_windows):
            shares.append(share_percent(watched))
            h.say(f"{shares[-1]}")
        frameworks = {name for process in ranks.values() for name in h.frameworks_in(process)}
    return shares, frameworks


def share_percent(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Percent of a core that each process uses over a window from now."""
    began_s, before = time.monotonic(), {name: h.cpu_s(process) for name, process in processes.items()}
    time.sleep(WINDOW_S)
    took_s = time.monotonic() - began_s
    return {name: 100 * (h.cpu_s(process) - before[name]) / took_s for name, process in processes.items()}


if __name__ == "__main__":
    main()
