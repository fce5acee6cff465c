"""Time of a whole script that searches with a lambda, beside Optuna and scikit-optimize.

Each script runs in a process of its own, from the start of Python to its end, with the threads that its libraries take
by themselves. In each repeat all scripts take turns, and a ratio is made within one repeat. `python` is the control:
Python with NumPy alone, which all of them import.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h

OPTUNA = """
import optuna
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=optuna.samplers.{sampler}(seed=0))
study.optimize(lambda trial: (trial.suggest_float("x", -5, 5) - 2) ** 2, n_trials={n})
print(study.best_params)
"""
#: name -> package that it needs, and the script for `n` trials
SCRIPTS = {
    "python": ("numpy", "import numpy"),
    "nnlo_opt": (
        "nnlo_opt",
        """
import nnlo_opt
from nnlo_opt import Real
result = nnlo_opt.optimize(lambda p: (p["x"] - 2) ** 2, {{"x": Real(-5, 5)}}, num_iterations={n})
print(result.best_parameters)
""",
    ),
    "optuna-tpe": ("optuna", OPTUNA.replace("{sampler}", "TPESampler")),
    "optuna-gp": ("optuna", OPTUNA.replace("{sampler}", "GPSampler")),
    "skopt": (
        "skopt",
        """
import skopt
print(skopt.gp_minimize(lambda x: (x[0] - 2) ** 2, [(-5.0, 5.0)], n_calls={n}, random_state=0).x)
""",
    ),
}
#: 32 trials of scikit-learn on 8 processes, and a bare pool of processes over the points that it is given
SVC = """
import json, sys
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC
x, y = load_digits(return_X_y=True)
def objective(C, gamma):
    return 1 - cross_val_score(SVC(C=C, gamma=gamma), x, y).mean()
"""
SVC_OURS = f"""{SVC}
import nnlo_opt
from nnlo_opt import Real
space = {{"C": Real(0.1, 100, prior="log-uniform"), "gamma": Real(1e-5, 1e-2, prior="log-uniform")}}
result = nnlo_opt.optimize(objective, space, num_iterations=32, hyper_opt="random", n_parallel=8)
print(json.dumps([list(trial.parameters.values()) for trial in result.trials]))
"""
SVC_POOL = f"""{SVC}
from multiprocessing import Pool
with Pool(8) as pool:
    pool.starmap(objective, {{points}}, chunksize=1)
"""
#: what the time of our script is, at most, in times of another: number of trials -> name -> limit
LIMITS: Mapping[int, Mapping[str, float]] = {
    20: {"optuna-tpe": 3.0, "optuna-gp": 1.0, "skopt": 1.0},
    100: {"optuna-gp": 1 / 3},
}


def environment() -> dict[str, str]:
    """The environment of a user: nothing says how many threads to take, and bytecode is kept."""
    pinned = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"}
    return {name: value for name, value in os.environ.items() if name not in pinned} | {"PYTHONPATH": str(h.ROOT)}


def seconds(script: str) -> tuple[float, float]:
    """Seconds from start to end of a process that runs `script`, and its CPU seconds."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, env=environment(), check=False
    )
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"A script has failed: {done.stderr}")
    return took_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="*", default=[20, 100])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--svc", action="store_true", help="SVC of scikit-learn on 8 processes, beside a bare pool")
    parser.add_argument("--engines", nargs="+", choices=[*SCRIPTS], default=[*SCRIPTS])
    arguments = parser.parse_args()
    engines = [name for name in SCRIPTS if name in {"nnlo_opt", *arguments.engines} and find_spec(SCRIPTS[name][0])]
    where, results, targets = h.machine(), dict[str, dict[str, object]](), dict[str, h.Target]()
    if arguments.svc:
        points = subprocess.run([sys.executable, "-c", SVC_OURS], capture_output=True, text=True, check=True).stdout
        pool, ratios = SVC_POOL.format(points=points), list[float]()
        for repeat in range(arguments.repeats):
            h.say(f"SVC, repeat {repeat + 1} of {arguments.repeats}")
            ratios.append(seconds(SVC_OURS)[0] / seconds(pool)[0])
        results["svc"] = {"nnlo_opt_takes_times_of_a_pool": (takes := h.spread(ratios, 3))}
        targets["SVC on 8 processes, in times of a bare pool"] = ("<", 1.1, takes["median"])
    for n in arguments.trials:
        scripts = {name: SCRIPTS[name][1].format(n=n) for name in engines}
        for script in scripts.values():
            seconds(script)  # writes bytecode, and reads the libraries into the memory of the machine
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
        for repeat in range(arguments.repeats):
            h.say(f"{n} trials, repeat {repeat + 1} of {arguments.repeats}")
            for name, script in scripts.items():
                measured[name].append(seconds(script))
        found: dict[str, object] = {}
        for name, times in measured.items():
            ratios = [ours[0] / other[0] for ours, other in zip(measured["nnlo_opt"], times, strict=True)]
            wall_s, cpu_s = zip(*times, strict=True)
            found[name] = {"wall_s": h.spread(wall_s, 3), "cpu_s": h.spread(cpu_s, 3)}
            if name != "nnlo_opt":
                found[name] |= {"nnlo_opt_takes_times": (takes := h.spread(ratios, 3))}
                if name in LIMITS.get(n, {}):
                    targets[f"{n} trials, in times of {name}"] = ("<", LIMITS[n][name], takes["median"])
        results[f"{n} trials"] = found
    h.report("python", results, targets, where)


if __name__ == "__main__":
    main()
