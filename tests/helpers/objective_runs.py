"""Searches of an objective on real ranks, in `checkpoints/S` of a folder; runs of the launcher, in `checkpoints/L`."""

import json
from pathlib import Path

from tests.helpers import launcher, objectives
from tests.helpers.launcher import Outcome

#: words that the launcher starts
DRIVER = ["OptimizationDriver", "--model", "objective.py", "--hyper-opt", "random", "--checkpoint", "L"]


def launch(
    folder: Path, *driver: str, options: tuple[str, ...] = (), model: str = objectives.SLOW, n_ranks: int = 5
) -> launcher.Job:
    """The launcher with ranks, started."""
    (folder / "objective.py").write_text(model)
    return launcher.start(1, ["nnlo-opt", "launch", "-n", str(n_ranks), *options, "--", *driver], folder)


def begin(cwd: Path, text: str, n_ranks: int, *options: str) -> launcher.Job:
    """A search of the objective of a text, started."""
    (cwd / "objective.py").write_text(text)
    command = ["OptimizationDriver", "--model", "objective.py", "--checkpoint", "S", *options]
    return launcher.start(n_ranks, command, cwd)


def search(cwd: Path, text: str, n_ranks: int, *options: str, code: int | None = 0, wait_s: float = 120) -> Outcome:
    """As `begin`, to its end."""
    return begin(cwd, text, n_ranks, *options).wait(wait_s, code)


def rows(cwd: Path) -> list[dict[str, str]]:
    return launcher.results_of(cwd / "checkpoints/S")


def summary(cwd: Path) -> dict:
    return json.loads((cwd / "checkpoints/S/summary.json").read_text())
