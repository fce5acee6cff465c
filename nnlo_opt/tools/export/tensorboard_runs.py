"""Exports TensorBoard runs: scalars of every epoch, and parameters for the HParams page.

A fold of a trial is a TensorBoard run and an HParams session; the folds of a trial form a session group, whose metrics
HParams averages. Only the package tensorboard is needed: its modules for messages and records do not import TensorFlow,
unlike its writer of event files.

The records are a function of the journal, byte for byte. So a restarted mirror appends what a file lacks, and removes
trials that the run has lost by a crash or repair.
"""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from nnlo_opt.app.analysis.frames import prefixed
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.base.safe_path import MOST_BYTES, SafePath
from nnlo_opt.core.space.parameters import Integer, Parameter, Real
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Assignment, Trial, TrialState
from nnlo_opt.tools.export.exporter import FirstReports, assignment_of, curves_of, trial_name

#: name of each file; TensorBoard recognises the second part
_NAME = "events.out.tfevents.0.nnlo_opt"
#: folder for the record of the whole search
_ROOT = "."
_FLOAT, _STRING, _BOOL = api_pb2.DATA_TYPE_FLOAT64, api_pb2.DATA_TYPE_STRING, api_pb2.DATA_TYPE_BOOL


class EventFiles:
    """Exporter to TensorBoard event files, one per fold.

    Args:
        target: folder; event files in it are continued.
        run_name: ignored.
    """

    def __init__(self, target: SafePath, run_name: str) -> None:
        self._target = target
        self._reports = FirstReports()
        #: folder -> records that are not in its file yet
        self._new: dict[str, BytesIO] = {}
        #: folders with records
        self._begun: set[str] = set()
        #: folders that this object has written to
        self._written: set[str] = set()
        #: parameter -> its type on the page HParams
        self._types: dict[str, int] = {}

    def take(self, events: Sequence[ev.Event], ledger: Ledger) -> None:
        for event in events:
            self._add(event, ledger, ledger.first_start_unix_s + event.time_s)
        self._write()

    def _add(self, event: ev.Event, ledger: Ledger, unix_s: float) -> None:
        """Add the records of an event."""
        of = assignment_of(event, ledger)
        folder = _ROOT if of is None else _folder(of, ledger)
        match event:
            case ev.RunStarted() if _ROOT not in self._begun:
                self._record(_ROOT, unix_s, _hparams(metadata.EXPERIMENT_TAG, experiment=self._experiment(ledger)))
            case ev.FoldAssigned() if folder not in self._begun:
                info = self._session(ledger.trials[event.trial], unix_s)
                self._record(folder, unix_s, _hparams(metadata.SESSION_START_INFO_TAG, session_start_info=info))
            case ev.EpochEnded() if of is not None and self._reports.is_new(of, event.epoch):
                self._record(folder, unix_s, _scalars(curves_of(event)), event.epoch)
            case ev.AssignmentFinished():
                results = prefixed("o:", event.objectives) | prefixed("m:", event.metrics)
                scalars = _scalars({"figure_of_merit": event.figure_of_merit} | results)
                self._record(folder, unix_s, scalars, event.n_epochs)
            case ev.TrialCompleted() | ev.TrialFailed() | ev.TrialPruned():
                self._end(ledger.trials[event.trial], unix_s, ledger)

    def _end(self, trial: Trial, unix_s: float, ledger: Ledger) -> None:
        has_failed = trial.state is TrialState.FAILED
        status = api_pb2.STATUS_FAILURE if has_failed else api_pb2.STATUS_SUCCESS
        info = SessionEndInfo(status=status, end_time_secs=unix_s)
        for folder in dict.fromkeys(_folder(assignment, ledger) for assignment in trial.assignments):
            self._record(folder, unix_s, _hparams(metadata.SESSION_END_INFO_TAG, session_end_info=info))
            if trial.reason:
                self._record(folder, unix_s, text_pb(trial.state.value, trial.reason))

    def _record(self, folder: str, unix_s: float, summary: Summary, step: int = 0) -> None:
        records = [Event(wall_time=unix_s, step=step, summary=summary)]
        if folder not in self._begun:
            self._begun.add(folder)
            records.insert(0, Event(wall_time=unix_s, file_version="brain.Event:2"))
        writer = RecordWriter(self._new.setdefault(folder, BytesIO()))
        for record in records:
            writer.write(record.SerializeToString(deterministic=True))

    def _write(self) -> None:
        if self._new and not self._written:
            of_run = {folder.partition("/")[0] for folder in self._begun}
            for path in self._target.glob("trial-*"):
                if path.name not in of_run:
                    path.remove()
        for folder, buffer in self._new.items():
            path, data = self._target / folder / _NAME, buffer.getvalue()
            if folder not in self._written:
                self._written.add(folder)
                make_directory(path.parent)
                known = path.read_bytes(MOST_BYTES) if path.exists() else b""
                if not data.startswith(known):
                    path.unlink()  # the journal has lost by a crash what was written here
                    known = b""
                data = data[len(known) :]
            with path.open("ab") as file:
                file.write(data)
        self._new.clear()

    # ------------------------------------------------------------ the page HParams

    def _experiment(self, ledger: Ledger) -> api_pb2.Experiment:
        """Return the parameters with their ranges, and the metrics to compare trials by."""
        space = ledger.identity.space
        parameters = () if space is None else space.parameters
        self._types = {parameter.name: _type_of(parameter) for parameter in parameters}
        names = ["figure_of_merit", *(f"o:{objective.name}" for objective in ledger.objectives)]
        return api_pb2.Experiment(
            time_created_secs=ledger.first_start_unix_s,
            hparam_infos=[self._info(parameter) for parameter in parameters],
            metric_infos=[api_pb2.MetricInfo(name=api_pb2.MetricName(tag=name)) for name in names],
        )

    def _info(self, parameter: Parameter) -> api_pb2.HParamInfo:
        info = api_pb2.HParamInfo(name=parameter.name, type=self._types[parameter.name])
        if isinstance(parameter, Real | Integer):
            info.domain_interval.min_value, info.domain_interval.max_value = parameter.low, parameter.high
        else:
            choices = [parameter.value_at(index) for index in range(parameter.n_values or 0)]
            info.domain_discrete.extend([self._value(parameter.name, choice) for choice in choices])
        return info

    def _session(self, trial: Trial, unix_s: float) -> SessionStartInfo:
        info = SessionStartInfo(group_name=trial_name(trial.number), start_time_secs=unix_s)
        for name, value in trial.point.items():
            kind = {_BOOL: "bool_value", _FLOAT: "number_value"}.get(self._types.get(name, _STRING), "string_value")
            setattr(info.hparams[name], kind, self._value(name, value))
        return info

    def _value(self, name: str, value: Any) -> Any:
        """Return a parameter's value in its HParams type; for text, other values become JSON."""
        is_text = self._types.get(name, _STRING) == _STRING
        return json.dumps(value) if is_text and not isinstance(value, str) else value


def _type_of(parameter: Parameter) -> int:
    """Return the HParams type of a parameter."""
    if isinstance(parameter, Real | Integer):
        return int(_FLOAT)
    types = {type(parameter.value_at(index)) for index in range(parameter.n_values or 0)}
    return int(_BOOL if types == {bool} else _FLOAT if types <= {int, float} else _STRING)


def _folder(assignment: Assignment, ledger: Ledger) -> str:
    """Return the folder of an assignment's fold."""
    name = trial_name(assignment.trial)
    return f"{name}/fold-{assignment.fold}" if ledger.identity.n_fold > 1 else name


def _scalars(values: Mapping[str, float]) -> Summary:
    return Summary(value=[scalar_pb(tag, value).value[0] for tag, value in values.items()])


def _hparams(tag: str, **data: Any) -> Summary:
    """Return a record for the HParams page, with the same bytes in every process."""
    content = HParamsPluginData(**data).SerializeToString(deterministic=True)
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])
