"""Exports a run as an Optuna study: a journal file for `optuna-dashboard`.

Optuna replays its file like we replay our journal. A trial is created with everything known about it, so an ended trial
is one line; a running trial is updated incrementally. So a restarted mirror compares file and run, and continues. A
file with trials that the run has lost is rewritten.
"""

import json
import os
import warnings
import weakref
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.space.parameters import Categorical, Constant, Integer, Ordinal, Parameter, Real
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials import trial as ours
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.objectives import FIGURE, Objective
from nnlo_opt.engine.search.optuna_reading import CONSTRAINTS
from nnlo_opt.tools.export.exporter import began_at_s, plain_value, results_of, trials_of

#: states of trials that have ended
_ENDS = {
    ours.TrialState.COMPLETE: TrialState.COMPLETE,
    ours.TrialState.FAILED: TrialState.FAIL,
    ours.TrialState.PRUNED: TrialState.PRUNED,
}


class _Backend(JournalFileBackend):
    """Optuna journal file in which trials start and end at the times in our journal."""

    #: time of the next change of state to be written
    at: datetime | None = None

    def __init__(self, path: SafePath) -> None:
        # Optuna opens a file by path: this path leads to the open file, even if another one takes its name.
        file = path.open("ab")
        weakref.finalize(self, file.close)
        opened = f"/proc/self/fd/{file.fileno()}"
        super().__init__(opened if os.path.exists(opened) else str(path), JournalFileSymlinkLock(str(path)))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self.at is not None:
            at = self.at.isoformat(timespec="microseconds")
            logs = [{key: at if key.startswith("datetime_") else value for key, value in log.items()} for log in logs]
        super().append_logs(logs)


class StudyFile:
    """Exporter to an Optuna journal file.

    Args:
        target: file; continued if it exists.
        run_name: name of the study.
    """

    def __init__(self, target: SafePath, run_name: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._target = target
        self._name = run_name
        #: None before the start of the run is known
        self._study: Study | None = None
        #: parameter -> its distribution
        self._distributions: dict[str, BaseDistribution] = {}
        self._parameters: dict[str, Parameter] = {}
        #: Optuna IDs of the trials in the file, by number
        self._ids: list[int] = []
        self._open_file()

    def _open_file(self) -> None:
        self._backend = _Backend(self._target)
        self._storage = JournalStorage(self._backend)

    def take(self, events: Sequence[ev.Event], ledger: Ledger) -> None:
        with warnings.catch_warnings():  # Optuna's warnings about experimental features
            warnings.simplefilter("ignore")
            if self._study is None and ledger.sessions:
                self._study = self._opened(ledger)
            for trial in trials_of(events, ledger):
                self._bring_up_to_date(trial, ledger)

    def _opened(self, ledger: Ledger) -> Study:
        space = ledger.identity.space
        self._parameters = {} if space is None else {p.name: p for p in space.parameters}
        self._distributions = {name: _distribution(p) for name, p in self._parameters.items()}
        objectives = ledger.objectives or (_figure(ledger),)
        directions = [StudyDirection[f"{objective.direction}imize".upper()] for objective in objectives]
        study = self._continued(ledger)
        if study is None:
            study = optuna.create_study(storage=self._storage, study_name=self._name, directions=directions)
        self._ids = [trial._trial_id for trial in study.get_trials(deepcopy=False)]
        if study.metric_names is None:
            study.set_metric_names([objective.name for objective in objectives])
            study.set_user_attr("figure_of_merit", _figure(ledger).name)
            study.set_user_attr("command_line", ledger.settings.command_line)
        return study

    def _continued(self, ledger: Ledger) -> Study | None:
        """Return the study in the file; None if there is none, or if the run has lost trials by a crash or repair."""
        if self._name not in [study.study_name for study in self._storage.get_all_studies()]:
            return None
        study = optuna.load_study(study_name=self._name, storage=self._storage)
        trials = study.get_trials(deepcopy=False)
        if len(trials) <= len(ledger.trials) and all(
            known.params == wanted.params
            and (not known.state.is_finished() or (known.state, known.values) == (wanted.state, wanted.values))
            for known, wanted in zip(trials, (self._frozen(trial, ledger) for trial in ledger.trials), strict=False)
        ):
            return study
        self._target.unlink()
        self._open_file()
        return None

    def _bring_up_to_date(self, trial: ours.Trial, ledger: Ledger) -> None:
        assert self._study is not None
        wanted = self._frozen(trial, ledger)
        if trial.number >= len(self._ids):
            self._backend.at = None
            self._ids.append(self._storage.create_new_trial(self._study._study_id, wanted))
            return
        number = self._ids[trial.number]
        known = self._storage.get_trial(number)
        if known.state.is_finished():
            return
        if known.state is TrialState.WAITING and wanted.state is not TrialState.WAITING:
            self._backend.at = wanted.datetime_start
            self._storage.set_trial_state_values(number, TrialState.RUNNING)
        for step, value in wanted.intermediate_values.items():
            if repr(known.intermediate_values.get(step)) != repr(value):  # NaN is NaN
                self._storage.set_trial_intermediate_value(number, step, value)
        for name, value in wanted.system_attrs.items():
            self._storage.set_trial_system_attr(number, name, value)
        for name, value in wanted.user_attrs.items():
            if repr(known.user_attrs.get(name)) != repr(value):
                self._storage.set_trial_user_attr(number, name, value)
        if wanted.state.is_finished():
            self._backend.at = wanted.datetime_complete
            self._storage.set_trial_state_values(number, wanted.state, wanted.values)

    def _frozen(self, trial: ours.Trial, ledger: Ledger) -> FrozenTrial:
        """Convert a trial to Optuna's."""
        state = _ENDS.get(trial.state, TrialState.RUNNING if trial.assignments else TrialState.WAITING)
        figure = {TrialState.COMPLETE: trial.figure_of_merit, TrialState.PRUNED: trial.figure_so_far}.get(state)
        values = None if figure is None else [figure]
        if trial.objectives:
            values = [trial.objectives[objective.name] for objective in ledger.objectives]
        known = {name: value for name, value in trial.point.items() if name in self._parameters}
        others = {f"p:{name}": value for name, value in trial.point.items() if name not in known}
        measured = results_of(trial, ledger) if state.is_finished() else {}
        frozen = optuna.trial.create_trial(
            state=state,
            values=values,
            params={name: _encoded(self._parameters[name], value) for name, value in known.items()},
            distributions={name: self._distributions[name] for name in known},
            user_attrs=others | {"state": trial.state.value} | measured,
            system_attrs={CONSTRAINTS: _excesses(trial, ledger)} if "feasible" in measured else {},
            intermediate_values=trial.curve if not ledger.objectives else {},
        )
        if state is not TrialState.WAITING:
            began = began_at_s(trial)
            frozen.datetime_start = _time(ledger, trial.ended_at_s if began is None else began)
        if state.is_finished():
            frozen.datetime_complete = _time(ledger, trial.ended_at_s)
        return frozen


def _excesses(trial: ours.Trial, ledger: Ledger) -> list[float]:
    """Return by how much a complete trial violates each outcome constraint; 1 if the value is unknown."""
    known = trial.finite_outcomes
    return [bound.excess(known[bound.name]) if bound.name in known else 1.0 for bound in ledger.constraints]


def _figure(ledger: Ledger) -> Objective:
    """Return the figure of merit of a run and its direction."""
    return Objective(ledger.identity.figure_of_merit or FIGURE, ledger.direction)


def _time(ledger: Ledger, time_s: float | None) -> datetime:
    return datetime.fromtimestamp(ledger.first_start_unix_s + (time_s or 0.0), UTC)


def _distribution(parameter: Parameter) -> BaseDistribution:
    """Return the distribution of a parameter; Optuna has no steps on logarithmic scales."""
    if isinstance(parameter, Categorical | Ordinal | Constant):
        return CategoricalDistribution(_choices(parameter))
    assert isinstance(parameter, Real | Integer)
    log = parameter.prior == "log-uniform"
    step = None if log else parameter.step
    if isinstance(parameter, Integer):
        return IntDistribution(parameter.low, parameter.high, log=log, step=int(step or 1))
    stepped = FloatDistribution(parameter.low, parameter.high, log=log, step=step)
    # Optuna checks the last step more strictly: 1 is not three steps of 0.3333333333.
    return stepped if stepped.high == parameter.high else FloatDistribution(parameter.low, parameter.high)


def _choices(parameter: Categorical | Ordinal | Constant) -> list[Any]:
    """Return the values unchanged if Optuna can store and distinguish them (unlike 1 and True), else as text."""
    values = [parameter.value_at(index) for index in range(parameter.n_values)]
    if all(value is None or plain_value(value) is value for value in values) and len({*values}) == len(values):
        return values
    return [json.dumps(value) for value in values]


def _encoded(parameter: Parameter, value: Any) -> Any:
    if isinstance(parameter, Categorical | Ordinal | Constant):
        return _choices(parameter)[parameter.index(value)]
    return value
