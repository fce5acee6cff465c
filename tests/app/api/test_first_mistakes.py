"""Ends of a search in one process before its last trial: a first mistake, Ctrl-C, pruning."""

import json
import signal
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import nnlo_opt
from nnlo_opt import Real
from nnlo_opt.app.run.start.host import Interruption
from nnlo_opt.core.base.errors import NnloError, TrialError
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.engine.objective import forked

SPACE = {"x": Real(-5, 5)}
FEW = {"num_iterations": 6, "hyper_opt": "random"}


def states(result):
    return Counter(trial.state.value for trial in result.trials)


# ---------------------------------------------------------------- a first mistake


def raises(parameters):
    return parameters["x"] / 0


@pytest.mark.parametrize("file", [Path(__file__).name, "<ipython-input-1>"])
def test_an_exception_of_the_first_trial_is_raised_with_the_lines_of_the_user_alone(file):
    exec(compile("def of_notebook(p): return p['x'] / 0", file, "exec"), names := {"raises": raises})
    with pytest.raises(ZeroDivisionError) as raised:
        nnlo_opt.optimize(names["of_notebook" if file.startswith("<") else "raises"], SPACE, **FEW)
    files = [Path(frame.filename).name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert files == ["test_first_mistakes.py", "optimize.py", file]


def test_an_interruption_just_before_a_call_ends_it():
    interruption = Interruption()
    interruption.n_asked = 1
    with pytest.raises(KeyboardInterrupt), interruption.calling():
        pytest.fail("the call has begun")


def test_after_a_success_an_exception_fails_its_trial():
    def fails_later(parameters, calls=[]):  # noqa: B006  (counts the calls)
        calls.append(1)
        return raises(parameters) if len(calls) > 1 else 1.0

    result = nnlo_opt.optimize(fails_later, SPACE, **FEW)
    assert states(result) == {"complete": 1, "failed": 5}
    assert "optimize.py" not in json.dumps([trial.reason for trial in result.trials])


def test_a_run_that_has_a_success_is_resumed_without_a_first_mistake(tmp_path):
    run = {"checkpoint": tmp_path / "run", "hyper_opt": "random"}

    def objective(parameters):
        return mode(parameters)

    mode = dict.__len__
    nnlo_opt.optimize(objective, SPACE, num_iterations=1, **run)
    mode = raises
    result = nnlo_opt.optimize(objective, SPACE, num_iterations=3, opt_restore=True, **run)
    assert states(result) == {"complete": 1, "failed": 2}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "received: None, as from a function without `return`; end it by `return`"),
        ((1, 2), "received: (1, 2); return one number, or several by name, such as `{'loss': 0.1, 'size': 9}` with"),
        (np.zeros(3), "received: array([0., 0., 0.]), which holds 3 numbers: return one of them, or their `.mean()`"),
        ("1", "which is text: convert it by `float(...)`"),
        ({"loss": None}, "a finite number as `loss`; received: None"),
        ({"accuracy": 1.0}, "returned were accuracy"),
    ],
)
def test_a_value_of_the_wrong_kind_is_a_mistake_and_says_what_to_return(value, words):
    with pytest.raises(TrialError) as raised:
        nnlo_opt.optimize(lambda p: value, SPACE, **FEW)
    assert words in str(raised.value)
    assert states(nnlo_opt.optimize(lambda p: value, SPACE, catch=True, **FEW)) == {"failed": 6}


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_number_that_is_not_finite_fails_its_trial_alone(value):
    assert states(nnlo_opt.optimize(lambda p: value, SPACE, **FEW)) == {"failed": 6}


def test_a_report_that_breaks_the_rules_is_a_mistake():
    with pytest.raises(TrialError, match="epochs of reports must be whole numbers from 1; received: -1"):
        nnlo_opt.optimize(lambda parameters, report: report(-1, 1.0), SPACE, **FEW)


# ---------------------------------------------------------------- Ctrl-C


def interrupts_at(n, how=lambda: signal.raise_signal(signal.SIGINT)):
    calls = []

    def objective(parameters):
        calls.append(parameters)
        if len(calls) == n:
            how()
        return parameters["x"] ** 2

    return objective


def raise_by_itself():
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", [lambda: signal.raise_signal(signal.SIGINT), raise_by_itself], ids=["Ctrl-C", "raise"])
def test_an_interrupted_search_returns_what_it_has_and_is_resumed(tmp_path, how):
    before = signal.getsignal(signal.SIGINT)
    run = {"checkpoint": tmp_path / "run", **FEW}
    result = nnlo_opt.optimize(interrupts_at(3, how), SPACE, **run)
    assert signal.getsignal(signal.SIGINT) is before
    assert result.ended_because == "interrupted"
    assert states(result) == {"complete": 2, "preempted": 1}
    resumed = nnlo_opt.optimize(interrupts_at(0), SPACE, opt_restore=True, **run)
    assert states(resumed) == {"complete": 6}
    assert resumed.best_parameters == nnlo_opt.optimize(interrupts_at(0), SPACE, **FEW).best_parameters


def test_a_second_interruption_is_raised():
    def insists(parameters):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        nnlo_opt.optimize(insists, SPACE, **FEW)


def test_an_interruption_within_the_coordinator_waits_for_it(tmp_path, monkeypatch):
    """A line of the journal is whole even if Ctrl-C comes while it is written in a call of `report`."""

    def interrupted(ledger, event, apply=Ledger.apply, times=[]):  # noqa: B006  (it counts)
        if type(event).__name__ == "EpochEnded" and not times:
            times.append(event)
            signal.raise_signal(signal.SIGINT)
        return apply(ledger, event)

    monkeypatch.setattr(Ledger, "apply", interrupted)
    run = tmp_path / "run"
    result = nnlo_opt.optimize(lambda parameters, report: report(1, 2.0), SPACE, checkpoint=run, **FEW)
    assert result.ended_because == "interrupted"
    assert '"EpochEnded"' in (run / "journal.jsonl").read_text()


# ---------------------------------------------------------------- pruning


def curve(parameters, report):
    figures = [(parameters["x"] - 2) ** 2 + 1 / epoch for epoch in range(1, 10)]
    for epoch, figure in enumerate(figures, 1):
        if not report(epoch, figure):
            break
    return figures[-1]


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_every_pruner_stops_trials_in_one_process(pruner, n_parallel, monkeypatch):
    monkeypatch.setattr(forked, "FRAMEWORKS", ())  # other tests may have imported some
    options = {"num_iterations": 12, "hyper_opt": "random", "pruner": pruner, "n_parallel": n_parallel}
    options |= {} if pruner == "median" else {"pruner_max_epochs": 9}
    result = nnlo_opt.optimize(curve, SPACE, **options)
    found = states(result)
    assert found.keys() == {"complete", "pruned"}
    assert {len(trial.curve) for trial in result.trials if trial.state == "complete"} == {9}
    # Of two processes, one may be ahead of what is decided.
    assert n_parallel == 2 or all(len(trial.curve) < 9 for trial in result.trials if trial.state == "pruned")


def test_a_coordinator_that_fails_within_a_report_ends_the_search(tmp_path, monkeypatch):
    def fails(ledger, event, apply=Ledger.apply):
        if type(event).__name__ == "EpochEnded":
            raise NnloError("no room")
        return apply(ledger, event)

    monkeypatch.setattr(Ledger, "apply", fails)
    with pytest.raises(NnloError, match="no room"):
        nnlo_opt.optimize(curve, SPACE, num_iterations=3, pruner="median")
