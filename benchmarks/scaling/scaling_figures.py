"""The pictures of docs/scaling.md: speed-up against workers, and accuracy against workers with momentum."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from scaling_momentum import median_end, trainings_of

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "nnlo_opt", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}
mpl.rcParams |= {"grid.alpha": 0.3, "legend.fontsize": 7.5, "legend.frameon": False}

#: mpi_learn's talk (D. Anderson, DS@HEP, 11 May 2017): linear to about 15 GPUs, 30 times as fast on 60
TALK_LINEAR, TALK = (1, 15), (60, 30)


def speed_ups(
    curves: dict[str, Callable[[int], float]], measured: dict[str, list[tuple[int, float]]], path: Path
) -> None:
    """Draw `curves` of the model, by name, and points that were `measured`: (workers, speed-up)."""
    figure, (near, far) = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")
    for axes, last in ((near, 8), (far, 64)):
        workers = range(1, last + 1)
        axes.plot(workers, workers, color="gray", linewidth=0.8, linestyle=":", label="linear")
        for (name, speed_up), colour in zip(
            curves.items(), ("tab:blue", "tab:orange", "tab:green", "tab:red"), strict=True
        ):
            if axes is far or name.startswith("LSTM"):
                how = {"linewidth": 1.2, "color": colour, "label": f"model: {name}"}
                axes.plot(workers, [speed_up(n) for n in workers], **how)
        for (name, points), mark in zip(measured.items(), "os^", strict=False):
            how = {"markersize": 5, "fillstyle": "none", "color": "black", "label": f"measured: {name}"}
            axes.plot(*zip(*points, strict=True), mark, **how)
        axes.set(xlabel="workers", ylabel="speed-up")
    far.plot(TALK_LINEAR, TALK_LINEAR, color="tab:purple", linewidth=4, alpha=0.35, label="talk of 2017: linear to 15")
    far.plot(*TALK, "*", color="tab:purple", markersize=13, label="talk of 2017: 30 at 60")
    near.set(title="LSTM, 1 to 8 workers", xlim=(0.7, 8.3), ylim=(0, 8.6))
    far.set(title="beyond this machine", xscale="log", yscale="log", xlim=(0.9, 70), ylim=(0.8, 70))
    for axis in (far.xaxis, far.yaxis):
        axis.set_ticks([1, 2, 4, 8, 15, 30, 60], ["1", "2", "4", "8", "15", "30", "60"])
        axis.set_ticks([], minor=True)
    near.legend(loc="upper left")
    shown = [line for line in far.get_lines() if str(line.get_label()).startswith(("talk", "model"))]
    far.legend(handles=shown, loc="upper left")
    save(figure, path)


def momentum(found: dict[str, Any], path: Path) -> None:
    """Draw errors of `momentum.py` in percent: by workers, and by epochs of the most workers and of one."""
    figure, (by_workers, by_epochs) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    workers = sorted({training["workers"] for training in found["trainings"]})
    most, one = workers[-1], 100 - median_end(trainings_of(found, 1))
    for corrected, label, colour in ((False, "momentum as asked", "tab:red"), (True, "corrected", "tab:blue")):
        ends = [[t["accuracy"][-1] for t in trainings_of(found, n, corrected)] for n in workers]
        spread(by_workers, workers, ends, colour, label)
        epochs(by_epochs, trainings_of(found, most, corrected), colour, f"{most} workers, {label}")
    epochs(by_epochs, trainings_of(found, 1), "black", "1 worker")
    by_workers.axhspan(one, one + 1, color="gray", alpha=0.25, label="one worker, and a point more")
    by_workers.set(xlabel="workers", ylabel="validation error, %", title="at the end", xticks=workers)
    by_epochs.set(xlabel="epoch", title="in the course of the training")
    for axes in (by_workers, by_epochs):
        axes.set(yscale="log", ylim=(4, 120))
        axes.yaxis.set_ticks([5, 6, 7, 8, 10, 20, 50, 100], ["5", "6", "7", "8", "10", "20", "50", "100"])
        axes.yaxis.set_ticks([], minor=True)
        axes.legend(loc="center right" if axes is by_epochs else "center left")
    save(figure, path)


def epochs(axes: Any, trainings: list[Any], colour: str, label: str) -> None:
    """Draw trainings epoch by epoch."""
    by_epoch = list(zip(*(t["accuracy"] for t in trainings), strict=True))
    spread(axes, range(1, len(by_epoch) + 1), by_epoch, colour, label)


def spread(axes: Any, at: Sequence[int], values: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Draw 100 minus the median of the `values` at each place, with a band from the least to the greatest."""
    low, high = ([100 - pick(v) for v in values] for pick in (max, min))
    axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(at, [100 - statistics.median(v) for v in values], "o-", color=colour, markersize=3, label=label)


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG; equal figures give equal files."""
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
