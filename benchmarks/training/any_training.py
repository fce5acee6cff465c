"""Trainings that are not ours as trials: torch over a block beside `torchrun`, and scripts by `--command`.

`ddp`: one loop of DistributedDataParallel on two ranks of a block, and in two processes of `torchrun`, in turns.
`begin`: from the end of a trial in the journal to the first line of the next trial's script, less what the script takes
to say its first line if it is started by hand. `busy`: scripts of one second on two blocks.
"""

import argparse
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
from turns import Contestant, rate, take_turns

LOOP = """
import os, time
import torch
from torch import nn

def loop(side):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, n = torch.distributed.get_rank(), 0
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(100, 784), torch.randint(10, (100,))
    with open(f"stamps-{side}-{rank}", "w") as stamps:
        while True:
            for _ in range(5):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            n += 5
            print(time.time(), n, file=stamps, flush=True)
"""
OBJECTIVE = """
import sys
sys.path.insert(0, ".")
import nnlo_opt
from loop import loop
from nnlo_opt.space import Real

def objective(parameters, comm):
    with nnlo_opt.torch_process_group(comm):
        loop("block")

objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""
SCRIPT = """
import torch
from loop import loop
torch.distributed.init_process_group("gloo")
loop("torchrun")
"""
SPACE = "from nnlo_opt.space import Real\nparameter_range = [Real(0.0, 1.0, name='x')]\n"
SAYS = "#!/bin/sh\n{}date '+{{\"value\": %s.%N}}'\n"
#: 97.5 % of Student's t lies below, for 20 and more repeats
T = 2.09


def stamps_of(path: Path) -> np.ndarray:
    """When, and how many steps: float64 (n, 2)."""
    lines = path.read_text().splitlines()[:-1] if path.exists() else []
    return np.array([line.split() for line in lines], float).reshape(-1, 2)


def ddp(folder: Path, repeats: int, seconds: float) -> dict[str, object]:
    """Speed of a block in times of that of `torchrun`, by pairs."""
    (folder / "loop.py").write_text(LOOP)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "objective.py").write_text(OBJECTIVE)
    os.environ["OMP_NUM_THREADS"] = "1"
    options = ["--model", "objective.py", "--block-size", 2, "--num-iterations", 1, "--hang-timeout", 0]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    with h.Job("OptimizationDriver", 3, options, folder, timeout_s=900) as job:
        elastic = psutil.Popen(command, cwd=folder, env=h.environment(), stderr=subprocess.DEVNULL)
        try:
            paths = {side: folder / f"stamps-{side}-0" for side in ("block", "torchrun")}
            assert job.watch(lambda: all(len(stamps_of(path)) > 50 for path in paths.values()), 0.2)
            pids = {"block": [process.pid for process in job.ranks().values()]}
            pids["torchrun"] = [elastic.pid, *(child.pid for child in elastic.children(recursive=True))]
            makers = {side: [lambda path=path: stamps_of(path)] for side, path in paths.items()}
            ratios = list[float]()
            with (
                Contestant(pids["block"], makers["block"]) as block,
                Contestant(pids["torchrun"], makers["torchrun"]) as other,
            ):
                for number in range(repeats):
                    h.say(f"turns {number + 1} of {repeats}")
                    take_turns([block, other], seconds)
                    ratios.append(rate(block.made()) / rate(other.made()))
        finally:
            for process in [*elastic.children(recursive=True), elastic]:
                process.kill()
    half = T * stdev(ratios) / len(ratios) ** 0.5
    return {
        "ratio": round(fmean(ratios), 4),
        "low": round(fmean(ratios) - half, 4),
        "high": round(fmean(ratios) + half, 4),
    }


def searched(folder: Path, script: str, n_ranks: int, n_trials: int) -> tuple[list[dict[str, float]], float]:
    """Values and ends of the trials of a script, in the order in which they ended; when the first was assigned."""
    folder.mkdir()
    (folder / "space.py").write_text(SPACE)
    (folder / "says.sh").write_text(script)
    (folder / "says.sh").chmod(0o755)
    options = ["--command", "./says.sh {x}", "--search-space", "space.py", "--num-iterations", n_trials]
    with h.Job("OptimizationDriver", n_ranks, [*options, "--hyper-opt", "random"], folder, timeout_s=300) as job:
        job.wait()
    (started,) = h.events_of(job.run_directory, "RunStarted")
    ends = h.events_of(job.run_directory, "AssignmentFinished")
    began_s = h.events_of(job.run_directory, "FoldAssigned")[0]["time_s"]
    found = [{"said_s": end["figure_of_merit"], "ended_s": started["unix_s"] + end["time_s"]} for end in ends]
    return found, started["unix_s"] + began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["ddp", "begin", "busy"])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--trials", type=int, default=60)
    arguments = parser.parse_args()
    where, results, targets = h.machine(), dict[str, object](), dict[str, h.Target]()
    with h.temporary_folder() as folder:
        if "ddp" in arguments.parts:
            results["ddp"] = found = ddp(folder, arguments.repeats, arguments.seconds)
            targets["a block, in times of torchrun: high end"] = (">=", 0.98, float(str(found["high"])))
            targets["width of the interval"] = ("<", 0.06, float(str(found["high"])) - float(str(found["low"])))
        if "begin" in arguments.parts:
            trials, _ = searched(folder / "begin", SAYS.format(""), 2, arguments.trials)
            gaps = [after["said_s"] - before["ended_s"] for before, after in pairwise(trials)]
            own = []
            for _ in range(30):
                began_s = time.time()
                said = subprocess.run([folder / "begin/says.sh"], capture_output=True, text=True, check=True).stdout
                own.append(float(said.split()[1].strip("}")) - began_s)
            results["begin_s"], results["begin_by_hand_s"] = h.spread(gaps), h.spread(own)
            targets["begin of a script, seconds beyond its own start"] = ("<", 0.05, median(gaps) - median(own))
        if "busy" in arguments.parts:
            trials, began_s = searched(folder / "busy", SAYS.format("sleep 1\n"), 3, arguments.trials)
            share = len(trials) / 2 / (max(trial["ended_s"] for trial in trials) - began_s)
            results["busy"] = round(share, 4)
            targets["2 blocks busy with scripts of 1 s"] = (">=", 0.95, share)
    h.report("any_training", results, targets, where)


if __name__ == "__main__":
    main()
