"""Exports the tables of a run to files.

In Parquet the columns keep their types: integers with missing values, booleans, ordered categories. A parameter with
mixed values, lists or None has no Parquet type and is stored as JSON, where None is null; a missing value means that
the trial does not have the parameter.
"""

import json
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from nnlo_opt.app.analysis.frames import (
    assignments_frame,
    csv_of,
    epochs_frame,
    folds_frame,
    results_frame,
    trials_frame,
)
from nnlo_opt.core.base.files import atomic_path
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger

if TYPE_CHECKING:
    from pandas import DataFrame


class CsvTables:
    """Exporter to CSV, one file for each table; trials.csv has the bytes of results.csv.

    Args:
        target: folder.
        run_name: ignored.
    """

    _suffix = ".csv"
    #: returns the table of trials
    _trials = staticmethod(results_frame)

    def __init__(self, target: SafePath, run_name: str) -> None:
        self._target = target

    def take(self, events: Sequence[ev.Event], ledger: Ledger) -> None:
        frames = {"trials": self._trials(ledger), "epochs": epochs_frame(ledger, events)}
        frames |= {"folds": folds_frame(ledger), "assignments": assignments_frame(ledger)}
        for name, frame in frames.items():
            with atomic_path(self._target / f"{name}{self._suffix}", durable=False) as path, path.open("wb") as file:
                self._write(frame, file)

    def _write(self, frame: "DataFrame", file: IO[bytes]) -> None:
        file.write(csv_of(frame).encode(errors="backslashreplace"))


class ParquetTables(CsvTables):
    """Exporter to Parquet."""

    _suffix = ".parquet"
    _trials = staticmethod(trials_frame)

    def _write(self, frame: "DataFrame", file: IO[bytes]) -> None:
        import pandas

        def as_json(value: Any) -> Any:
            return value if value is pandas.NA else json.dumps(value)

        mixed = [name for name in frame.columns if frame[name].dtype == object]
        frame.assign(**{name: frame[name].map(as_json).astype("string") for name in mixed}).to_parquet(file)
