"""Exports trials as MLflow runs in a file store.

MLflow 3 refuses its file store, which is no longer developed, unless MLFLOW_ALLOW_FILE_STORE is set. This exporter sets
the variable for itself, and disables MLflow's telemetry; `mlflow ui` needs the variable, too.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Trial, TrialState
from nnlo_opt.tools.export.exporter import Epoch, began_at_s, epochs_of, plain_value, results_of, trial_name, trials_of

#: status of a trial that has ended
_ENDS = {TrialState.COMPLETE: "FINISHED", TrialState.FAILED: "FAILED", TrialState.PRUNED: "KILLED"}
#: most metrics, and most parameters, per call
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100


class RunStore:
    """Exporter to a new experiment in an MLflow file store.

    Args:
        target: folder of the store.
        run_name: name of the experiment.
    """

    def __init__(self, target: SafePath, run_name: str) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=Path(str(target)).resolve().as_uri())
        self._experiment = self._client.create_experiment(run_name)

    def take(self, events: Sequence[ev.Event], ledger: Ledger) -> None:
        epochs = epochs_of(events, ledger)
        for trial in trials_of(events, ledger):
            self._log(trial, epochs[trial.number], ledger)

    def _log(self, trial: Trial, epochs: Sequence[Epoch], ledger: Ledger) -> None:
        from mlflow.entities import Metric, Param

        def milliseconds(time_s: float | None) -> int:
            return round(1000 * (ledger.first_start_unix_s + (time_s or 0.0)))

        results, ended_ms = results_of(trial, ledger), milliseconds(trial.ended_at_s)
        tags = {"state": trial.state.value, "reason": trial.reason}
        name, began_ms = trial_name(trial.number), milliseconds(began_at_s(trial))
        run = self._client.create_run(self._experiment, start_time=began_ms, tags=tags, run_name=name).info.run_id
        metrics = [Metric(_key(k), v, round(1000 * e.unix_s), e.number) for e in epochs for k, v in e.values.items()]
        metrics += [Metric(_key(k), v, ended_ms, 0) for k, v in results.items() if not isinstance(v, str)]
        parameters = [Param(_key(k), str(plain_value(v))) for k, v in trial.point.items()]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(run, metrics=metrics[first : first + _MOST_METRICS])
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(run, params=parameters[first : first + _MOST_PARAMETERS])
        if trial.state in _ENDS:
            self._client.set_terminated(run, _ENDS[trial.state], ended_ms)
        elif not trial.assignments:
            self._client.update_run(run, "SCHEDULED")


def _key(name: str) -> str:
    """Return a name without the characters that MLflow refuses."""
    return re.sub(r"[^/\w.\- :]", "_", name)
