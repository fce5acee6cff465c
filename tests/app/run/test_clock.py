"""Clocks that are wrong: a run is refused at its start, or keeps times that all commands read."""

import pytest

import nnlo_opt
from nnlo_opt.app.reporting.results import read_run
from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.space import Real
from tests.helpers.refusals import check_refused

pytestmark = pytest.mark.usefixtures("reports_here")
YEAR_S = 365.25 * 86400


@pytest.fixture
def clock(monkeypatch):
    """The time that the clock of this machine shows, which a test sets."""
    shown = {"unix_s": 1.8e9}
    monkeypatch.setattr(SystemClock, "unix_s", lambda _: shown["unix_s"])
    return shown


def search(run, n, objective=lambda x: x, **options):
    options = {"num_iterations": n, "hyper_opt": "random", "checkpoint": run} | options
    return nnlo_opt.optimize(objective, {"x": Real(0, 1)}, **options)


@pytest.mark.parametrize("unix_s", [-5.0, 3e11], ids=str)
def test_a_start_is_refused_before_1970_and_after_8307(tmp_path, clock, unix_s):
    clock["unix_s"] = unix_s
    check_refused("clock of rank 0's machine must show", search, tmp_path / "r", 1)
    assert not (tmp_path / "r").exists()


def test_a_resume_400_years_later_is_refused_and_300_years_later_is_read(tmp_path, clock):
    search(tmp_path / "r", 1)
    clock["unix_s"] += 400 * YEAR_S
    check_refused("within 300 years of the first start", search, tmp_path / "r", 2, opt_restore=True)
    clock["unix_s"] -= 100 * YEAR_S
    search(tmp_path / "r", 2, opt_restore=True)
    assert len(read_run(tmp_path / "r")[1].trials) == 2


@pytest.mark.parametrize("years", [-400, -60, 400], ids=str)
def test_a_clock_that_is_set_while_a_run_goes_on_changes_no_time(tmp_path, clock, years):
    def objective(x):
        clock["unix_s"] += years * YEAR_S
        return x

    search(tmp_path / "r", 2, objective)
    events, ledger = read_run(tmp_path / "r")
    assert ledger.complete
    times = [event.time_s for event in events]
    assert times == sorted(times)
    assert times[-1] < YEAR_S


@pytest.mark.parametrize("unix_s", [0.0, 2e11], ids=str)
def test_every_command_reads_a_run_at_the_edges_of_the_clock(tmp_path, clock, printed, unix_s):
    clock["unix_s"] = unix_s
    search(tmp_path / "r", 2)
    for words in (["show"], ["status"], ["watch"], ["best"], ["report"], ["repair"], ["clean"], ["list"]):
        place = tmp_path if words == ["list"] else tmp_path / "r"
        assert printed(*words, place)
