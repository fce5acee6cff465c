"""Runs and results in Python: trials, data frames, plots, models."""

import base64
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from nnlo_opt.app.analysis import frames
from nnlo_opt.app.api.door import in_python
from nnlo_opt.app.reporting import plots
from nnlo_opt.app.reporting.comparison import compared
from nnlo_opt.app.reporting.page_data import effects_data, space_of
from nnlo_opt.app.reporting.results import read_run
from nnlo_opt.app.reporting.table import ranked
from nnlo_opt.app.reporting.words import best_expected_text, constraints_text, counted, outcome, point_text
from nnlo_opt.core.base.errors import ConfigurationError, TrialError, require_known, shown
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.trials.events import Event
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import checked_run, existing_run
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.core.trials.run_state import RunState, state_after, state_of
from nnlo_opt.core.trials.trial import Assignment, FoldResult, Trial, TrialState
from nnlo_opt.engine.objective.other_names import absence

if TYPE_CHECKING:
    from nnlo_opt.app.analysis.frames import Frame
    from nnlo_opt.app.reporting.plots import Axes

#: most trials in the HTML view of a result
_MOST_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTrial:
    """Copy of a trial at the time of the call; it does not change while the search continues.

    >>> load_run("checkpoints/CP").best.parameters["lr"]
    0.01
    """

    number: int
    #: name -> value of every parameter
    parameters: Point
    #: "enqueued", "start point" or "likely values"; empty if the search algorithm chose the point
    origin: str = field(repr=False)
    state: TrialState
    #: mean over the folds, then population standard deviation; None until the trial is complete
    figure_of_merit: float | None
    figure_of_merit_std: float | None = field(repr=False)
    #: objective -> the same; empty for a single objective
    objectives: dict[str, float]
    objectives_std: dict[str, float] = field(repr=False)
    #: True if it satisfies all outcome constraints; None until the trial is complete
    feasible: bool | None
    #: epochs -> figure of merit, from `report` or training
    curve: dict[int, float] = field(repr=False)
    #: fold -> result of a finished fold
    folds: dict[int, FoldResult] = field(repr=False)
    #: attempts of blocks, in order
    assignments: list[Assignment] = field(repr=False)
    #: cause of its failure or pruning, or empty
    reason: str

    @classmethod
    def of(cls, trial: Trial, ledger: Ledger) -> Self:
        """Return a copy of a trial of a ledger."""
        same = {f.name: copy(getattr(trial, f.name)) for f in fields(cls) if f.name != "parameters"}
        return cls(parameters=_given(trial, ledger), **same)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise absence("trial", name, self)


def _path(given: Any) -> str | os.PathLike[str]:
    """Return the path of a run; ConfigurationError if it is not a path."""
    if not isinstance(given, str | os.PathLike):
        raise ConfigurationError(
            f"A run must be given by its directory or its name. Received: {shown(given)}. Write it as "
            '`load_run("mine")`.'
        )
    return given


def _given(trial: Trial, ledger: Ledger) -> dict[str, Any]:
    """Return the parameters of a trial as written in the search space."""
    return ledger.identity.tuples.given(trial.point)


class Results:
    """Trials of a search, with tables and plots; base class of `Run` and `SearchResult`.

    Each `plot_` method draws on the matplotlib axes `ax`, or on new ones, and returns them.

    Raises:
        ConfigurationError: by a `plot_` method, if the run has nothing to plot, or no parameter of this name.
    """

    __slots__ = ()

    #: state of the run according to its journal
    ledger: Ledger
    #: run directory; None if the run is not kept
    directory: Path | None
    #: cached trials of a search that has ended
    _frozen: list[FrozenTrial]

    def __len__(self) -> int:
        """Number of trials."""
        return len(self.ledger.trials)

    def __iter__(self) -> Iterator[FrozenTrial]:
        """Iterate over `trials`."""
        return iter(self.trials)

    def __bool__(self) -> bool:
        """Return True, even without trials."""
        return True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise absence("result", name, self)

    @property
    def direction(self) -> str:
        """Direction in which the figure of merit is better: "min" or "max"."""
        return self.ledger.direction

    @property
    def hyper_opt(self) -> str:
        """Name of the search algorithm, and the reason if `hyper_opt="auto"` chose it."""
        settings = self.ledger.settings
        because = f" (auto, because {settings.hyper_opt_because})" * bool(settings.hyper_opt_because)
        return f"{settings.hyper_opt}{because}"

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, in the order of their suggestions."""
        trials = self._frozen or [FrozenTrial.of(trial, self.ledger) for trial in self.ledger.trials]
        if self.ledger.ended_because:
            self._frozen[:] = trials
        return [*trials]

    @property
    def best(self) -> FrozenTrial | None:
        """The trial with the best figure of merit (for several objectives, the first); None if no trial succeeded."""
        best = self.ledger.best()
        return None if best is None else FrozenTrial.of(best, self.ledger)

    @property
    def best_expected(self) -> FrozenTrial | None:
        """The trial with the best expected figure of merit; None unless the search has found noise.

        With noisy figures, `best` may just have been lucky. It is None for several objectives, and for search
        algorithms without our Gaussian process.
        """
        expected = self.ledger.best_expected
        return None if expected is None else FrozenTrial.of(expected, self.ledger)

    @property
    def best_parameters(self) -> Point:
        """Parameters of the best trial; TrialError, with the first reason, if no trial succeeded."""
        return _given(self._succeeded(), self.ledger)

    @property
    def figure_of_merit(self) -> float:
        """Figure of merit of the best trial; TrialError, with the first reason, if no trial succeeded."""
        figure = self._succeeded().figure_of_merit
        assert figure is not None
        return figure

    @property
    def pareto(self) -> list[FrozenTrial]:
        """The Pareto set: trials that no other trial dominates; empty for a single objective."""
        ledger = self.ledger
        return [FrozenTrial.of(trial, ledger) for trial in ledger.trials if trial.number in ledger.pareto]

    @property
    def ended_because(self) -> str:
        """Why the search ended, without a full stop; empty while it runs."""
        return self.ledger.ended_because

    def _succeeded(self) -> Trial:
        best = self.ledger.best()
        if best is None:
            reasons = [*(trial.reason for trial in self.ledger.trials if trial.reason), constraints_text(self.ledger)]
            first = reasons[0]
            if not first:
                raise TrialError("No trial succeeded: none has ended.")
            raise TrialError(f"No trial succeeded. The first reason: {first.rstrip('.')}.")
        return best

    @property
    def _found(self) -> str:
        """Number of trials in each state and the best trial, as text."""
        best = self.ledger.best()
        found = "none succeeded"
        if best is not None:
            found = f"best {best.figure_of_merit:.6g} at {_given(best, self.ledger)}"
        return f"{outcome(self.ledger)}, {found}"

    @in_python()
    def to_dataframe(self, table: Literal["trials", "folds", "epochs", "assignments"] = "trials") -> "Frame":
        """Return a table as a pandas data frame with typed columns (`nnlo_opt.app.analysis.frames`).

        >>> run = load_run("checkpoints/CP")
        >>> run.to_dataframe()[["trial", "state", "figure_of_merit", "p:n"]].head(2)
           trial     state  figure_of_merit   p:n
        0      0  complete             0.25     8
        1      1  complete             0.50  <NA>
        >>> run.to_dataframe("epochs").query("trial == 0 and fold == 1")["m:val_loss"].tolist()
        [1.0, 0.375]

        Args:
            table: "trials": one row per trial, with the columns of results.csv; "folds": finished folds; "assignments":
                attempts of blocks at folds; "epochs": epochs of folds, only for a run of `load_run`.

        Raises:
            ConfigurationError: there is no table of this name.
        """
        tables = self._tables
        require_known("A table", table, tables)
        return tables[table]()

    @property
    def _tables(self) -> "dict[str, Callable[[], Frame]]":
        return {
            "trials": lambda: frames.trials_frame(self.ledger),
            "folds": lambda: frames.folds_frame(self.ledger),
            "assignments": lambda: frames.assignments_frame(self.ledger),
        }

    @in_python()
    def importance(self) -> "Frame":
        """Return the importance of each parameter: its share of the variance of the figure of merit.

        The columns are `parameter`, `importance`, and `low` and `high`, the ends of a 90 % interval
        (`nnlo_opt.app.analysis.effects`).

        Raises:
            ConfigurationError: too few trials are complete, or all figures of merit are equal.
        """
        found = effects_data(self.ledger, space_of(self.ledger))
        if "effects" not in found:
            raise ConfigurationError(f"The importance of parameters must be measurable. Received: {found['why']}")
        return frames.importance_frame({effect["name"]: effect["importance"] for effect in found["effects"]})

    def _view(self, title: str, state: RunState) -> str:
        """Return the HTML view for a notebook: state, best trial, plot of all trials, table of the best."""
        ledger, best = self.ledger, self.ledger.best()
        because = f" ({self.ended_because})" * (self.ended_because not in ("", state))
        facts = [f"{state}{because}: {outcome(ledger)}."]
        if ledger.settings.hyper_opt_because:
            facts.append(f"Search: {self.hyper_opt}.")
        if best is not None:
            facts.append(f"Best: trial {best.number}, {best.figure_of_merit:.6g}, at {point_text(best.point)}.")
        if expected := best_expected_text(ledger):
            facts.append(expected)
        frame = self.to_dataframe().iloc[[trial.number for trial in ranked(ledger)[:_MOST_SHOWN]]]
        shown = ["trial", "state", "figure_of_merit", "epochs", "time_s"]
        shown += [column for column in frame.columns if column.startswith(("o:", "p:")) and not column.endswith("_std")]
        lines = "".join(f"<div>{escape(fact)}</div>" for fact in facts)
        source = base64.b64encode(plots.picture(ledger)).decode()
        image = f'<img alt="figures of merit" src="data:image/png;base64,{source}">'
        table = f'<div style="overflow-x: auto">{frame[shown].to_html(index=False, na_rep="-", border=0)}</div>'
        return f"<div><b>{escape(title)}</b>{lines}{image}{table}</div>"

    # ------------------------------------------------------------ figures

    def plot_history(self, ax: "Axes | None" = None, *, by: Literal["trials", "time"] = "trials") -> "Axes":
        """Plot all figures of merit and the best so far, over "trials" or "time".

        The legend of several histories on the same axes has the names of the runs.
        """
        label = "" if self.directory is None else self.directory.name
        return plots.plot_history(self.ledger, ax, by=by, label=label)

    def plot_parameter(self, name: str, ax: "Axes | None" = None) -> "Axes":
        """Plot the figure of merit against the parameter `name`."""
        return plots.plot_parameter(self.ledger, name, ax)

    def plot_parallel(self, ax: "Axes | None" = None, *, names: Sequence[str] | None = None) -> "Axes":
        """Plot parallel coordinates: each trial as a line through its parameters or `names` to its figure of merit."""
        return plots.plot_parallel(self.ledger, ax, names)

    def plot_importance(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the importance of each parameter with its uncertainty."""
        return plots.plot_importance(self.ledger, ax)

    def plot_curves(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the learning curve of each trial."""
        return plots.plot_curves(self.ledger, ax)

    def plot_folds(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the figure of merit of each fold of the best trials."""
        return plots.plot_folds(self.ledger, ax)

    def plot_pareto(self, ax: "Axes | None" = None, *, objectives: Sequence[str] | None = None) -> "Axes":
        """Plot two objectives of each trial (by default the first two) and the Pareto set."""
        return plots.plot_pareto(self.ledger, ax, objectives)

    def plot_blocks(self, ax: "Axes | None" = None) -> "Axes":
        """Plot what each block trained and when."""
        return plots.plot_blocks(self.ledger, ax)


class Run(Results):
    """A run, read from its directory; needs no MPI, and a framework only for `model`.

    The journal is read by the constructor and by `refresh`, even during a search.

    >>> Run("checkpoints/CP").best.figure_of_merit
    0.25

    Args:
        path: directory of the run, or its name in the folder `checkpoints`.

    Raises:
        ConfigurationError: the directory holds no run.
        JournalError: its journal is damaged.
    """

    @in_python()
    def __init__(self, path: str | os.PathLike[str]) -> None:
        #: directory of the run
        self.directory: Path = existing_run(_path(path))
        self._events: list[Event] = []
        self.ledger = Ledger()
        self.refresh()

    def refresh(self) -> "Run":
        """Read the journal again, for example during a search; return this run.

        >>> run = load_run("checkpoints/CP")
        >>> len(run.refresh().trials)
        6
        """
        run, at_work = checked_run(self.directory, "correct the path"), may_be_at_work(self.directory)
        self._events, self.ledger = read_run(run)
        self._frozen = []
        self._state = state_of(self.directory, self.ledger, at_work=at_work)
        return self

    def trial(self, number: int) -> FrozenTrial:
        """Return the trial of this number; ConfigurationError if there is none.

        >>> load_run("checkpoints/CP").trial(2).parameters
        {'lr': 0.03, 'act': None, ...}
        """
        return FrozenTrial.of(self._trial(number), self.ledger)

    def _trial(self, number: int) -> Trial:
        try:
            index = operator.index(number)  # numbers in data frames are NumPy's
        except TypeError:
            index = -1
        if not 0 <= index < len(self.ledger.trials):
            raise ConfigurationError(
                f"The number of a trial must be from 0 to the number of the last one. Received: {number!r}, but "
                f"`{self.directory}` has {counted(len(self.ledger.trials), 'trial')}. `run.trials` has all of them."
            )
        return self.ledger.trials[index]

    @in_python()
    def compare(self, *others: "Run | str | os.PathLike[str]") -> "Frame":
        """Compare the results of this run and others: one row per run, indexed by name.

        The columns are `state`, `figure_of_merit` with its `direction`, `best`, `best_trial`, the number of trials in
        each state, `time_s`, `block_utilization`, and `common`, the best figure that all runs have reached, with
        `time_to_common_s` and `trials_to_common`.

        >>> run = load_run("checkpoints/CP")
        >>> run.compare("CP")[["best", "complete", "trials_to_common"]]
            best  complete  trials_to_common
        CP  0.25         4                 1

        Raises:
            ConfigurationError: one of the others is not a run.
            JournalError: its journal is damaged.
        """
        runs = {(run := other if isinstance(other, Run) else Run(other)).directory: run for other in (self, *others)}
        results = compared([run._state for run in runs.values()], [run.ledger for run in runs.values()])
        names = [directory.name for directory in runs]
        names = names if len({*names}) == len(names) else [str(directory) for directory in runs]
        return frames.comparison_frame(dict(zip(names, results, strict=True)))

    @property
    def _tables(self) -> "dict[str, Callable[[], Frame]]":
        return super()._tables | {"epochs": lambda: frames.epochs_frame(self.ledger, self._events)}

    @in_python()
    def model(
        self, trial: int | FrozenTrial, *, fold: int | None = None, model: str | os.PathLike[str] | None = None
    ) -> Any:
        """Return the trained model of a trial: a Keras model, or a torch module in evaluation mode on the CPU.

        This executes the model module in this process, and opens one of the data files.

        Args:
            trial: the trial, or its number.
            fold: number of the fold; None for the one with the best figure of merit.
            model: file of the model; None for the one in the journal, if only you can have written it.

        Raises:
            ConfigurationError: its weights are missing, or the model can no longer be built.
        """
        from nnlo_opt.app.run.afterwards.trained_models import trained_model

        found = self._trial(trial.number if isinstance(trial, FrozenTrial) else trial)
        return trained_model(self.directory, self.ledger, found, fold, None if model is None else os.fspath(model))

    def best_model(self, *, model: str | os.PathLike[str] | None = None) -> Any:
        """Return the trained model of the best trial, like `model`; ConfigurationError if no trial succeeded."""
        best = self.best
        if best is None:
            raise ConfigurationError(
                "A run must have a complete trial to have a best model. Received: "
                f"`{self.directory}`, {outcome(self.ledger)}."
            )
        return self.model(best.number, model=model)

    # ------------------------------------------------------------ in a console, in a notebook

    def __repr__(self) -> str:
        return f"<Run {self.directory}: {self._state}, {self._found}>"

    def _repr_html_(self) -> str:
        return self._view(f"Run {self.directory}", self._state)


@dataclass(frozen=True, slots=True)
class SearchResult(Results):
    """Result of a search: all trials and the best one; equal on every rank.

    >>> result = nnlo_opt.optimize(lambda p: p["n"] ** 2, {"n": Integer(1, 3)}, num_iterations=3)
    >>> result
    <SearchResult: 3 complete, best 1 at {'n': 1}>
    >>> result.best.number in (0, 1, 2), len(result.trials)
    (True, 3)
    """

    #: state of the run according to its journal
    ledger: Ledger = field(repr=False)
    #: run directory with journal, `results.csv` and the best model; None if the search had no `checkpoint`
    directory: Path | None
    #: True on exactly one rank, for what a script should do once
    is_root: bool = True
    _frozen: list[FrozenTrial] = field(default_factory=list, init=False, repr=False, compare=False)

    def best_model(self) -> Any:
        """Return the trained model of the best trial, ready to predict; ConfigurationError if there is none."""
        if self.directory is None:
            raise ConfigurationError(
                "A search must keep its run to have a best model. Received: one without `checkpoint`. Name a run, "
                'such as `checkpoint="mine"`.'
            )
        return Run(self.directory).best_model()

    def __repr__(self) -> str:
        interrupted = "interrupted, " * (self.ledger.ended_because == "interrupted")
        return f"<SearchResult: {interrupted}{self._found}>"

    def _repr_html_(self) -> str:
        ledger = self.ledger
        state = state_after(Path(), ledger.ended_because, complete=ledger.complete, at_work=True)
        return self._view("SearchResult", state)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Open a run by its directory or name, to inspect and plot its trials or use its models.

    This also works while the search runs.

    >>> run = load_run("checkpoints/CP")
    >>> run
    <Run checkpoints/CP: finished, 4 complete, 1 failed, 1 pruned, best 0.25 at {'lr': 0.01, 'n': 8, ...}>
    >>> run.best.number, run.best.folds[0].n_epochs
    (0, 2)
    >>> run.plot_history().get_xlabel()
    'trial'

    Raises:
        ConfigurationError: the directory holds no run.
        JournalError: its journal is damaged.
    """
    return Run(path)
