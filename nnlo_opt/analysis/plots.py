"""Figures of a run on axes of matplotlib.

Every function draws on `ax` and returns it; without one it makes new axes by pyplot, which a notebook shows. If there
is nothing to draw, the axes say so. Hues are distinct for all kinds of colour vision (Okabe, Ito: Color Universal
Design, 2008), and so is viridis.
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nnlo_opt.analysis.frames import declared_parameters, parameter_names
from nnlo_opt.errors import ConfigurationError, did_you_mean
from nnlo_opt.files import atomic_path, make_directory
from nnlo_opt.space.space import Space
from nnlo_opt.space.values import is_number, text
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import Assignment, AssignmentEnd, Trial, TrialState

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    Axes: TypeAlias = matplotlib.axes.Axes
    Figure: TypeAlias = matplotlib.figure.Figure

BLUE, ORANGE, GREEN, RED, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#8C8C8C"
#: colours of curves by the state of their trial, and of bars by the end of their assignment; None: under way
_OF_STATE = {
    TrialState.COMPLETE: GREY,
    TrialState.PRUNED: ORANGE,
    TrialState.FAILED: RED,
    TrialState.PAUSED: SKY,
    TrialState.PREEMPTED: SKY,
    TrialState.RUNNING: GREEN,
    TrialState.PENDING: GREEN,
}
_OF_END: dict[AssignmentEnd | None, str] = {
    AssignmentEnd.FINISHED: BLUE,
    AssignmentEnd.STOPPED: ORANGE,
    AssignmentEnd.PAUSED: SKY,
    AssignmentEnd.PREEMPTED: GREY,
    AssignmentEnd.FAILED: RED,
    AssignmentEnd.LOST: "black",
    None: GREEN,
}
#: values are drawn on a logarithmic axis if the largest is so many times the least
_LOG_FROM = 1000.0
#: most trials whose folds are drawn, most axes in parallel, most bars with a number on them
_MOST_FOLDED, _MOST_PARALLEL, _MOST_NUMBERED = 40, 12, 60
#: settings of the figures that are written: fonts are embedded in PDF as they are (Type 42), lines are thin
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
}
#: width of a column and of a page, and height, in inches
_COLUMN, _PAGE, _HEIGHT = 3.4, 7.0, 2.5


def plot_history(ledger: Ledger, ax: "Axes | None" = None, *, by: str = "trials") -> "Axes":
    """Draw the figure of merit of every trial, and the best so far.

    Args:
        ledger: trials.
        ax: axes; None for new ones.
        by: "trials" for their numbers on the horizontal axis, or "time" for the end of their training.
    """
    if by not in ("trials", "time"):
        raise ConfigurationError(f'`by` must be "trials" or "time". Received: {by!r}. Choose one of the two.')
    ax = _axes(ax)
    unit_s, unit = _unit(ledger)
    ended = [trial for trial in ledger.trials if trial.state.ended]
    place = {t.number: float(t.number) if by == "trials" else _trained_until_s(t) / unit_s for t in ended}
    complete = sorted(_complete(ledger), key=lambda trial: place[trial.number])
    if not complete:
        return _nothing(ax, _no_figures(ledger))
    figures = [_figure(trial) for trial in complete]
    pruned = [trial for trial in ended if trial.figure_of_merit is None and trial.figure_so_far is not None]
    failed = [trial for trial in ended if trial.state is TrialState.FAILED]
    places = [place[trial.number] for trial in complete]
    ax.plot(places, figures, "o", color=GREY, markersize=3, alpha=0.7, label="complete")
    if pruned:
        so_far = [trial.figure_so_far or 0.0 for trial in pruned]
        at = [place[trial.number] for trial in pruned]
        ax.plot(at, so_far, "o", color=ORANGE, markersize=3, fillstyle="none", label="pruned")
    if failed:
        at, bottom = [place[trial.number] for trial in failed], ax.get_xaxis_transform()
        ax.plot(at, [0.02] * len(at), "x", color=RED, markersize=4, transform=bottom, label="failed")
    best = [*accumulate(figures, max if _sign(ledger) < 0 else min)]
    until = max(place.values())
    ax.step([*places, until], [*best, best[-1]], where="post", color=BLUE, label="best so far")
    _figure_scale(ax, figures, ledger)
    ax.set_xlabel("trial" if by == "trials" else f"time / {unit}")
    ax.locator_params("x", integer=by == "trials")
    ax.legend(frameon=False)
    return ax


def plot_parameter(ledger: Ledger, name: str, ax: "Axes | None" = None) -> "Axes":
    """Draw the figure of merit of every complete trial against one of its parameters, with the best trial marked."""
    scale, ax = _scale_of(ledger, name), _axes(ax)
    ax.set_xlabel(name)
    trials = [trial for trial in _complete(ledger) if name in trial.point]
    if not trials:
        return _nothing(ax, _no_figures(ledger))
    # Trials of the same choice stand beside each other, spread evenly by the golden ratio.
    places = [scale.place(t.point[name]) + bool(scale.choices) * 0.4 * (t.number * 0.618034 % 1 - 0.5) for t in trials]
    figures = [_figure(trial) for trial in trials]
    ax.plot(places, figures, "o", color=BLUE, markersize=3, alpha=0.6)
    best = ledger.best(_direction(ledger))
    if best in trials:
        at = trials.index(best)
        ax.plot(places[at], figures[at], "*", color=RED, markersize=9, label=f"best: trial {best.number}")
        ax.legend(frameon=False)
    if scale.choices:
        ax.set_xticks(range(len(scale.choices)), list(scale.choices.values()))
        ax.set_xlim(-0.5, len(scale.choices) - 0.5)
    elif scale.is_log:
        ax.set_xscale("log")
    _figure_scale(ax, figures, ledger)
    return ax


def plot_parallel(ledger: Ledger, ax: "Axes | None" = None, names: Sequence[str] | None = None) -> "Axes":
    """Draw every complete trial as a line through an axis for each parameter to its figure of merit.

    The better a trial, the darker its line; a line has a gap if the trial does not have the parameter.

    Args:
        ledger: trials.
        ax: axes; None for new ones.
        names: parameters in their order; None for all that vary, 12 at most.
    """
    from matplotlib.collections import LineCollection

    trials = sorted(_complete(ledger), key=lambda trial: -_sign(ledger) * _figure(trial))
    if names is None:
        known = parameter_names(ledger)
        names = ([name for name in known if len(_texts(trials, name)) > 1] or known)[:_MOST_PARALLEL]
    scales, ax = [_scale_of(ledger, name) for name in names], _axes(ax)
    if not trials:
        return _nothing(ax, _no_figures(ledger))
    figures = [_figure(trial) for trial in trials]
    of_figure = _Scale(low=min(figures), high=max(figures), is_log=_spans_decades(figures))
    behind = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
    for i, scale in enumerate([*scales, of_figure]):
        ax.axvline(i, color="0.75", linewidth=0.8, zorder=0)
        for share, label in scale.ticks():
            ax.annotate(label, (i, share), (3, 0), textcoords="offset points", va="center", size="x-small", bbox=behind)
    numbered = [*zip(range(len(names)), names, scales, strict=True)]
    lines = [
        [(i, scale.share(trial.point[name]) if name in trial.point else math.nan) for i, name, scale in numbered]
        + [(len(names), of_figure.share(_figure(trial)))]
        for trial in trials
    ]
    shades = [1.0 - i / max(len(trials) - 1, 1) for i in range(len(trials))] if len(trials) > 1 else [0.0]
    ax.add_collection(LineCollection(lines, array=shades, cmap="viridis", linewidths=0.8, alpha=0.8))
    is_wide = sum(map(len, names)) > 60
    titles = [*names, _figure_name(ledger)]
    ax.set_xticks(range(len(titles)), titles, rotation=20 * is_wide, ha="right" if is_wide else "center")
    ax.set_xlim(-0.1, len(names) + 0.5)
    ax.set_ylim(-0.05, 1.05)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return ax


def plot_importance(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw the importance of each parameter (`analysis.effects`), with a band that holds nine of ten functions."""
    from nnlo_opt.analysis.effects import MIN_TRIALS, effects_of

    ax, plain = _axes(ax), ledger.identity.get("search_space")
    if plain is None:
        return _nothing(ax, "The run has no search space.")
    space = Space.from_json(plain)
    trials = [trial for trial in _complete(ledger) if space.contains(trial.point)]
    figures = [_figure(trial) for trial in trials]
    if len(trials) < MIN_TRIALS:
        return _nothing(ax, f"Importance needs {MIN_TRIALS} complete trials; there are {len(trials)}.")
    try:
        found = effects_of(space, [trial.point for trial in trials], figures, maximise=_sign(ledger) < 0)
    except (ValueError, ArithmeticError):  # a LinAlgError is a ValueError
        return _nothing(ax, "No smooth function fits the complete trials.")
    low, middle, high = zip(*(effect.importance for effect in found.effects), strict=True)
    reach = [[m - b for m, b in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
    names = [effect.name for effect in found.effects]
    ax.barh(names, middle, xerr=reach, color=SKY, ecolor="black", capsize=2)
    ax.invert_yaxis()
    ax.set_xlim(left=0.0)
    ax.set_xlabel(f"share of variance (fit explains {max(found.explained, 0.0):.0%})")
    return ax


def plot_curves(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw the figure of merit of every trial after each epoch, as the mean over its folds."""
    ax = _axes(ax)
    curves = {trial.number: _curve(trial) for trial in ledger.trials if trial.reports}
    if not any(curves.values()):
        return _nothing(ax, "No epoch was reported." if ledger.trials else _no_figures(ledger))
    best = ledger.best(_direction(ledger))
    shown: set[str] = set()
    for trial in ledger.trials:
        if not (curve := curves.get(trial.number)):
            continue
        is_best = trial is best
        label = f"best: trial {trial.number}" if is_best else trial.state.value
        ax.plot(
            *zip(*curve.items(), strict=True),
            color=BLUE if is_best else _OF_STATE[trial.state],
            linewidth=2.0 if is_best else 0.8,
            alpha=1.0 if is_best else 0.6,
            zorder=3 if is_best else 2,
            marker="." if len(curve) == 1 else "",
            label="_" * (label in shown) + label,
        )
        shown.add(label)
    _figure_scale(ax, [figure for curve in curves.values() for figure in curve.values()], ledger)
    ax.set_xlabel("epoch")
    ax.locator_params("x", integer=True)
    ax.legend(frameon=False)
    return ax


def plot_folds(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw the figure of merit of each fold of the best trials, 40 at most, with the mean over the folds."""
    ax, sign = _axes(ax), _sign(ledger)
    trials = sorted((t for t in _complete(ledger) if len(t.folds) > 1), key=lambda t: sign * _figure(t))[:_MOST_FOLDED]
    if not trials:
        return _nothing(ax, "No trial has several folds." if _complete(ledger) else _no_figures(ledger))
    for i, trial in enumerate(trials):
        figures = [result.figure_of_merit for result in trial.folds.values()]
        ax.plot([i, i], [min(figures), max(figures)], color=GREY, linewidth=0.6, zorder=1)
        ax.plot([i] * len(figures), figures, "o", color=SKY, markersize=3, label="_" * bool(i) + "fold")
    means = [_figure(trial) for trial in trials]
    ax.plot(range(len(trials)), means, "_", color=BLUE, markersize=8, markeredgewidth=1.5, label="mean")
    ax.set_xticks(range(len(trials)), [str(trial.number) for trial in trials], rotation=90 * (len(trials) > 15))
    _figure_scale(ax, [result.figure_of_merit for trial in trials for result in trial.folds.values()], ledger)
    ax.set_xlabel("trial, the best first")
    ax.legend(frameon=False)
    return ax


def plot_pareto(ledger: Ledger, ax: "Axes | None" = None, objectives: Sequence[str] | None = None) -> "Axes":
    """Draw two objectives of every complete trial against each other, with the Pareto set marked.

    Args:
        ledger: trials.
        ax: axes; None for new ones.
        objectives: names of two objectives; None for the first two.
    """
    ax, known = _axes(ax), {objective.name: objective for objective in ledger.objectives}
    if len(known) < 2:
        return _nothing(ax, "The run has one objective.")
    pair = list(known)[:2] if objectives is None else list(objectives)
    if len(pair) != 2 or (unknown := [name for name in pair if name not in known]):
        wrong = unknown[0] if len(pair) == 2 else pair
        raise ConfigurationError(
            f"`objectives` must name two of {', '.join(known)}. Received: {wrong!r}.{did_you_mean(wrong, known)}"
        )
    trials = _complete(ledger)
    if not trials:
        return _nothing(ax, _no_figures(ledger))
    chosen = [trial for trial in trials if trial.number in ledger.pareto]
    chosen.sort(key=lambda trial: trial.objectives[pair[0]])
    xs, ys = ([trial.objectives[name] for trial in trials] for name in pair)
    ax.plot(xs, ys, "o", color=GREY, markersize=3, label="trial")
    # With more than two objectives the set is no line in two of them.
    style = "o-" if len(known) == 2 else "o"
    front = [[trial.objectives[name] for trial in chosen] for name in pair]
    ax.plot(*front, style, color=BLUE, markersize=5, linewidth=0.8, label="Pareto set")
    ax.set_xscale("log" if _spans_decades(xs) else "linear")
    ax.set_yscale("log" if _spans_decades(ys) else "linear")
    ax.set_xlabel(f"{pair[0]} ({known[pair[0]].direction}imised)")
    ax.set_ylabel(f"{pair[1]} ({known[pair[1]].direction}imised)")
    ax.legend(frameon=False)
    return ax


def plot_blocks(ledger: Ledger, ax: "Axes | None" = None) -> "Axes":
    """Draw what each block trained when, one bar for each assignment, with the number of its trial if they are few."""
    ax, assignments = _axes(ax), ledger.assignments
    if not assignments:
        return _nothing(ax, "No trial was assigned to a block." if ledger.trials else _no_figures(ledger))
    unit_s, unit = _unit(ledger)
    teams: dict[int, list[int]] = {}
    for assignment in sorted(assignments, key=lambda a: (a.block, a.team)):
        if assignment.team not in teams.setdefault(assignment.block, []):
            teams[assignment.block].append(assignment.team)
    shown: set[str] = set()
    for a in assignments:
        height = 0.8 / len(teams[a.block])
        y = a.block - 0.4 + height * (teams[a.block].index(a.team) + 0.5)
        begin, end = a.assigned_at_s / unit_s, _end_s(ledger, a) / unit_s
        label = "under way" if a.end is None else a.end.value
        name = "_" * (label in shown) + label
        ax.barh(y, end - begin, height, begin, color=_OF_END[a.end], edgecolor="white", linewidth=0.4, label=name)
        shown.add(label)
        if len(assignments) <= _MOST_NUMBERED:
            middle = (begin + end) / 2
            ax.text(middle, y, str(a.trial), ha="center", va="center", color="white", fontsize="x-small", clip_on=True)
    for session in ledger.sessions[1:]:
        ax.axvline(session.started_at_s / unit_s, color="black", linewidth=0.6, linestyle=":")
    ax.set_xlim(left=0.0)
    ax.set_yticks([*teams])
    ax.invert_yaxis()
    ax.set_xlabel(f"time / {unit}")
    ax.set_ylabel("block")
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(shown))
    return ax


# ---------------------------------------------------------------- files for a paper


def write_figures(ledger: Ledger, folder: Path) -> list[Path]:
    """Write every figure that has something to show as PNG and PDF into `folder`; return the paths."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    make_directory(folder)
    drawn: dict[str, tuple[float, Callable[..., Any]]] = {
        "history": (_COLUMN, plot_history),
        "history_time": (_COLUMN, partial(plot_history, by="time")),
        "parallel": (_PAGE, plot_parallel),
        "importance": (_COLUMN, plot_importance),
        "curves": (_COLUMN, plot_curves),
        "folds": (_COLUMN, plot_folds),
        "pareto": (_COLUMN, plot_pareto),
        "blocks": (_PAGE, plot_blocks),
    }
    paths: list[Path] = []
    with rc_context(_STYLE):
        for name, (width, draw) in drawn.items():
            figure = Figure((width, _HEIGHT), layout="constrained")
            if draw(ledger, figure.subplots()).has_data():
                paths += _written(figure, folder / name)
        names = [name for name in parameter_names(ledger) if any(name in trial.point for trial in _complete(ledger))]
        if names:
            n_columns = min(len(names), 3)
            n_rows = -(-len(names) // n_columns)
            figure = Figure((_PAGE / 3 * n_columns, _HEIGHT * n_rows), layout="constrained")
            every = figure.subplots(n_rows, n_columns, sharey=True, squeeze=False).flat
            for ax, name in zip(every, names, strict=False):
                plot_parameter(ledger, name, ax)
                is_first = ax.get_subplotspec().is_first_col()
                ax.yaxis.label.set_visible(is_first)
                if (legend := ax.get_legend()) is not None and not (is_first and ax.get_subplotspec().is_first_row()):
                    legend.remove()
            for ax in [*every][len(names) :]:
                ax.remove()
            paths += _written(figure, folder / "parameters")
    return paths


def picture(ledger: Ledger) -> bytes:
    """Return the history of a search, or the curves of a training, as PNG."""
    from matplotlib.figure import Figure

    figure, file = Figure((5.0, 2.6), layout="constrained"), io.BytesIO()
    draw = plot_history if len(ledger.trials) > 1 else plot_curves
    draw(ledger, figure.subplots())
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _written(figure: "Figure", stem: Path) -> list[Path]:
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for path in paths:
        with atomic_path(path, durable=False) as temporary:
            # Without the time, so that the same run has the same bytes.
            figure.savefig(temporary, metadata={"CreationDate": None} if path.suffix == ".pdf" else {})
    return paths


# ---------------------------------------------------------------- parts of figures


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _nothing(ax: "Axes", sentence: str) -> "Axes":
    """Write on empty axes why they are empty."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, sentence, ha="center", va="center", transform=ax.transAxes, wrap=True)
    return ax


def _no_figures(ledger: Ledger) -> str:
    n_failed = ledger.n_by_state()["failed"]
    if not ledger.trials:
        return "There is no trial yet."
    return f"No trial is complete: {n_failed} of {len(ledger.trials)} failed."


def _direction(ledger: Ledger) -> str:
    return str(ledger.identity.get("direction", "min"))


def _sign(ledger: Ledger) -> float:
    return -1.0 if _direction(ledger) == "max" else 1.0


def _complete(ledger: Ledger) -> list[Trial]:
    return [trial for trial in ledger.trials if trial.figure_of_merit is not None]


def _figure(trial: Trial) -> float:
    assert trial.figure_of_merit is not None
    return trial.figure_of_merit


def _figure_name(ledger: Ledger) -> str:
    name = ledger.identity.get("figure_of_merit") or "value"
    return "figure of merit" if name == "value" else str(name)


def _figure_scale(ax: "Axes", figures: Iterable[float], ledger: Ledger) -> None:
    """Label the vertical axis with the figure of merit; make it logarithmic if the figures span decades."""
    ax.set_ylabel(f"{_figure_name(ledger)} ({_direction(ledger)}imised)")
    if _spans_decades([*figures]):
        ax.set_yscale("log")


def _spans_decades(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= _LOG_FROM


def _unit(ledger: Ledger) -> tuple[float, str]:
    """Return the unit of the time axis, in seconds and by name."""
    last_s = ledger.sessions[-1].last_at_s if ledger.sessions else 0.0
    return (1.0, "s") if last_s < 120 else (60.0, "min") if last_s < 7200 else (3600.0, "h")


def _trained_until_s(trial: Trial) -> float:
    """Return the end of the last assignment: a trial that was paused may be pruned much later."""
    return max((a.ended_at_s or 0.0 for a in trial.assignments), default=trial.ended_at_s or 0.0)


def _curve(trial: Trial) -> dict[int, float]:
    """Return the mean over the folds after each epoch that all of them have reported."""
    folds = [*trial.reports.values()]
    epochs = sorted(set(folds[0]).intersection(*folds))
    return {epoch: math.fsum(fold[epoch] for fold in folds) / len(folds) for epoch in epochs}


def _end_s(ledger: Ledger, assignment: Assignment) -> float:
    """Return the end of an assignment: a lost one, which the next start has closed, ended with its own start."""
    own = [session for session in ledger.sessions if session.started_at_s <= assignment.assigned_at_s][-1]
    return own.last_at_s if assignment.ended_at_s is None else min(assignment.ended_at_s, own.last_at_s)


def _texts(trials: Iterable[Trial], name: str) -> set[str]:
    return {text(trial.point[name]) for trial in trials if name in trial.point}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Places of values on an axis: numbers stay numbers, choices are counted from 0."""

    #: ends of the axis
    low: float
    high: float
    is_log: bool = False
    #: choices as JSON -> as people write them, in their order; empty for numbers
    choices: Mapping[str, str] = field(default_factory=dict)

    def place(self, value: Any) -> float:
        """Return the place of a value in the units of the axis."""
        return float([*self.choices].index(text(value))) if self.choices else float(value)

    def share(self, value: Any) -> float:
        """Return the place of a value between the ends of the axis, 0 to 1."""
        return self._share(self.place(value))

    def _share(self, place: float) -> float:
        if self.low == self.high:
            return 0.5
        if self.is_log:
            return math.log(place / self.low) / math.log(self.high / self.low)
        return (place - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return shares of the axis with their labels: the choices, or ends and middle of numbers."""
        if self.choices:
            return [(self._share(i), label) for i, label in enumerate(self.choices.values())]
        middle = math.sqrt(self.low * self.high) if self.is_log else (self.low + self.high) / 2
        return [(self._share(place), f"{place:.3g}") for place in dict.fromkeys((self.low, middle, self.high))]


def _scale_of(ledger: Ledger, name: str) -> _Scale:
    """Return the scale of a parameter; ConfigurationError if the run has none of this name."""
    known = parameter_names(ledger)
    if name not in known:
        raise ConfigurationError(
            f"A parameter must be one of the run's: {', '.join(known) or 'none'}. Received: {name!r}."
            f"{did_you_mean(name, known)}"
        )
    declared: Mapping[str, Any] = next((p for p in declared_parameters(ledger) if p["name"] == name), {})
    values = [trial.point[name] for trial in ledger.trials if name in trial.point]
    if "low" in declared:
        return _Scale(low=declared["low"], high=declared["high"], is_log=declared.get("prior") == "log-uniform")
    if "categories" not in declared and values and all(map(is_number, values)):
        return _Scale(low=min(values), high=max(values))
    choices = {text(value): str(value) for value in declared.get("categories", values)}
    return _Scale(low=0, high=len(choices) - 1, choices=choices)
