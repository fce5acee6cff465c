"""CPU time of what people look at, and size of the page, on a run of 1,000 trials of 20 epochs.

The run is written here, event by event, without ranks; `--keep FOLDER` leaves it for a look.
Each command runs in a process of its own; `beyond` is its CPU time less that of `python -c pass`.
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import numpy as np

from nnlo_opt.cli.tool import SUBCOMMANDS
from nnlo_opt.core.base.errors import EXIT_OK
from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.parameters import Categorical, Integer, Ordinal, Real
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME

#: seconds of an epoch, and of the start of a training
EPOCH_S, START_S = 20.0, 5.0
#: one trial in so many fails
FAILS = 50
SPACE = Space(
    [
        Real(1e-5, 1e-1, "log-uniform", "train.learning_rate"),
        Ordinal([16, 32, 64, 128, 256], "train.batch"),
        Categorical(["adam", "sgd", "rmsprop"], "optimizer"),
        Real(0.0, 0.99, name="momentum", condition=When("optimizer", "sgd")),
        Integer(1, 6, name="n_layers"),
        Integer(8, 512, "log-uniform", "n_units"),
        Real(0.0, 0.6, name="dropout"),
        Categorical(["relu", "gelu", None], "activation"),
    ]
)
COMMANDS: dict[str, list[str]] = {"report": ["report"], "status": ["status"], "status_json": ["status", "--json"]}


def error_of(point: Point) -> float:
    """The figure of merit that a point would reach in the end, without noise."""
    rate = np.log10(point["train.learning_rate"])
    momentum = point.get("momentum", 0.9)
    return float(
        0.02
        + 0.06 * (rate + 2.7) ** 2
        + 0.03 * abs(np.log2(point["n_units"]) - 7.0) / 4.0
        + 0.05 * (momentum - 0.8) ** 2
        + 0.02 * (point["optimizer"] == "rmsprop")
        + 0.1 * (point["dropout"] - 0.2) ** 2
        + 0.01 * (point["activation"] is None)
    )


def events_of(n_trials: int, n_epochs: int, n_blocks: int, seed: int = 0) -> list[ev.Event]:
    """The events of a search in the order of their times: every trial on the block that is free first."""
    rng = np.random.default_rng(seed)
    free_s = np.zeros(n_blocks)
    timed: list[tuple[float, int, ev.Event]] = []
    for trial in range(n_trials):
        block = int(np.argmin(free_s))
        now_s = float(free_s[block])
        point, speed = SPACE.sample(rng), float(rng.uniform(0.7, 1.4))
        where = {"trial": trial, "fold": 0, "attempt": 1, "block": block + 1, "team": block, "n_ranks": 3}
        of_trial: list[ev.Event] = [
            ev.TrialSuggested(time_s=now_s, trial=trial, point=point, suggest_s=0.05, suggest_cpu_s=0.05),
            ev.FoldAssigned(time_s=now_s, assignment=trial, **where),
            ev.FoldBegan(time_s=now_s + START_S, assignment=trial, waited_s=0.002 if trial >= n_blocks else None),
        ]
        end, metrics, figure = error_of(point), dict[str, float](), 1.0
        n_trained = int(rng.integers(1, n_epochs)) if trial % FAILS == FAILS - 1 else n_epochs
        for epoch in range(1, n_trained + 1):
            time_s = now_s + START_S + epoch * EPOCH_S * speed
            figure = float((end + 0.9 / epoch) * np.exp(0.03 * rng.normal()))
            metrics = {"loss": 2 * figure, "acc": 1 - figure, "val_loss": 2.2 * figure, "val_acc": 1 - figure}
            of_trial.append(
                ev.EpochEnded(
                    time_s=time_s,
                    assignment=trial,
                    epoch=epoch,
                    metrics=metrics,
                    checkpointed=True,
                    figure_of_merit=figure,
                )
            )
        time_s = of_trial[-1].time_s + 0.5
        if n_trained < n_epochs:
            reason = f"`get_model` of model.py failed, line {trial % 3}, ValueError: no weights are left."
            of_trial.append(ev.AssignmentFailed(time_s=time_s, assignment=trial, reason=reason, traceback="Traceback"))
            of_trial.append(ev.TrialFailed(time_s=time_s, trial=trial, reason=reason))
        else:
            train_s = n_epochs * EPOCH_S * speed
            result = {"figure_of_merit": figure, "metrics": metrics, "n_epochs": n_epochs, "train_s": train_s}
            of_trial.append(ev.AssignmentFinished(time_s=time_s, assignment=trial, **result))
            of_trial.append(
                ev.TrialCompleted(time_s=time_s, trial=trial, figure_of_merit=figure, figure_of_merit_std=0.0)
            )
        timed += [(event.time_s, trial, event) for event in of_trial]
        free_s[block] = time_s + 0.002
    # The sort is stable, so that events of one trial at one time keep their order.
    return [event for _, _, event in sorted(timed, key=lambda each: each[:2])]


def write_run(directory: Path, n_trials: int = 1000, n_epochs: int = 20, n_blocks: int = 8) -> Path:
    """Write the journal of a search into a new run directory; return the directory."""
    directory.mkdir(parents=True)
    started = ev.RunStarted(
        time_s=0.0,
        unix_s=1.8e9,
        n_ranks=1 + 3 * n_blocks,
        n_blocks=n_blocks,
        identity={
            "search_space": SPACE.to_json(),
            "model": {"name": "model", "source": "/home/user/model.py", "sha256": "0" * 64},
            "direction": "min",
            "objectives": ["1 - val_acc:min"],
            "figure_of_merit": "1 - val_acc",
            "n_fold": 1,
            "seed": 0,
            "training": {"epochs": n_epochs, "batch": 100},
        },
        settings={
            "command_line": ["OptimizationDriver", "--model", "model.py", "--num-iterations", str(n_trials)],
            "versions": {"nnlo_opt": "0.1.0", "python": "3.11.7"},
            "hyper_opt": "bayesian",
            "plan": {"num_iterations": n_trials, "n_fold": 1, "direction": "min"},
            "block_size": 3,
        },
    )
    events = events_of(n_trials, n_epochs, n_blocks)
    over = ev.RunCompleted(time_s=events[-1].time_s, reason=f"{n_trials} trials are done", coordinator_cpu_s=30.0)
    journal = Journal(directory / JOURNAL_NAME)
    journal.append([started, *events, over])
    journal.close()
    return directory


def cpu_s(words: list[str]) -> float:
    """CPU seconds of a process that runs Python with `words`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=h.environment(), check=False)
    if done.returncode != EXIT_OK:
        raise SystemExit(f"{words} failed: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="new folder for the run, which is left there")
    arguments = parser.parse_args()
    where, found = h.machine(), dict[str, list[float]]()
    with h.temporary_folder() as folder:
        run = write_run(arguments.keep or folder / "run", arguments.trials, arguments.epochs)
        call = "import sys; from nnlo_opt.cli.main import tool; sys.argv[1:] = {!r}; tool()"
        known = {name: words for name, words in COMMANDS.items() if words[0] in SUBCOMMANDS}
        for _ in range(arguments.repeats):
            found.setdefault("python_cpu_s", []).append(start_s := cpu_s(["-c", "pass"]))
            for name, (command, *options) in known.items():
                took_s = cpu_s(["-c", call.format([command, str(run), *options])])
                found.setdefault(f"{name}_cpu_s", []).append(took_s)
                found.setdefault(f"{name}_beyond_s", []).append(took_s - start_s)
        page, size = run / "report.html", lambda path: path.stat().st_size / 1e6 if path.exists() else 0.0
        sizes = {"page_mb": size(page), "journal_mb": size(run / JOURNAL_NAME)}
    medians = {name: h.spread(values) for name, values in found.items()}
    targets: dict[str, h.Target] = {
        "report_beyond_s": ("<", 3.0, medians["report_beyond_s"]["median"]),
        "page_mb": ("<", 6.0, sizes["page_mb"]),
    }
    if "status" in known:
        targets["status_beyond_s"] = ("<", 0.2, medians["status_beyond_s"]["median"])
    h.report("report", {**medians, **{name: round(value, 3) for name, value in sizes.items()}}, targets, where)


if __name__ == "__main__":
    main()
