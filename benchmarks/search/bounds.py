"""How good a search is under bounds on what a trial shows: ours, and ours by yes and no, beside Optuna's `GPSampler`.

Every engine has the same trials of the same tasks with the same seeds, one after another, and sees the figure of every
bound. Judged are the best loss of a feasible trial and the number of feasible trials.

    python benchmarks/search/bounds.py --tasks choose holdout --seeds 5

`--keep FILE` appends every result as a JSON line and does not measure again what is there.
"""

import os
import sys

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import numpy as np
from search_engines import optuna_distribution

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.design import design_size
from nnlo_opt.core.trials.objectives import OutcomeConstraint
from nnlo_opt.engine.search.registry import make_search
from nnlo_opt.space import Categorical, Integer, Point, Real, Space

ENGINES = ("bayesian", "yes-no", "optuna-gp", "optuna-tpe", "random")
Shown = Mapping[str, float]


@dataclass(frozen=True)
class Task:
    """A space, what a trial shows of a point, its `loss` among it, and the bounds."""

    space: Space
    shown: Callable[[Any], Shown]
    bounds: tuple[OutcomeConstraint, ...]

    def keeps(self, shown: Shown) -> bool:
        return all(bound.allows(shown[bound.name]) for bound in self.bounds)


def _task(parameters: list[Any], shown: Callable[[Any], Shown], *bounds: str) -> Task:
    return Task(Space(parameters), shown, tuple(map(OutcomeConstraint.parse, bounds)))


# ---------------------------------------------------------------- tasks by which the search was chosen


def _two_integers() -> Task:
    def shown(p: Any) -> Shown:
        return {"loss": 1 / p["w"] + 1 / p["b"], "memory": p["w"] * p["b"] / 1000}

    return _task([Integer(1, 512, name="w"), Integer(1, 512, name="b")], shown, "memory<=20")


def _network() -> Task:
    """The number of weights spans four decades; a network that is too large would be the best."""

    def shown(p: Any) -> Shown:
        n_weights = 64 * p["width"] + p["depth"] * p["width"] ** 2
        away = math.log10(p["lr"]) + 2.5 + 0.3 * math.log10(n_weights / 1e5)
        return {"loss": 3 * n_weights**-0.25 + 0.05 * away**2 + 0.01 * abs(p["depth"] - 3), "n_weights": n_weights}

    return _task(
        [
            Integer(16, 2048, "log-uniform", name="width"),
            Integer(1, 12, name="depth"),
            Real(1e-5, 1e-1, "log-uniform", name="lr"),
        ],
        shown,
        "n_weights<200000",
    )


def _branin(a: float, b: float) -> float:
    bowl = (b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


def _bent() -> Task:
    """Two reals, linear, the optima outside."""

    def shown(p: Any) -> Shown:
        return {"loss": _branin(p["a"], p["b"]), "bend": (p["a"] - 4) ** 2 + (p["b"] - 9) ** 2}

    return _task([Real(-5, 10, name="a"), Real(0, 15, name="b")], shown, "bend<=40")


def _band() -> Task:
    """A latency from both sides, over decades of two reals."""

    def shown(p: Any) -> Shown:
        latency = p["rate"] ** 0.8 * p["size"] / 50
        loss = math.log10(p["rate"] / 2) ** 2 + math.log10(p["size"] / 400) ** 2
        return {"loss": loss, "latency": latency}

    return _task(
        [Real(1e-2, 1e3, "log-uniform", name="rate"), Real(1, 1e4, "log-uniform", name="size")],
        shown,
        "latency>=1",
        "latency<=1.6",
    )


def _memory_and_time() -> Task:
    """Two bounds that leave a corner between them."""

    def shown(p: Any) -> Shown:
        memory = p["batch"] * p["width"] * 4e-4 + p["width"] ** 2 * 2e-5
        seconds = 30 * (p["width"] / 256) ** 1.5 * (64 / p["batch"]) ** 0.7 * p["epochs"] / 10
        loss = 30 / p["width"] + 1.5 / p["epochs"] + 0.02 * math.log(p["batch"] / 32) ** 2 + 0.5 * p["dropout"] ** 2
        return {"loss": loss, "memory": memory, "seconds": seconds}

    return _task(
        [
            Integer(8, 1024, "log-uniform", name="batch"),
            Integer(16, 2048, "log-uniform", name="width"),
            Integer(1, 50, name="epochs"),
            Real(0, 0.9, name="dropout"),
        ],
        shown,
        "memory<16",
        "seconds<60",
    )


def _fast_enough() -> Task:
    """The least time of an accuracy from below, with a category."""

    def shown(p: Any) -> Shown:
        factor = {"small": 1.0, "middle": 2.2, "large": 5.0}[p["kind"]]
        capacity = factor * p["layers"] * p["share"]
        accuracy = 1 - 0.6 / (1 + capacity) - 0.05 * (p["share"] - 0.6) ** 2
        return {"loss": factor**0.8 * p["layers"] * (0.5 + p["share"]), "acc": accuracy}

    return _task(
        [
            Categorical(["small", "middle", "large"], name="kind"),
            Integer(1, 24, name="layers"),
            Real(0.1, 1, name="share"),
        ],
        shown,
        "acc>=0.9",
    )


# ---------------------------------------------------------------- held-out tasks


def _gomez_levy() -> Task:
    """Gomez and Levy's function: the feasible region has holes."""

    def shown(p: Any) -> Shown:
        x, y = p["x"], p["y"]
        loss = 4 * x**2 - 2.1 * x**4 + x**6 / 3 + x * y - 4 * y**2 + 4 * y**4
        return {"loss": loss, "c": -math.sin(4 * math.pi * x) + 2 * math.sin(2 * math.pi * y) ** 2}

    return _task([Real(-1, 0.75, name="x"), Real(-1, 1, name="y")], shown, "c<=1.5")


def _vessel() -> Task:
    """The pressure vessel: the cost of two thicknesses (in sixteenths), a radius and a length, under three bounds."""

    def shown(p: Any) -> Shown:
        shell, head, r, length = p["shell"] / 16, p["head"] / 16, p["radius"], p["length"]
        cost = 0.6224 * shell * r * length + 1.7781 * head * r**2 + 3.1661 * shell**2 * length + 19.84 * shell**2 * r
        volume = math.pi * r**2 * length + 4 / 3 * math.pi * r**3
        return {"loss": cost, "shell": shell - 0.0193 * r, "head": head - 0.00954 * r, "volume": volume}

    return _task(
        [
            Integer(1, 40, name="shell"),
            Integer(1, 40, name="head"),
            Real(10, 100, name="radius"),
            Real(10, 240, name="length"),
        ],
        shown,
        "shell>=0",
        "head>=0",
        "volume>=1296000",
    )


def _weights_between() -> Task:
    """A number of weights from both sides, integers only, on a logarithmic scale."""

    def shown(p: Any) -> Shown:
        n_weights = 9 * p["filters"] ** 2 * p["blocks"] + p["filters"] * p["dense"] * 16
        loss = math.log(p["filters"] / 48) ** 2 + 0.3 * math.log(p["dense"] / 32) ** 2 + 0.04 * (p["blocks"] - 9) ** 2
        return {"loss": loss, "n_weights": n_weights}

    return _task(
        [
            Integer(4, 256, "log-uniform", name="filters"),
            Integer(8, 1024, "log-uniform", name="dense"),
            Integer(1, 16, name="blocks"),
        ],
        shown,
        "n_weights>50000",
        "n_weights<100000",
    )


def _boxes() -> Task:
    """Four integers on a linear scale: the largest worth of a limited weight and volume."""

    def shown(p: Any) -> Shown:
        n = np.array([p["a"], p["b"], p["c"], p["d"]], dtype=float)
        worth = float((np.array([8, 11, 6, 14]) * n**0.8).sum())
        return {"loss": -worth, "weight": float(n @ [5, 7, 4, 9]), "volume": float(n @ [3, 2, 6, 4])}

    return _task([Integer(0, 30, name=name) for name in "abcd"], shown, "weight<=250", "volume<=160")


def _boosting() -> Task:
    """Trees of a made-up boosting: a model file that spans five decades, a category, a learning rate."""

    def shown(p: Any) -> Shown:
        megabytes = p["trees"] * 2.0 ** p["depth"] * {"exact": 1.0, "hist": 0.4}[p["method"]] * 1e-3
        fitted = p["rate"] * p["trees"] * p["depth"] ** 1.2
        loss = 0.2 + 0.05 * math.log10(fitted / 120) ** 2 + 0.02 * (p["depth"] - 8) ** 2 / 8 + 0.6 * p["rate"] ** 1.5
        return {"loss": loss + (0.01 if p["method"] == "hist" else 0.0), "megabytes": megabytes}

    return _task(
        [
            Integer(10, 5000, "log-uniform", name="trees"),
            Integer(2, 14, name="depth"),
            Real(1e-3, 0.5, "log-uniform", name="rate"),
            Categorical(["exact", "hist"], name="method"),
        ],
        shown,
        "megabytes<20",
    )


_CHOOSE = {
    "two-integers": _two_integers,
    "network": _network,
    "bent": _bent,
    "band": _band,
    "memory-and-time": _memory_and_time,
    "fast-enough": _fast_enough,
}
_HOLDOUT = {
    "gomez-levy": _gomez_levy,
    "vessel": _vessel,
    "weights-between": _weights_between,
    "boxes": _boxes,
    "boosting": _boosting,
}
TASKS = _CHOOSE | _HOLDOUT
GROUPS = {"choose": [*_CHOOSE], "holdout": [*_HOLDOUT]}

# ---------------------------------------------------------------- engines


class _Engine(Protocol):
    def ask(self) -> Point: ...

    def tell(self, shown: Shown) -> None:
        """What the point asked for last has shown."""
        ...


class _Ours:
    def __init__(self, name: str, task: Task, seed: int, n_trials: int) -> None:
        algorithm, self._task, self._history = name.replace("yes-no", "bayesian"), task, History(task.space)
        self._tells_figures = name != "yes-no"
        size = design_size(task.space, n_trials, has_bounds=self._tells_figures)
        self._search = make_search(algorithm, task.space, seed, {"n_initial_points": size} if name != "random" else {})
        self._history.bounds = task.bounds

    def ask(self) -> Point:
        point = self._search.suggest(self._history)
        assert point is not None
        self._point = point
        return point

    def tell(self, shown: Shown) -> None:
        state = "complete" if self._task.keeps(shown) else "failed"
        outcomes = {bound.name: shown[bound.name] for bound in self._task.bounds} if self._tells_figures else None
        self._history.record(self._history.n_suggested, self._point, state, shown["loss"], outcomes=outcomes)


class _Optuna:
    def __init__(self, name: str, task: Task, seed: int, n_trials: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        kind: Any = {"optuna-gp": optuna.samplers.GPSampler, "optuna-tpe": optuna.samplers.TPESampler}[name]
        sampler = kind(seed=seed, constraints_func=lambda trial: trial.user_attrs["excess"])
        self._study, self._task = optuna.create_study(sampler=sampler), task
        self._distributions = {p.name: optuna_distribution(p) for p in task.space.parameters}

    def ask(self) -> Point:
        self._trial = self._study.ask(self._distributions)
        return dict(self._trial.params)

    def tell(self, shown: Shown) -> None:
        self._trial.set_user_attr("excess", [bound.excess(shown[bound.name]) for bound in self._task.bounds])
        self._study.tell(self._trial, shown["loss"])


def search(engine_name: str, task_name: str, seed: int, n_trials: int) -> dict[str, float | None]:
    """The best loss of a feasible trial, the number of these, and mean CPU seconds of a suggestion."""
    task = TASKS[task_name]()
    make: Any = _Optuna if engine_name.startswith("optuna") else _Ours
    engine: _Engine = make(engine_name, task, seed, n_trials)
    losses = []
    began_s = time.process_time()
    for _ in range(n_trials):
        shown = task.shown(engine.ask())
        engine.tell(shown)
        losses += [shown["loss"]] if task.keeps(shown) else []
    cpu_s = (time.process_time() - began_s) / n_trials
    return {"best": min(losses, default=None), "n_feasible": len(losses), "cpu_s": cpu_s}


def main() -> None:
    arguments = _arguments()
    names = [name for given in arguments.tasks for name in GROUPS.get(given, [given])]
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    if arguments.keep and arguments.keep.exists():
        lines = map(json.loads, arguments.keep.read_text().splitlines())
        known = {tuple(line["key"]): line["result"] for line in lines}
    for seed in range(arguments.seeds):
        for task in names:
            for engine in arguments.engines:
                key = (task, engine, seed, arguments.trials)
                if key not in known:
                    known[key] = search(engine, task, seed, arguments.trials)
                    if arguments.keep:
                        with arguments.keep.open("a") as file:
                            print(json.dumps({"key": key, "result": known[key]}), file=file)
    summary = {
        task: {
            engine: _summary([known[task, engine, seed, arguments.trials] for seed in range(arguments.seeds)])
            for engine in arguments.engines
        }
        for task in names
    }
    for task, of_engines in summary.items():
        cells = (f"{e} {r['best']:.5g} ({r['n_feasible']:g}) {r['cpu_s']:.2f}s" for e, r in of_engines.items())
        h.say(f"{task:16} " + "  ".join(cells))
    print(json.dumps(summary))


def _summary(results: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Medians over seeds; a search without a feasible trial has an infinite best."""
    results = [*results]
    return {
        "best": float(np.median([math.inf if r["best"] is None else r["best"] for r in results])),
        "n_feasible": float(np.median([r["n_feasible"] for r in results])),
        "cpu_s": float(np.mean([r["cpu_s"] for r in results])),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["choose", "holdout"], choices=[*TASKS, *GROUPS])
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--keep", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
