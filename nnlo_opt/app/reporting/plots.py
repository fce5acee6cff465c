"""Plots of a run with matplotlib.

Every function draws on `ax` and returns it; without `ax` it creates new axes with pyplot, which a notebook shows. If
there is nothing to draw, a text on the axes tells why. Colours are distinguishable for all kinds of colour vision
(Okabe, Ito: Color Universal Design, 2008), and so is viridis.
"""

import io
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nnlo_opt.app.analysis.frames import parameter_names
from nnlo_opt.app.reporting.page_data import axis_of, curves_of, effects_data, measured_at_s, space_of, spans_of
from nnlo_opt.app.reporting.words import constraints_text
from nnlo_opt.core.base.errors import ConfigurationError, require_known, shown
from nnlo_opt.core.base.files import atomic_path, make_directory
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Trial, TrialState

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    Axes: TypeAlias = matplotlib.axes.Axes
    Figure: TypeAlias = matplotlib.figure.Figure

BLUE, ORANGE, GREEN, RED, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#8C8C8C"
# fmt: off
#: colours of the states of trials and ends of assignments; running ones are green
_HUES = {
    "complete": GREY, "pruned": ORANGE, "failed": RED, "paused": SKY, "preempted": SKY, "infeasible": GREEN,
    "finished": BLUE, "stopped": ORANGE, "lost": "black",
}
#: style of written figures: fonts embedded in PDF as Type 42, thin lines
_STYLE: dict[Any, Any] = {
    "font.size": 8, "legend.fontsize": 7, "axes.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "pdf.fonttype": 42, "savefig.dpi": 300,
}
# fmt: on
#: colours of several histories on the same axes, and the prefix of the gid of their lines
_OF_HISTORIES, _HISTORY = (BLUE, RED, GREEN, ORANGE, SKY, "black"), "history of "
#: use a logarithmic axis if the largest value is this many times the smallest
_LOG_FROM = 1000.0
#: limit of a linear axis: beyond it matplotlib cannot compute ticks
_MOST_DRAWN = 1e300
#: most trials with folds, most parallel axes, most bars with a number, most bars with an edge
_MOST_FOLDED, _MOST_PARALLEL, _MOST_NUMBERED, _MOST_EDGED = 40, 12, 60, 300
#: widths of a column and a page, and height, in inches
_COLUMN, _PAGE, _HEIGHT = 3.4, 7.0, 2.5


def plot_history(
    ledger: Ledger, ax: "Axes | None" = None, *, by: Literal["trials", "time"] = "trials", label: str = ""
) -> "Axes":
    """Draw the figure of merit of every trial, and the best so far.

    Several histories on the same axes have different colours and labels.

    Args:
        ledger: trials.
        ax: axes; None for new ones.
        by: "trials" for their numbers on the horizontal axis, or "time" for the end of their training.
        label: name of the run in the legend of several histories; if empty, its position among them.
    """
    require_known("`by`", by, ("trials", "time"))
    ax, (unit_s, unit) = _axes(ax), _unit(ledger)
    ended = [trial for trial in ledger.trials if trial.state.ended]
    place = {t.number: float(t.number) if by == "trials" else (measured_at_s(t) or 0.0) / unit_s for t in ended}
    complete = sorted(_complete(ledger), key=lambda trial: place[trial.number])
    if not complete:
        return _nothing(ax, ledger)
    others = [line for line in ax.lines if str(line.get_gid()).startswith(_HISTORY)]
    for line in others:
        line.set_label(f"best so far: {str(line.get_gid()).removeprefix(_HISTORY)}")
    name, hue = label or str(1 + len(others)), _OF_HISTORIES[len(others) % len(_OF_HISTORIES)]
    pruned, infeasible = ([t for t in ended if t.standing == standing] for standing in ("pruned", "infeasible"))
    failed = [place[trial.number] for trial in ended if trial.state is TrialState.FAILED]
    for trials, style in ((complete, "full"), (pruned, "none"), (infeasible, "none")):
        if trials:
            figures = [trial.figure_so_far or 0.0 if trials is pruned else _figure(trial) for trial in trials]
            xs, standing = [place[trial.number] for trial in trials], trials[0].standing
            colour, title = (hue, f"_{standing}") if others else (_HUES[standing], standing)
            ax.plot(xs, figures, "o", color=colour, markersize=3, alpha=0.7, fillstyle=style, label=title)
    if failed:
        at_the_bottom, title = ax.get_xaxis_transform(), "_" * bool(others) + "failed"
        ax.plot(
            failed,
            [0.02] * len(failed),
            "x",
            color=RED,
            markersize=4,
            transform=at_the_bottom,
            label="_" * bool(others) + "failed",
        )
    best = [*accumulate(map(_figure, complete), max if ledger.sign < 0 else min)]
    places = [*(place[trial.number] for trial in complete), max(place.values())]
    title = f"best so far: {name}" if others else "best so far"
    ax.step(places, [*best, best[-1]], where="post", color=hue, label=title, gid=f"{_HISTORY}{name}")
    ax.set_xlabel("trial" if by == "trials" else f"time / {unit}")
    ax.locator_params("x", integer=by == "trials")
    return _finished(ax, ledger, map(_figure, complete))


def plot_parameter(ledger: Ledger, name: str, ax: "Axes | None" = None) -> "Axes":
    """Draw the figure of merit of every complete trial against one of its parameters, with the best trial marked."""
    require_known("A parameter of the run", name, parameter_names(ledger))
    ax, trials = _axes(ax), [trial for trial in _complete(ledger) if name in trial.point]
    ax.set_xlabel(name)
    if not trials:
        return _nothing(ax, ledger)
    axis = axis_of(name, trials, space_of(ledger))
    places = axis["x"]
    if labels := axis["labels"]:
        # Trials with the same choice are placed side by side, spread by the golden ratio.
        places = [x + 0.4 * (t.number * 0.618034 % 1 - 0.5) for x, t in zip(places, trials, strict=True)]
        ax.set_xticks(range(len(labels)), labels)
        ax.set_xlim(-0.5, len(labels) - 0.5)
    elif axis["log"]:
        ax.set_xscale("log")
    ax.plot(places, [*map(_figure, trials)], "o", color=BLUE, markersize=3, alpha=0.6)
    best = ledger.best()
    if best in trials:
        label = f"best: trial {best.number}"
        ax.plot(places[trials.index(best)], _figure(best), "*", color=RED, markersize=9, label=label)
    return _finished(ax, ledger, map(_figure, trials))


def plot_parallel(ledger: Ledger, ax: "Axes | None" = None, names: Sequence[str] | None = None) -> "Axes":
    """Draw parallel coordinates: a line for every complete trial through one axis per parameter to its figure of merit.

    Better trials have darker lines; a line has a gap where the trial does not have the parameter.

    Args:
        ledger: trials.
        ax: axes; None for new ones.
        names: parameters in order; None for all that vary, at most 12.
    """
    from matplotlib.collections import LineCollection

    for name in names or ():
        require_known("A parameter of the run", name, parameter_names(ledger))
    ax, trials = _axes(ax), sorted(_complete(ledger), key=lambda trial: -ledger.sign * _figure(trial))
    if not trials:
        return _nothing(ax, ledger)
    axes = [axis_of(name, trials, space_of(ledger)) for name in names or parameter_names(ledger)]
    if names is None:
        axes = ([axis for axis in axes if len({*axis["x"]} - {None}) > 1] or axes)[:_MOST_PARALLEL]
    figures = [*map(_figure, trials)]
    last = {"name": _figure_name(ledger), "x": figures, "log": _spans_decades(figures), "low": None, "labels": None}
    axes.append(last)
    behind = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
    for i, axis in enumerate(axes):
        ax.axvline(i, color="0.75", linewidth=0.8, zorder=0)
        for place, label in _ticks(axis):
            at = i, _share(axis, place)
            ax.annotate(label, at, (3, 0), textcoords="offset points", va="center", size="x-small", bbox=behind)
    lines = [[(i, _share(axis, axis["x"][row])) for i, axis in enumerate(axes)] for row in range(len(trials))]
    shades = [i / max(len(trials) - 1, 1) for i in reversed(range(len(trials)))]
    ax.add_collection(LineCollection(lines, array=shades, cmap="viridis", clim=(0, 1), linewidths=0.8, alpha=0.8))
    titles = [axis["name"] for axis in axes]
    is_wide = sum(map(len, titles)) > 70
    ax.set_xticks(range(len(titles)), titles, rotation=20 * is_wide, ha="right" if is_wide else "center")
    ax.set_xlim(-0.1, len(titles) - 0.5)
    ax.set_ylim(-0.05, 1.05)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return ax


def plot_importance(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw the importance of each parameter (`app.analysis.effects`), with a 90 % band."""
    ax, found = _axes(ax), effects_data(ledger, space_of(ledger))
    if "effects" not in found:
        return _nothing(ax, ledger, found["why"])
    low, middle, high = zip(*(effect["importance"] for effect in found["effects"]), strict=True)
    reach = [[b - a for a, b in zip(low, middle, strict=True)], [b - a for a, b in zip(middle, high, strict=True)]]
    names = [effect["name"] for effect in found["effects"]]
    ax.barh(names, middle, xerr=reach, color=SKY, ecolor="black", capsize=2)
    ax.invert_yaxis()
    ax.set_xlim(left=0.0)
    after = "" if found["epoch"] is None else f" after epoch {found['epoch']}"
    ax.set_xlabel(
        f"share of the variance of {_figure_name(ledger)}{after}\n(fit explains {max(found['explained'], 0.0):.0%})"
    )
    return ax


def plot_curves(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw the figure of merit of every trial after each epoch, as the mean over its folds."""
    ax, curves, best = _axes(ax), curves_of(ledger.trials), ledger.best()
    if not curves:
        return _nothing(ax, ledger, "No epoch was reported." if ledger.trials else "")
    shown: set[str] = set()
    for number, epochs, figures in curves:
        trial, marker = ledger.trials[number], "." if len(epochs) == 1 else ""
        if trial is best:
            ax.plot(epochs, figures, marker=marker, color=BLUE, lw=2, zorder=3, label=f"best: trial {number}")
        else:
            label = trial.state.value
            hue = _HUES.get(label, GREEN)
            ax.plot(epochs, figures, marker=marker, color=hue, lw=0.8, alpha=0.6, label=_once(shown, label))
    ax.set_xlabel("epoch")
    ax.locator_params("x", integer=True)
    return _finished(ax, ledger, (figure for _, _, figures in curves for figure in figures))


def plot_folds(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw the figure of merit of each fold, and the mean over the folds, of at most 40 best trials."""
    ax, complete = _axes(ax), sorted(_complete(ledger), key=lambda trial: ledger.sign * _figure(trial))
    trials = [trial for trial in complete if len(trial.folds) > 1][:_MOST_FOLDED]
    if not trials:
        return _nothing(ax, ledger, "No trial has several folds." if complete else "")
    folds = [[result.figure_of_merit for result in trial.folds.values()] for trial in trials]
    shown: set[str] = set()
    for i, figures in enumerate(folds):
        ax.plot([i] * len(figures), figures, "o-", color=SKY, markersize=3, linewidth=0.6, label=_once(shown, "fold"))
    ax.plot(range(len(trials)), [*map(_figure, trials)], "_", color=BLUE, markersize=8, label="mean")
    ax.set_xticks(range(len(trials)), [str(trial.number) for trial in trials], rotation=90 * (len(trials) > 15))
    ax.set_xlabel("trial, the best first")
    return _finished(ax, ledger, (figure for figures in folds for figure in figures))


def plot_pareto(ledger: Ledger, ax: "Axes | None" = None, objectives: Sequence[str] | None = None) -> "Axes":
    """Draw two objectives of every complete trial against each other, with the Pareto set marked.

    Args:
        ledger: trials.
        ax: axes; None for new ones.
        objectives: names of two objectives; None for the first two.
    """
    known = {objective.name: objective for objective in ledger.objectives}
    for name in objectives or ():
        require_known("An objective of the run", name, known)
    ax, trials = _axes(ax), _complete(ledger)
    if len(known) < 2 or not trials:
        return _nothing(ax, ledger, "" if len(known) > 1 else "The run has one objective.")
    x, y = [*dict.fromkeys([*(objectives or ()), *known])][:2]
    chosen = sorted((t for t in trials if t.number in ledger.pareto), key=lambda trial: trial.objectives[x])
    xs, ys = [trial.objectives[x] for trial in trials], [trial.objectives[y] for trial in trials]
    ax.plot(xs, ys, "o", color=GREY, markersize=3, label="trial")
    # With more than two objectives the Pareto set is not a line in two of them.
    front = [trial.objectives[x] for trial in chosen], [trial.objectives[y] for trial in chosen]
    ax.plot(*front, "o-" if len(known) == 2 else "o", color=BLUE, markersize=5, linewidth=0.8, label="Pareto set")
    ax.set_xscale("log" if _spans_decades(xs) else "linear")
    ax.set_xlabel(f"{x} ({known[x].direction}imised)")
    _finished(ax, ledger, ys)
    ax.set_ylabel(f"{y} ({known[y].direction}imised)")
    return ax


def plot_blocks(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw what each block trained when: one bar per assignment, with the trial's number if there are few."""
    ax, spans, (unit_s, unit) = _axes(ax), spans_of(ledger), _unit(ledger)
    if not spans:
        return _nothing(ax, ledger, "No trial was assigned to a block." if ledger.trials else "")
    rows = [*zip(*(spans[key] for key in ("block", "team", "from_s", "to_s", "how", "trial")), strict=True)]
    teams = {block: sorted({row[1] for row in rows if row[0] == block}) for block in sorted({*spans["block"]})}
    # An edge between bars would hide narrow ones.
    edge, shown = 0.4 if len(rows) <= _MOST_EDGED else 0.0, set[str]()
    for block, team, from_s, to_s, how, trial in rows:
        height = 0.8 / len(teams[block])
        y, begin, width = block - 0.4 + height * (teams[block].index(team) + 0.5), from_s / unit_s, to_s - from_s
        hue = _HUES.get(how, GREEN)
        ax.barh(y, width / unit_s, height, begin, color=hue, ec="white", lw=edge, label=_once(shown, how))
        if len(rows) <= _MOST_NUMBERED:
            middle = begin + width / unit_s / 2
            ax.text(middle, y, str(trial), ha="center", va="center", color="white", fontsize="x-small", clip_on=True)
    for session in ledger.sessions[1:]:
        ax.axvline(session.started_at_s / unit_s, color="black", linewidth=0.6, linestyle=":")
    ax.set_xlim(left=0.0)
    ax.set_yticks([*teams])
    ax.invert_yaxis()
    ax.set_xlabel(f"time / {unit}")
    ax.set_ylabel("block")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(_HUES), frameon=False)
    return ax


# ---------------------------------------------------------------- files for a paper


def write_figures(ledger: Ledger, folder: SafePath) -> list[SafePath]:
    """Write all non-empty figures as PNG and PDF to `folder`; return the paths."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    make_directory(folder)
    drawn: list[tuple[str, float, Callable[..., Any]]] = [
        ("history", _COLUMN, plot_history),
        ("history_time", _COLUMN, partial(plot_history, by="time")),
        ("parallel", _PAGE, plot_parallel),
        ("importance", _COLUMN, plot_importance),
        ("curves", _COLUMN, plot_curves),
        ("folds", _COLUMN, plot_folds),
        ("pareto", _COLUMN, plot_pareto),
        ("blocks", _PAGE, plot_blocks),
    ]
    paths: list[SafePath] = []
    with rc_context(_STYLE):
        for name, width, draw in drawn:
            figure = Figure((width, _HEIGHT), layout="constrained")
            if draw(ledger, figure.subplots()).has_data():
                paths += _written(figure, folder / name)
        names = [name for name in parameter_names(ledger) if any(name in trial.point for trial in _complete(ledger))]
        if names:
            paths += _written(_parameters(ledger, names), folder / "parameters")
    return paths


def _parameters(ledger: Ledger, names: Sequence[str]) -> "Figure":
    """Return a figure with axes for each parameter."""
    from matplotlib.figure import Figure

    n_columns = min(len(names), 3)
    n_rows = -(-len(names) // n_columns)
    figure = Figure((_PAGE / 3 * n_columns, _HEIGHT * n_rows), layout="constrained")
    every = [*figure.subplots(n_rows, n_columns, sharey=True, squeeze=False).flat]
    for i, (name, ax) in enumerate(zip(names, every, strict=False)):
        plot_parameter(ledger, name, ax)
        ax.yaxis.label.set_visible(i % n_columns == 0)
        if i and (legend := ax.get_legend()) is not None:
            legend.remove()
    for ax in every[len(names) :]:
        ax.remove()
    return figure


def picture(ledger: Ledger) -> bytes:
    """Return the history of a search, or the curves of a training, as PNG."""
    from matplotlib.figure import Figure

    figure, file = Figure((5.0, 2.6), layout="constrained"), io.BytesIO()
    draw = plot_history if len(ledger.trials) > 1 else plot_curves
    draw(ledger, figure.subplots())
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _written(figure: "Figure", stem: SafePath) -> list[SafePath]:
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf")]
    for path in paths:
        with atomic_path(path, durable=False) as temporary, temporary.open("wb") as file:
            # Without the time, so that the same run gives the same bytes.
            kind = path.name[-3:]
            figure.savefig(file, format=kind, metadata={"CreationDate": None} if kind == "pdf" else {})
    return paths


# ---------------------------------------------------------------- parts of figures


_ONE_OF_AXES = "Give one of `figure.subplots()`"


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None and not hasattr(ax, "transAxes"):
        given: Any = ax
        is_name = isinstance(given, str)
        what = "Save the figure by `.figure.savefig(...)` of what is returned" if is_name else _ONE_OF_AXES
        raise ConfigurationError(f"`ax` must be axes of matplotlib. Received: {shown(ax)}. {what}.")
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _nothing(ax: "Axes", ledger: Ledger, sentence: str = "") -> "Axes":
    """Write on the axes why they are empty; the default `sentence` is that no trial is complete."""
    if not (sentence := sentence or constraints_text(ledger)):
        n_trials, n_failed = len(ledger.trials), ledger.n_by_state()["failed"]
        sentence = f"No trial is complete: {n_failed} of {n_trials} failed." if n_trials else "There is no trial yet."
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, sentence, ha="center", va="center", transform=ax.transAxes, wrap=True)
    return ax


def _finished(ax: "Axes", ledger: Ledger, figures: Iterable[float]) -> "Axes":
    """Label the vertical axis, make it logarithmic if the figures of merit span decades, and add a legend."""
    ax.set_ylabel(f"{_figure_name(ledger)} ({ledger.direction}imised)")
    ax.set_yscale("log" if _spans_decades(known := [*figures]) else "linear")
    if max(map(abs, known)) > _MOST_DRAWN and ax.get_yscale() == "linear":
        ax.set_ylim(max(min(0.0, *known), -_MOST_DRAWN), min(max(0.0, *known), _MOST_DRAWN))
    if ax.get_legend_handles_labels()[1]:
        ax.legend(framealpha=0.8, edgecolor="none")
    return ax


def _once(shown: set[str], label: str) -> str:
    """Return a label for the legend, or one that the legend omits if it is `shown` already."""
    known = label in shown
    shown.add(label)
    return "_" * known + label


def _complete(ledger: Ledger) -> list[Trial]:
    """Return the complete, feasible trials."""
    return [trial for trial in ledger.trials if trial.feasible]


def _figure(trial: Trial) -> float:
    assert trial.figure_of_merit is not None
    return trial.figure_of_merit


def _figure_name(ledger: Ledger) -> str:
    name = ledger.identity.figure_of_merit or "value"
    return "figure of merit" if name == "value" else name


def _spans_decades(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= _LOG_FROM


def _unit(ledger: Ledger) -> tuple[float, str]:
    """Return the unit of the time axis in seconds, and its name."""
    last_s = ledger.sessions[-1].last_at_s if ledger.sessions else 0.0
    return (1.0, "s") if last_s < 120 else (60.0, "min") if last_s < 7200 else (3600.0, "h")


def _ends(axis: dict[str, Any]) -> tuple[float, float]:
    """Return the ends of a parallel axis: bounds of the parameter, first and last choice, or extreme values."""
    if axis["labels"]:
        return 0, len(axis["labels"]) - 1
    values = [x for x in axis["x"] if x is not None] or [0.0]
    return (min(values), max(values)) if axis["low"] is None else (axis["low"], axis["high"])


def _share(axis: dict[str, Any], place: float | None) -> float:
    """Return the relative position on an axis, 0 to 1; NaN for None."""
    low, high = _ends(axis)
    if place is None or low == high:
        return math.nan if place is None else 0.5
    return math.log(place / low) / math.log(high / low) if axis["log"] else (place - low) / (high - low)


def _ticks(axis: dict[str, Any]) -> Iterable[tuple[float, str]]:
    """Return (position, label) of ticks: all choices, or the ends and the middle of a numeric axis."""
    if axis["labels"]:
        return enumerate(axis["labels"])
    low, high = _ends(axis)
    middle = math.sqrt(low * high) if axis["log"] else (low + high) / 2
    return [(place, f"{place:.3g}") for place in dict.fromkeys((low, middle, high))]
