"""A search in this very process, without MPI; ranks that call it together are tested under mpirun."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.run.embedded import SearchSetup, run_search
from nnlo_opt.run.options import DataOptions, Options, SearchOptions
from nnlo_opt.space import Real, Space
from nnlo_opt.space.constraint import Constraint
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.run_directory import RunRequest

SPACE = Space([Real(0.0, 1.0, name="x")])


def setup_of(objective, folder, n_trials=5, space=SPACE, restore=False, **changes):
    options = Options(
        model="objective",
        data=DataOptions(),
        training=TrainingOptions(),
        run=RunRequest(root=folder, name="run", restore=restore),
        trial_name="run",
        seed=0,
        log_level="info",
        log_file=None,
        command_line=(),
        search=SearchOptions(algorithm="random"),
        plan=SearchPlan(num_iterations=n_trials),
    )
    return SearchSetup(options=options, space=space, objective=objective, **changes)


def distance(parameters, comm, report):
    assert comm is None
    return (parameters["x"] - 0.3) ** 2


def test_two_searches_in_one_process_leave_nothing_behind(tmp_path, capfd):
    def state():
        handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)]
        return handlers, dict(os.environ), sys.excepthook, os.getcwd(), threading.active_count(), sys.stdout

    before = state()
    outcomes = [run_search(setup_of(distance, tmp_path)) for _ in range(2)]
    assert state() == before
    figures = [[trial.figure_of_merit for trial in outcome.ledger.trials] for outcome in outcomes]
    assert figures[0] == figures[1]
    assert len(figures[0]) == 5
    assert outcomes[0].directory is None
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_an_exception_of_the_objective_reaches_the_caller_at_once(tmp_path):
    calls = []

    def raises(parameters, comm, report):
        calls.append(parameters)
        if len(calls) == 3:
            raise ZeroDivisionError("too large")
        return 1.0

    with pytest.raises(ZeroDivisionError, match="too large"):
        run_search(setup_of(raises, tmp_path, catch=False))
    assert len(calls) == 3
    ledger = run_search(setup_of(raises, tmp_path)).ledger
    assert ledger.n_by_state()["complete"] == 5
    calls.clear()
    assert run_search(setup_of(raises, tmp_path)).ledger.n_by_state()["failed"] == 1


def test_what_is_kept_is_resumed(tmp_path):
    outcome = run_search(setup_of(distance, tmp_path, n_trials=3, keeps_files=True))
    assert outcome.directory == tmp_path / "run"
    assert (outcome.directory / "results.csv").is_file()
    with pytest.raises(ConfigurationError, match="exists"):
        run_search(setup_of(distance, tmp_path, n_trials=5, keeps_files=True))
    resumed = run_search(setup_of(distance, tmp_path, n_trials=5, keeps_files=True, restore=True))
    assert [t.point for t in resumed.ledger.trials[:3]] == [t.point for t in outcome.ledger.trials]
    assert resumed.ledger.n_ended == 5


def test_a_constraint_is_a_function_of_the_script(tmp_path):
    space = SPACE.constrained(Constraint.of(lambda point: point["x"] > 0.5, "this script"))
    ledger = run_search(setup_of(distance, tmp_path, space=space)).ledger
    assert all(trial.point["x"] > 0.5 for trial in ledger.trials)


def test_events_are_heard_and_reports_are_epochs(tmp_path):
    heard = []

    class Listener:
        def observe(self, event, ledger):
            heard.append(type(event).__name__)

    def reports(parameters, comm, report):
        return float(report(1, 0.5) and report(2, 0.25))

    run_search(setup_of(reports, tmp_path, n_trials=1, observers=[Listener()]))
    assert heard.count("EpochEnded") == 2
    assert "TrialCompleted" in heard


def test_mpi_is_not_needed():
    program = "import sys, nnlo_opt.run.embedded; print([m for m in ('mpi4py', 'keras', 'h5py') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
