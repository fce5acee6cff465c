"""Tasks of `curves.py`: the learning curve of each point of a search space, and the noise that a search sees."""

import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pruning_tables

from nnlo_opt.space import Point, Real, Space

OPTIMA = Path(__file__).parents[1] / "measured" / "curves_optima.json"
TASKS = {
    "choose": ["34539", "126029", "167152", "167161", "167200", "168335", "168868", "168910", "189354", "189873"],
    "note": ["126025", "126026", "146212", "167104", "167190", "168331", "168908", "189865", "189906", "189908"],
    "tables": list(pruning_tables.N_TRAIN),
    "late": [f"late-{number}" for number in range(5)],
}
N_EPOCHS = 52
START_S, NOISE, CORRELATION = 2.0, 0.3, 0.5

#: errors in percent after each epoch, and the seconds of each
Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Task:
    """What a search is tried on; `curve` has no noise."""

    name: str
    space: Space
    curve: Callable[[Point], Curve]
    #: the least error in percent at the end, and the mean seconds of a full training; 0 before they are known
    optimum: float
    training_s: float

    def observed(self, point: Point, seed: int | None) -> list[float]:
        """Errors that a search sees; None: without noise. Measured tables have noise of their own."""
        errors, _ = self.curve(point)
        if seed is None or self.name in TASKS["tables"]:
            return list(map(float, errors))
        text = f"{self.name} {seed} {[float(point[name]).hex() for name in self.space.names]}"  # type: ignore[arg-type]
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))
        noise, *steps = rng.normal(0.0, NOISE, N_EPOCHS)
        values = [float(errors[0] + noise)]
        for error, step in zip(errors[1:], steps, strict=True):
            noise = CORRELATION * noise + math.sqrt(1 - CORRELATION**2) * step
            values.append(float(error + noise))
        return values


@cache
def task_of(name: str, folder: Path | None) -> Task:
    """A task by its name; `folder` has the surrogate, which tasks of LCBench need."""
    optimum, training_s = json.loads(OPTIMA.read_text()).get(name, (0.0, 0.0))
    if name in TASKS["tables"]:
        table = pruning_tables.Table(name)
        errors, seconds = 100 * table.errors, np.ones(N_EPOCHS)
        space, optimum, training_s = pruning_tables.SPACE, float(errors[:, -1].min()), float(N_EPOCHS)

        def curve(point: Point) -> Curve:
            return errors[table.nearest(point)], seconds
    elif name in TASKS["late"]:
        space, curve = Space([Real(0.0, 1.0, name=f"x{i}") for i in range(4)]), _late_risers(int(name.split("-")[1]))
    else:
        if folder is None:
            raise SystemExit(f"A task of LCBench needs `--curves FOLDER`. Received: {name} without it.")
        asked = _surrogate(folder)
        space = Space([Real(0.0, 1.0, name=f"x{i}") for i in range(7)])

        def curve(point: Point) -> Curve:
            accuracy, _, seconds = asked.curves(name, [[point[axis] for axis in space.names]])
            return 100 - accuracy[0], np.diff(seconds[0], prepend=0.0)

    @lru_cache(10_000)
    def remembered(items: tuple[tuple[str, Any], ...]) -> Curve:
        return curve(dict(items))

    return Task(name, space, lambda point: remembered(tuple(point.items())), optimum, training_s)


@cache
def _surrogate(folder: Path) -> Any:
    sys.path.append(str(folder))
    return importlib.import_module("lcbench").LCBench(folder / "lcbench.onnx")


def _late_risers(number: int) -> Callable[[Point], Curve]:
    """Curves from 90 % to an end between 5 and 60 %, the slower the better the end: they cross after 2 to 15 epochs."""
    rng = np.random.default_rng(number)
    best, weights = rng.uniform(0.1, 0.9, 4), rng.dirichlet(np.full(4, 4.0))
    epochs = np.arange(1, N_EPOCHS + 1)

    def curve(point: Point) -> Curve:
        away = np.array([point[f"x{i}"] for i in range(4)]) - best
        quality = float(np.exp(-20 * weights @ away**2))
        end = 60 - 55 * quality
        return end + (90 - end) * np.exp(-epochs / (2 + (6 + 2 * number) * quality)), np.ones(N_EPOCHS)

    return curve


def optimum_of(task: Task) -> tuple[float, float]:
    """The least final error of 6,000 random points, refined around the best twenty, and mean seconds of the points."""
    rng = np.random.default_rng(0)
    rows = rng.random((6000, len(task.space.names)))

    def curve(row: np.ndarray) -> Curve:
        return task.curve(dict(zip(task.space.names, row.tolist(), strict=True)))

    errors, seconds = np.array([(errors[-1], seconds.sum()) for errors, seconds in map(curve, rows)]).T
    best = [(errors[i], rows[i]) for i in errors.argsort()[:20]]
    for step in range(400):
        for i, (error, row) in enumerate(best):
            away = rng.normal(0.0, 0.3 * 0.985**step, len(row)) * (rng.random(len(row)) < 0.5)
            tried = np.clip(row + away, 0.0, 1.0)
            if (found := curve(tried)[0][-1]) < error:
                best[i] = (found, tried)
    return round(float(min(error for error, _ in best)), 4), round(float(seconds.mean()), 2)


@dataclass(frozen=True)
class Run:
    """One search: a method on a task."""

    method: str
    task: str
    seed: int
    n_blocks: int
    noisy: bool
    folder: Path | None

    @property
    def key(self) -> str:
        """Where its figures are kept, by task and seed."""
        return f"{self.method} {self.n_blocks} {'noisy' if self.noisy else 'clean'}"

    @property
    def noise_seed(self) -> int | None:
        return self.seed if self.noisy else None


#: (virtual seconds, trial, last figure), in the order of time; and the points of the trials
Reported = tuple[Iterable[tuple[float, int, float]], Sequence[Point]]
