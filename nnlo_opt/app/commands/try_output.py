"""`OptimizationDriver --try-output LOG`: shows what a search would read from a script's output."""

import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from nnlo_opt.app.commands.process import HelpRequested
from nnlo_opt.app.reporting.table import text_table
from nnlo_opt.app.reporting.terminal import line_width
from nnlo_opt.app.reporting.words import counted, metrics_text
from nnlo_opt.app.run.options.comparing import output_options
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, ConfigurationError, TrialError, printable
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.comm.messages import EpochReported, RunFold
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.engine.objective.epochs import EpochCount
from nnlo_opt.engine.objective.output import Lines, Output, Report
from nnlo_opt.engine.objective.values import epoch_reported, finished_fold

#: rows shown at the beginning and at the end, and characters per row
_MOST_ROWS, _MOST_SHOWN = 10, 40
#: last lines shown for a failure, and characters per line
_N_LAST, _MOST_OF_LAST = 3, 200
#: bytes read at a time
_PART_BYTES = 2**20
_ORDER = RunFold(assignment=0, trial=0, fold=0, attempt=1, point={})


def tried_output(given: Mapping[str, object]) -> HelpRequested:
    """Return the text for `--try-output` as an exception to raise; ConfigurationError for invalid options."""
    output, comparison, path = output_options(given)
    trial = _Trial(output, comparison)
    n_lines, last = 0, deque[str](maxlen=_N_LAST)
    for line in _lines_of(path):
        n_lines += 1
        last.append(line)
        trial.take(line)
    said, code = trial.conclusion()
    head = ["epoch", "value", "others", "line"]
    rows, n_left = trial.rows, len(trial.rows) - 2 * _MOST_ROWS
    if n_left > 0:
        rows = [*rows[:_MOST_ROWS], ["", "", "", f"[{n_left} more]"], *rows[-_MOST_ROWS:]]
    parts = [text_table("", head, rows, left=True, width=line_width())] if rows else []
    parts.append(f"Read {counted(n_lines, 'line')} of `{path}`: {said}")
    if code != EXIT_OK and last:
        parts.append("\n".join(["Its last lines:", *(f"    {_shown(line, _MOST_OF_LAST)}" for line in last)]))
    return HelpRequested(printable("\n\n".join(parts)) + "\n", code)


class _Trial:
    """Trial of a script's output lines, as a search would see it."""

    def __init__(self, output: Output, comparison: Comparison) -> None:
        self._output, self._comparison, self._count = output, comparison, EpochCount()
        #: the last report; None before
        self._last: EpochReported | None = None
        #: its epoch, as counted by the script
        self._epoch = -math.inf
        #: cells of lines that are reports or results
        self.rows: list[list[str]] = []
        #: numbers of reports, of results, and of repeated reports
        self._n_reports = self._n_results = self._n_repeated = 0
        #: why the trial fails; empty while it does not
        self._failure = ""

    def take(self, line: str) -> None:
        """Process a line, unless the trial has failed."""
        if self._failure:
            return
        before = self._output.result
        report = self._output.take(line)
        if report is not None:
            self._take_report(report, line)
        elif self._output.result is not None and self._output.result is not before:
            self._n_results += 1
            value, *others = self._output.result.items()
            self.rows.append(["", str(value[1]), metrics_text(dict(others)), _shown(line)])

    def _take_report(self, report: Report, line: str) -> None:
        if isinstance(report.epoch, int) and report.epoch <= self._epoch:
            self._n_repeated += 1
            return
        self.rows.append([str(report.epoch), str(report.value), metrics_text(report.figures), _shown(line)])
        try:
            self._last = epoch_reported(
                _ORDER, self._comparison, self._count, report.epoch, report.value, report.figures
            )
            self._epoch, self._n_reports = report.epoch, self._n_reports + 1
        except TrialError as error:
            self._failure = str(error)

    def conclusion(self) -> tuple[str, int]:
        """Return a summary of what a search would conclude, and the exit code."""
        result = self._output.result
        if not self._failure and result is None:
            self._failure = 'the script must print its value as a line like {"value": 0.21}, or as a pattern says'
        try:
            if not self._failure:
                finished = finished_fold(self._comparison, self._last, 0, result, n_epochs=0, train_s=0.0)
        except TrialError as error:
            self._failure = str(error)
        said = [f"{counted(self._n_reports, 'report')}, {counted(self._n_results, 'result')}."]
        if self._n_repeated:
            said.append(f"{counted(self._n_repeated, 'report')} of an epoch that had already been reported: ignored.")
        if self._count.is_from_0:
            said.append("Epochs begin with 0: a search shows each with 1 more.")
        said += [f"`{option}` matches no line." for option in sorted(self._output.unfitted)]
        if self._output.remark:
            said.append(f"{self._output.remark[0].upper()}{self._output.remark[1:]}.")
        if self._failure:
            said.append(f"A trial would fail: {self._failure}.")
        else:
            what = "result" if self._output.is_final else "last report, because there is no result"
            values = finished.objectives or {self._comparison.objectives[0].name: finished.figure_of_merit}
            said.append(f"A trial would have {metrics_text(values)}, of the {what}.")
        return " ".join(said), EXIT_FAILURE if self._failure or self._output.unfitted else EXIT_OK


def _lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file as a search reads them; ConfigurationError if it cannot be read."""
    lines = Lines()
    try:
        with regular(path, sys.maxsize).open("rb") as file:
            while data := file.read(_PART_BYTES):
                yield from lines.take(data)
    except OSError as error:
        raise ConfigurationError(
            f"`--try-output` must name a file with the output of a script, such as that of `python train.py > LOG`. "
            f"Received: `{path}` ({error.strerror or error})."
        ) from None
    yield from lines.take(b"")


def _shown(line: str, most: int = _MOST_SHOWN) -> str:
    text = " ".join(line.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
