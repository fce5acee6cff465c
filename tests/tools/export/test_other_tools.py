"""MLflow, Weights & Biases, and tables: each is read back by its own tool, and compared with the journal."""

import json
import os
import struct

import pytest

from nnlo_opt.app.analysis.frames import epochs_frame, results_frame, trials_frame
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.tools.export.exporter import make_exporter
from tests.helpers.exported import ENDS, REASON, UNIX_S, story

TABLES = {"trials", "epochs", "folds", "assignments"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    """What exporters set in the environment goes with the test; nothing is read from the home of a user."""
    monkeypatch.setattr(os, "environ", os.environ)
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, {"MLFLOW_ALLOW_FILE_STORE": "true"}.get(name, "true"))
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))


def exported(tool, target, events):
    ledger = Ledger(events)
    make_exporter(tool, SafePath(target), "run").take(events, ledger)
    return ledger


def curves(trial, events, ledger):
    """(epoch, Unix time, validation loss) of the epochs of a trial of one fold; the first report of each counts."""
    found = {}
    for _, row in epochs_frame(ledger, reversed(events)).iterrows():  # which keeps the last it is given
        if row["trial"] == trial.number:
            found[row["epoch"]] = (row["epoch"], UNIX_S + row["time_s"], row["m:val_loss"])
    return [*found.values()]


@pytest.mark.needs("mlflow")
def test_mlflow_reads_what_the_journal_has(tmp_path):
    events = story()
    ledger = exported("mlflow", tmp_path / "mlruns", events)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("run").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    status = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED", "running": "RUNNING"}
    assert [*sorted(runs)] == [f"trial-{trial.number:04d}" for trial in ledger.trials]
    for trial, (_, run) in zip(ledger.trials, sorted(runs.items()), strict=True):
        assert run.info.status == status.get(trial.state, "SCHEDULED")
        assert run.data.params == {
            name: str(value) if isinstance(value, int | float | str) else json.dumps(value)
            for name, value in trial.point.items()
        }
        assert run.data.tags["state"] == trial.state
        assert run.data.tags["reason"] == trial.reason
        assert run.data.metrics.get("figure_of_merit") == trial.figure_of_merit
        if trial.ended_at_s is not None:
            assert run.info.start_time == round(1000 * (UNIX_S + trial.assignments[0].assigned_at_s))
            assert run.info.end_time == round(1000 * (UNIX_S + trial.ended_at_s))
        history = client.get_metric_history(run.info.run_id, "epoch/val_loss") if trial.assignments else []
        assert [(m.step, m.timestamp / 1000, m.value) for m in history] == curves(trial, events, ledger)


def records_of(path):
    """The records of a file of W&B: a log of LevelDB behind seven bytes; its own reader is not in Python."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place < len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all, or the last part
            yield Record.FromString(whole)
            whole = b""


@pytest.mark.needs("wandb")
def test_wandb_has_what_the_journal_has(tmp_path):
    events = story()
    ledger = exported("wandb-offline", tmp_path, events)
    runs = {}
    for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb"):
        run, rows, summary, exit_code = None, [], {}, None
        for record in records_of(path):
            match record.WhichOneof("record_type"):
                case "run":
                    run = record.run
                case "history":
                    rows.append(values_of(record.history.item))
                case "summary":
                    summary |= values_of(record.summary.update)
                case "exit":
                    exit_code = record.exit.exit_code
        runs[run.display_name] = run, rows, summary, exit_code
    assert [*sorted(runs)] == [f"trial-{trial.number:04d}" for trial in ledger.trials]
    for trial, (name, (run, rows, summary, exit_code)) in zip(ledger.trials, sorted(runs.items()), strict=True):
        assert (run.project, run.run_group, run.run_id) == ("run", "run", f"run-{name}")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert {key: config[key] for key in trial.point} == trial.point
        curve = [(row["epoch"], row["_timestamp"], row["epoch/val_loss"]) for row in rows]
        assert curve == curves(trial, events, ledger)
        assert summary["state"] == trial.state
        assert summary.get("figure_of_merit") == trial.figure_of_merit
        assert exit_code == (trial.state == "failed")
    assert runs[f"trial-{ENDS.index('failed'):04d}"][2]["reason"] == REASON


def values_of(items):
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def test_csv_tables_are_those_of_the_run(tmp_path):
    events = story(2)
    ledger = exported("csv", tmp_path, events)
    assert (tmp_path / "trials.csv").read_text() == results_frame(ledger).to_csv(index=False, lineterminator="\n")
    assert {path.stem for path in tmp_path.glob("*.csv")} == TABLES
    # Of a repeated epoch a table has one row.
    assert len((tmp_path / "epochs.csv").read_text().splitlines()) == 1 + len(epochs_frame(ledger, events))


@pytest.mark.needs("pyarrow")
def test_parquet_keeps_the_types_of_all_columns(tmp_path):
    import pandas
    from pandas.testing import assert_frame_equal

    events = story(2, ("val_loss:min", "n_weights:max"))
    ledger = exported("parquet", tmp_path, events)
    found, wanted = pandas.read_parquet(tmp_path / "trials.parquet"), trials_frame(ledger)
    for name in ("p:clip", "p:shape", "p:penalty"):  # None is a value, and a missing text a parameter that is not there
        texts = [None if pandas.isna(text) else text for text in found.pop(name)]
        points = [trial.point for trial in ledger.trials]
        assert texts == [json.dumps(point[name[2:]]) if name[2:] in point else None for point in points]
        wanted.pop(name)
    assert {None, "null", '"l2"'} == {*texts}
    assert_frame_equal(found, wanted)
    epochs = pandas.read_parquet(tmp_path / "epochs.parquet")
    assert_frame_equal(epochs, epochs_frame(ledger, events))


@pytest.mark.parametrize("tool", ["csv", pytest.param("parquet", marks=pytest.mark.needs("pyarrow"))])
def test_tables_of_an_empty_run_have_their_columns(tmp_path, tool):
    exported(tool, tmp_path, [])
    assert {path.stem for path in tmp_path.glob(f"*.{tool}")} == TABLES
