"""The page of a search in a script is written by a helper process, for which the script waits."""

import io
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

import nnlo_opt
from nnlo_opt import Real, SearchWarning
from nnlo_opt.app.reporting.follow import Reporter
from nnlo_opt.app.reporting.watch import SearchBar
from nnlo_opt.engine.objective import forked
from tests.helpers.effort import some_of
from tests.helpers.told_runs import Story

SPACE = {"x": Real(-5, 5)}
FEW = {"num_iterations": 6, "hyper_opt": "random"}
TABLES = ["results.csv", "summary.json"]
#: helpers: one that notes its environment, one that waits for a file `go` before it begins, and those that fail
NOTES = """
import os, sys
from pathlib import Path
from nnlo_opt.app.reporting import follow
Path("threads").write_text(" ".join(os.environ[name] for name in follow.THREAD_VARIABLES))
follow.follow(Path(sys.argv[1]), int(sys.argv[2]))
"""
WAITS = """
import os, sys, time
from pathlib import Path
from nnlo_opt.app.reporting import follow
while not Path("go").exists() and os.getppid() == int(sys.argv[2]):
    time.sleep(0.01)
follow.follow(Path(sys.argv[1]), int(sys.argv[2]))
"""
RAISES = "raise RuntimeError('no such library')"
DIES = "import os; os.kill(os.getpid(), 9)"


def square(x):
    return x * x


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """Has the helper run a program instead of its module, in a folder of its own."""

    def runs(program):
        (tmp_path / "helper.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(Reporter, "module", "helper")

    monkeypatch.chdir(tmp_path)
    return runs


class Watched(io.StringIO):
    """Standard error that does something when the page is said to be written."""

    def __init__(self, do):
        super().__init__()
        self.do = do

    def write(self, text):
        super().write(text)
        if "Writing report.html" in text:
            self.do()


def helpers():
    return [child for child in psutil.Process().children() if "nnlo_opt.app.reporting.follow" in child.cmdline()]


def told(run, **options):
    """The result of a study with three trials."""
    with nnlo_opt.Study(SPACE, checkpoint=run, **FEW, **options) as study:
        for trial in study:
            study.tell(trial, square(trial.parameters["x"]))
    return study.result


def searched(run, **options):
    return nnlo_opt.optimize(square, SPACE, checkpoint=run, **FEW, **options)


@pytest.mark.parametrize("search", some_of([searched, told]))
def test_the_page_is_there_when_the_search_has_ended_and_its_helper_had_one_thread(helper, monkeypatch, search):
    helper(NOTES)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    result = search("run")
    assert "plotly.js v" in (result.directory / "report.html").read_text(encoding="utf-8")
    assert Path("threads").read_text() == "1 1 1"
    assert not helpers()


def test_a_search_that_keeps_nothing_starts_no_helper(helper, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert len(nnlo_opt.optimize(square, SPACE, **FEW)) == 6


@pytest.mark.parametrize("search", some_of([searched, told]))
@pytest.mark.parametrize("program", [RAISES, DIES])
def test_a_helper_that_fails_is_a_warning_and_the_result_is_there(helper, search, program, capfd):
    helper(program)
    with pytest.warns(SearchWarning, match="report.html is not written: `nnlo-opt report checkpoints/run`"):
        result = search("run")
    assert len(result) == 6
    assert all((result.directory / name).is_file() for name in TABLES)
    assert not (result.directory / "report.html").exists()
    assert capfd.readouterr().err.replace("Writing report.html ...\n", "") == ""


def test_a_python_that_cannot_start_another_one_still_searches(helper, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.warns(SearchWarning, match="report.html is not written"):
        assert len(searched("run")) == 6


def test_tables_that_cannot_be_written_are_a_warning(helper):
    os.makedirs("checkpoints/run/results.csv")
    with pytest.warns(SearchWarning, match="results.csv and summary.json could not be written"):
        assert len(searched("run")) == 6


@pytest.mark.parametrize("search", some_of([searched, told]))
def test_a_page_that_takes_a_while_is_told_on_standard_error(helper, monkeypatch, search):
    helper(WAITS)
    said = Watched(Path("go").touch)
    monkeypatch.setattr(sys, "stderr", said)
    assert (search("run").directory / "report.html").is_file()
    assert said.getvalue() == "Writing report.html ...\n"


def test_silence_is_kept_while_the_page_is_written(helper, monkeypatch):
    helper(WAITS.replace('not Path("go").exists()', "not sys.stdin.read(1)"))  # begins at the end of the search
    said = Watched(lambda: pytest.fail("it is not silent"))
    monkeypatch.setattr(sys, "stderr", said)
    searched("run", progress=False)
    assert said.getvalue() == ""


def test_the_line_of_a_search_shows_what_it_waits_for_and_stays_as_it_was(monkeypatch):
    story, drawn = Story(), []
    story.trial(0.0, 1.0, 0.25)
    bar = SearchBar()
    monkeypatch.setattr(bar, "_draw", drawn.append)
    bar.show(story.ledger, 1.0)
    bar.wait_for("Writing report.html")
    bar.close()
    line, waits, last = drawn
    assert waits.startswith("Writing report.html")
    assert line == last
    assert "trial" in line


def test_an_interruption_leaves_out_the_page_and_nothing_else(helper, monkeypatch):
    helper(WAITS)
    monkeypatch.setattr(sys, "stderr", Watched(lambda: signal.raise_signal(signal.SIGINT)))
    before = signal.getsignal(signal.SIGINT)
    with pytest.warns(SearchWarning, match="report.html is not written"):
        result = searched("run")
    assert signal.getsignal(signal.SIGINT) is before
    assert (len(result), result.ended_because) == (6, "all trials are done")
    assert all((result.directory / name).is_file() for name in TABLES)
    assert not (result.directory / "report.html").exists()
    assert not helpers()


def test_an_interruption_while_a_study_waits_for_its_page_is_raised_and_the_study_is_closed(helper, monkeypatch):
    helper(WAITS)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Watched(lambda: signal.raise_signal(signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            told("run")
    assert not helpers()
    Path("go").touch()
    assert len(told("run", opt_restore=True)) == 6


def test_a_search_that_ends_with_an_error_leaves_its_tables_and_no_helper(helper):
    def fails(x, calls=[]):  # noqa: B006  (counts the calls)
        calls.append(x)
        return square(x) if len(calls) < 3 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        nnlo_opt.optimize(fails, SPACE, checkpoint="run", catch=False, **FEW)
    assert not helpers()
    rows = Path("checkpoints/run/results.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows] == ["state", "complete", "complete", "failed"]


def test_processes_that_call_the_objective_leave_the_page_to_the_helper(helper, monkeypatch):
    monkeypatch.setattr(forked, "FRAMEWORKS", ())  # other tests may have imported one
    assert (searched("run", n_parallel=2).directory / "report.html").is_file()
