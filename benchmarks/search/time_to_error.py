"""What a person gets for an hour: time until a search has the error that the best peer has at its own end.

Examples of this repository on 4,200 real digits (800 more validate), 81 trials of 27 epochs on two cores, from the
start of the command: ours on two blocks of one rank, and `model.fit` of the same Keras model in two processes under
Optuna, Ray Tune and `nnlo_opt.optimize`. Every process computes with one thread. An error counts once a trial has
trained all its epochs. The best peer of a model is the one with the least median of its final errors; a seed of another
system is timed until it has the final error of the same seed of that peer.

Each run is added to `measured/time_to_error_81x27.json` when it ends, with its processor: `machine` in this file is
that of the last run. The next command goes on with what lacks, so hours become parts of one run: `--seeds 3 --systems
nnlo-opt-asha --models MLP`. Without `--seeds` the tables are printed anew, and drawn with `--figure FILE.svg`.
"""

import argparse
import fcntl
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
from pruning import n_epochs

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.base.files import atomic_write

N_WORKERS, TIMEOUT_S = 2, 4 * 3600
#: trials and epochs: those for which there are goals
BUDGET = (81, 27)
#: name -> example and its search space
MODELS = {
    "CNN": ("examples/example_mnist.py", "search_spaces/mnist.py"),
    "MLP": ("examples/example_mlp.py", "search_spaces/mlp.py"),
    "small CNN": ("examples/example_mnist.py", "benchmarks/search/small_cnn.py"),
}
#: our systems -> options of OptimizationDriver
OURS: dict[str, Sequence[object]] = {
    "nnlo-opt": (),
    "nnlo-opt-asha": ("--pruner", "asha"),
    "nnlo-opt-freeze-thaw": ("--hyper-opt", "freeze-thaw"),
}
#: how many times sooner than the best peer, in the median
GOALS = {"nnlo-opt-asha": 2.0, "nnlo-opt-freeze-thaw": 3.0}
#: systems of `time_to_error_peers.py` -> processes that are started
SCRIPTS = {"optimize": 1, "optuna-tpe": 2, "optuna-tpe-halving": 2, "optuna-tpe-hyperband": 2, "ray-asha": 1}
PEERS = [name for name in SCRIPTS if name != "optimize"]

#: seconds since the command and error of the whole trainings in their order, epochs trained, end: one line of the file
Run: TypeAlias = dict[str, Any]


def measured(run: Run, data: Path, folder: Path, python: str) -> Run:
    """Do one search, of a system, a model, a seed, and a number of trials and epochs; `python`: the one for scripts."""
    system, seed, n_trials, n_whole = run["system"], run["seed"], run["n_trials"], run["max_epochs"]
    example, space = (h.ROOT / place for place in MODELS[run["model"]])
    load, began_s = round(os.getloadavg()[0], 2), time.time()
    if system in OURS:
        arguments = ["--model", example, "--search-space", space, "--block-size", 1, "--epochs", n_whole]
        arguments += ["--train-data", data / "train_mnist.list", "--val-data", data / "test_mnist.list"]
        arguments += ["--num-iterations", n_trials, "--seed", seed, *OURS[system]]
        arguments += ["--pruner-max-epochs", n_whole] if "freeze-thaw" in system else []
        with h.Job("OptimizationDriver", 1 + N_WORKERS, arguments, folder, TIMEOUT_S) as job:
            job.wait()
        end_s = time.time() - began_s
        ledger = read_ledger(job.run_directory)
        whole = [trial for trial in ledger.trials if trial.figure_of_merit is not None]
        ends = [(ledger.first_start_unix_s + (trial.ended_at_s or 0.0), trial.figure_of_merit) for trial in whole]
        n_trained = n_epochs(ledger)
    else:
        task = [system, example, space, data, folder, seed]
        tasks = [[*task, worker, N_WORKERS, n_trials, n_whole] for worker in range(SCRIPTS[system])]
        run_scripts(tasks, folder, python)
        end_s = time.time() - began_s
        epochs = [json.loads(line) for line in (folder / "epochs").read_text().splitlines()]
        ends = [(unix_s, error) for unix_s, epoch, error in epochs if epoch == n_whole]
        n_trained = len(epochs)
    finals = sorted((round(unix_s - began_s, 1), round(error or 0.0, 5)) for unix_s, error in ends)
    return {**run, "load_1min": load, "end_s": round(end_s, 1), "n_epochs": n_trained, "finals": finals}


def run_scripts(arguments: Sequence[Sequence[object]], folder: Path, python: str) -> None:
    """Start one process for each of these arguments, and wait until all have ended well."""
    folder.mkdir()
    places = os.pathsep.join([str(h.ROOT), str(Path(__file__).parent)])
    command = [python, "-c", "from time_to_error_peers import main; main()"]
    with (folder / "output").open("wb") as output:
        processes = [
            psutil.Popen(
                [*command, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**h.environment(), "PYTHONPATH": places},
            )
            for words in arguments
        ]
        try:
            codes = [process.wait(TIMEOUT_S) for process in processes]
        finally:
            for process in processes:
                if process.is_running():
                    for each in (*process.children(recursive=True), process):
                        each.kill()
    if any(codes):
        raise SystemExit(f"A script has failed:\n{(folder / 'output').read_text(errors='replace')[-3000:]}")


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other command of this benchmark measures on this machine."""
    with (Path(tempfile.gettempdir()) / "time_to_error.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def runs_of(path: Path) -> list[Run]:
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    return [{"max_epochs": 5, **run} for run in runs]  # which the first ones do not say


def add(run: Run, path: Path, where: dict[str, Any]) -> None:
    """Write the file anew, a line for each run."""
    lines = ",\n".join(json.dumps(each) for each in [*runs_of(path), run])
    atomic_write(path, f'{{"machine": {json.dumps(where)}, "runs": [\n{lines}\n]}}\n')


def final(run: Run) -> float:
    """The least error of a run; infinite if no training was whole."""
    return min((error for _, error in run["finals"]), default=math.inf)


def final_at(run: Run, time_s: float) -> float:
    """The least error of a run up to a time; infinite if no training was whole."""
    return min((error for ended_s, error in run["finals"] if ended_s <= time_s), default=math.inf)


def reached_s(run: Run, error: float) -> float:
    """When a run had this error or less; infinite if never."""
    return next((time_s for time_s, found in run["finals"] if found <= error), math.inf)


def judged(runs: Sequence[Run]) -> dict[str, Any]:
    """The best peer of one model, and the figures of each system; empty without a run of a peer."""
    of = {name: {run["seed"]: run for run in runs if run["system"] == name} for name in (*OURS, *SCRIPTS)}
    peers = [name for name in PEERS if of[name]]
    if not peers:
        return {}
    best = min(peers, key=lambda name: median(map(final, of[name].values())))
    targets = {seed: final(run) for seed, run in of[best].items()}
    own_s = {seed: reached_s(run, targets[seed]) for seed, run in of[best].items()}
    systems = dict[str, Any]()
    for name, found in of.items():
        times_s = {seed: reached_s(run, targets[seed]) for seed, run in found.items() if seed in targets}
        if times_s:
            to_s = h.spread([*times_s.values()], 3)
            systems[name] = {
                "to_best_peers_error_s": {key: None if value == math.inf else value for key, value in to_s.items()},
                "missed": [*times_s.values()].count(math.inf),
                "times_sooner": h.spread([own_s[seed] / time_s for seed, time_s in times_s.items()], 3),
                "final_error": h.spread([*map(final, found.values())]),
                **{key: h.spread([run[key] for run in found.values()], 3) for key in ("n_epochs", "end_s")},
            }
    return {"best_peer": best, "systems": systems}


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f}"


def rows(name: str, its: dict[str, Any]) -> list[str]:
    """The cells of a system in the table of the benchmarks' page."""
    to, error = its["to_best_peers_error_s"], its["final_error"]
    return [
        f"`{name}`",
        f"{seconds(to['median'])} ({seconds(to['min'])} to {seconds(to['max'])})",
        f"{100 * error['median']:.2f} ({100 * error['min']:.2f} to {100 * error['max']:.2f})",
        f"{its['n_epochs']['median']:.0f}",
        seconds(its["end_s"]["median"]),
        str(error["n"]),
    ]


def in_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    top, *rest = (f"| {' | '.join(cells)} |" for cells in (head, *lines))
    return "\n".join([top, "|" + "---|" * len(head), *rest])


def tables(results: dict[str, dict[str, Any]]) -> str:
    """Markdown of all systems for the page of the benchmarks, and of four lines with medians for the README."""
    head = ["system", "s to the best peer's final error", "final error, %", "epochs", "s to the end", "seeds"]
    found = list[str]()
    for model, figures in results.items():
        lines = [rows(name, its) for name, its in figures["systems"].items()]
        found.append(f"{model}, the best peer is `{figures['best_peer']}`:\n\n{in_markdown(head, lines)}")
    names = [name for name in (*reversed(OURS), *PEERS) if all(name in of["systems"] for of in results.values())]
    short = list[list[str]]()
    for model, figures in results.items():
        its = [figures["systems"][name] for name in names]
        cells = [(seconds(one["to_best_peers_error_s"]["median"]), one["final_error"]["median"]) for one in its]
        short.append([model, *(f"{to}{' s' * (to != 'never')}, {error:.2%}" for to, error in cells)])
    return "\n\n".join([*found, in_markdown(["", *(f"`{name}`" for name in names)], short)])


def draw(runs: Sequence[Run], results: dict[str, dict[str, Any]], path: Path) -> None:
    """Least error so far over time, medians over seeds; the grey line is the best peer's end."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(6 * len(results), 4), squeeze=False)
    for ax, (model, figures) in zip(axes[0], results.items(), strict=True):
        for name in figures["systems"]:
            of = [run for run in runs if run["model"] == model and run["system"] == name]
            ends_s = sorted({time_s for run in of for time_s, _ in run["finals"]})
            errors = [median(final_at(run, time_s) for run in of) for time_s in ends_s]
            known = [(time_s, 100 * error) for time_s, error in zip(ends_s, errors, strict=True) if error < math.inf]
            if known:
                is_peer = name in PEERS
                ax.step(*zip(*known, strict=True), where="post", label=name, linestyle=("-", "--")[is_peer])
        target = median(final(run) for run in runs if (run["model"], run["system"]) == (model, figures["best_peer"]))
        ax.axhline(100 * target, color="grey", linewidth=0.8)
        ax.set(title=model, xlabel="seconds since the command", ylabel="least error, %", xscale="log", yscale="log")
        ax.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="", metavar="A-B", help="both included; none: only print the tables")
    parser.add_argument("--systems", nargs="+", choices=[*OURS, *SCRIPTS], default=[*OURS, *PEERS])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["MLP", "small CNN"])
    parser.add_argument("--trials", type=int, default=BUDGET[0])
    parser.add_argument("--epochs", type=int, default=BUDGET[1])
    parser.add_argument("--figure", type=Path, help="an SVG of errors over time")
    parser.add_argument("--ray-python", default=sys.executable, help="a Python that has `ray`, Keras and TensorFlow")
    parser.add_argument("--keep", type=Path, help="by default measured/time_to_error_<trials>x<epochs>.json")
    arguments = parser.parse_args()
    budget = arguments.trials, arguments.epochs
    keep = arguments.keep or h.ROOT / "benchmarks" / "measured" / "time_to_error_{}x{}.json".format(*budget)
    where = h.machine()
    first, _, last = arguments.seeds.partition("-")
    systems = [*arguments.systems]
    import_ray = [arguments.ray_python, "-c", "import ray"]
    if "ray-asha" in systems and subprocess.run(import_ray, capture_output=True, check=False).returncode:
        systems.remove("ray-asha")
        h.say("Ray is left out: `--ray-python` names no Python that has it.")
    with h.temporary_folder() as folder:
        if arguments.seeds:
            h.make_mnist(folder / "mnist", "--source", "bundled")
        for seed in range(int(first), int(last or first) + 1) if arguments.seeds else ():
            for model, system in product(arguments.models, systems):
                key = {"system": system, "model": model, "seed": seed, "n_trials": budget[0]}
                key["max_epochs"] = budget[1]
                python = arguments.ray_python if system == "ray-asha" else sys.executable
                with alone():
                    if any(key.items() <= run.items() for run in runs_of(keep)):
                        continue
                    # Files that nobody has used for minutes are read from the disk again, before the clock starts.
                    subprocess.run([python, "-c", "import keras"], capture_output=True, check=True)
                    run = measured(key, folder / "mnist", folder / f"{model}-{system}-{seed}", python)
                    add({**run, "cpu": where["cpu"]}, keep, where)
                h.say(f"{model}, {system}, seed {seed}: {run['end_s']} s, {run['n_epochs']} epochs, error {final(run)}")
    kept = [run for run in runs_of(keep) if (run["n_trials"], run["max_epochs"]) == budget]
    results = {model: judged([run for run in kept if run["model"] == model]) for model in MODELS}
    results = {model: figures for model, figures in results.items() if figures}
    h.say(tables(results) if results else "No run of a peer has been measured yet.")
    if arguments.figure:
        draw(kept, results, arguments.figure)
    targets: dict[str, h.Target] = {
        f"{model}, {name}: times sooner than the best peer": (">=", GOALS[name], its["times_sooner"]["median"])
        for model, figures in results.items()
        for name, its in figures["systems"].items()
        if name in GOALS and budget == BUDGET
    }
    h.report("time_to_error", results, targets, where)


if __name__ == "__main__":
    main()
