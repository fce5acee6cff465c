"""One rank and its coordinator; what several ranks do to each other is tested under mpirun."""

import asyncio
import math
import re
from array import array
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.objective_messages import CallObjective
from nnlo_opt.core.comm.run_messages import OpenRun
from nnlo_opt.core.trials.objectives import Comparison, Objective
from nnlo_opt.engine.objective.rank import ObjectiveRank, ObjectiveSetup
from nnlo_opt.engine.objective.signature import objective_of
from tests.helpers.manual_clock import ManualClock

ERROR = {"error": 0.25}
SEVERAL = (Objective("size"), Objective("error", "max"), Objective("train_s"))


class Calls:
    """Workload whose trials are calls of a function."""

    def __init__(self, objective):
        self.objective = objective
        self.n_open = 0

    def open(self, start):
        self.n_open += 1
        return objective_of(self.objective, "here", start.names)

    def close(self):
        self.n_open -= 1


def rank_of(orders, block, programs, make_comm, clock, **others):
    run = OpenRun(directory="run")
    setup = ObjectiveSetup(
        orders=orders, block=block, programs=programs, run=run, make_comm=make_comm, clock=clock, **others
    )
    return ObjectiveRank(setup)


class AloneComm:
    """A communicator of one rank, as far as `ObjectiveRank` uses it."""

    def __init__(self):
        self.is_open = True

    def close(self):
        self.is_open = False


class Bench:
    """A block of one rank; the test is the coordinator."""

    def __init__(self, objective, *objectives):
        others = {"comparison": Comparison(objectives=objectives)} if objectives else {}
        block = LoopbackNetwork(1).end(0)
        network = LoopbackNetwork(2)
        self.clock = ManualClock()
        self.comms = []
        self.coordinator = network.end(0)
        self.programs = Calls(objective)
        self.rank = rank_of(network.end(1), block, self.programs, self._make_comm, self.clock, **others)
        self.n_calls = 0

    def _make_comm(self, gate):
        gate.look_out()
        self.comms.append(AloneComm())
        return self.comms[-1]

    def call(self, **point):
        """Run the objective at `point`; what the coordinator hears, in order."""
        self.rank.handle_order(msg.RunFold(assignment=self.n_calls, trial=0, fold=0, attempt=1, point=point))
        self.n_calls += 1
        heard = []
        while (received := self.coordinator.poll()) is not None:
            heard.append(received.message)
        return heard


def failure(objective, *objectives):
    """How the only call of an objective fails."""
    *_, failed = Bench(objective, *objectives).call()
    assert isinstance(failed, msg.FoldFailed)
    return failed


def reporting(epoch, value):
    def objective(parameters, comm, report):
        report(epoch, value)
        return 1.0

    return objective


def test_the_objective_is_called_at_the_point_with_a_communicator_and_its_value_is_the_figure():
    seen = []

    def objective(parameters, comm, report):
        assert comm.is_open
        seen.append(parameters)
        return parameters["x"] ** 2

    bench = Bench(objective)
    started, finished = bench.call(x=3, kind="a")
    assert started == msg.FoldStarted(assignment=0)
    assert (finished.assignment, finished.figure_of_merit, finished.metrics) == (0, 9.0, {"value": 9.0})
    assert seen == [{"x": 3, "kind": "a"}]
    assert not bench.comms[0].is_open


def test_a_program_is_open_during_its_call_and_closed_after_it_even_if_it_raises():
    seen = []
    bench = Bench(lambda parameters, comm, report: seen.append(bench.programs.n_open) or 1 / parameters["x"])
    for x in (1, 0):
        bench.call(x=x)
        assert bench.programs.n_open == 0
    assert seen == [1, 1]


def test_the_objective_may_change_its_parameters_without_harm():
    order = msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={"x": 1})
    bench = Bench(lambda parameters, comm, report: parameters.pop("x"))
    bench.rank.handle_order(order)
    assert order.point == {"x": 1}


def test_reports_reach_the_coordinator_as_epochs_and_the_last_counts_them():
    def objective(parameters, comm, report):
        return min(1.0 / epoch for epoch in (1, 2, 3) if report(epoch, 1.0 / epoch))

    _, *reported, finished = Bench(objective).call()
    assert [(r.epoch, r.metrics) for r in reported] == [(1, {"value": 1.0}), (2, {"value": 0.5}), (3, {"value": 1 / 3})]
    assert finished.n_epochs == 3


def test_reports_of_one_call_do_not_count_for_the_next():
    def objective(parameters, comm, report):
        if parameters["reports"]:
            report(7, 1.0)
        return 1.0

    bench = Bench(objective)
    assert bench.call(reports=True)[-1].n_epochs == 7
    assert bench.call(reports=False)[-1].n_epochs == 0


@pytest.mark.parametrize(
    "value",
    [
        *(2, True + 1, Fraction(2), Decimal(2), [2.0], np.array(2.0), np.array([[2.0]]), np.float32(2.0)),
        *(np.longdouble(2.0), np.ma.array([2.0]), np.array([Fraction(2)]), pd.Series([2.0])),
    ],
    ids=repr,
)
def test_whatever_holds_one_number_is_a_figure(value):
    assert Bench(lambda parameters, comm, report: value).call()[-1].figure_of_merit == 2.0


class NotANumber:
    """Something `float` has its own opinion about, as a tensor of many elements has."""

    def __float__(self):
        raise RuntimeError("only one element tensors can be converted to Python scalars")

    def __repr__(self):
        return "tensor([1, 2])"


@pytest.mark.needs("torch")
def test_a_loss_of_torch_is_a_figure_with_its_gradient():
    import torch

    _, finished = Bench(lambda parameters: torch.full((1, 1), 2.0, requires_grad=True).sum()).call()
    assert finished.figure_of_merit == 2.0


@pytest.mark.parametrize(
    "value",
    [None, "good", "2.0", np.str_("2.0"), b"2.0", math.nan, math.inf, -math.inf, [1.0, 2.0], 1j, 10**400, NotANumber()],
    ids=lambda v: str(v)[:20],
)
def test_a_value_that_is_no_finite_number_fails_the_trial_and_is_shown(value):
    failed = failure(lambda parameters, comm, report: value)
    assert "finite number" in failed.reason
    assert repr(value)[:10] in failed.reason


#: what NumPy makes a number of all the same: a part of it, its units, its bytes, what a mask hides
NOT_REAL = [
    *(np.ma.masked, [np.ma.masked], np.ma.array(1.0, mask=True), np.array([np.ma.masked], dtype=object)),
    *(np.complex128(0.1 + 5j), np.array([1 + 0j]), np.timedelta64(7, "s"), np.datetime64("2020-01-01")),
    *(range(1), memoryview(b"1"), bytearray(b"1"), array("d", [1.0]), np.zeros(1, [("a", float)])),
    *(np.array("1", dtype=object), np.bytes_(b"1"), pd.Timedelta(7), timedelta(1)),
]


@pytest.mark.parametrize("value", NOT_REAL, ids=lambda value: f"{type(value).__name__} {np.shape(value)}")
@pytest.mark.parametrize("reported", [False, True])
def test_a_value_that_is_no_real_number_fails_its_trial_returned_or_reported(value, reported):
    def objective(parameters, comm, report):
        return report(1, value) if reported else {"value": 1.0, "other": value}

    assert ("at epoch 1" if reported else "as `other`") in failure(objective).reason


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5"])
def test_a_report_that_is_not_finite_fails_the_trial_with_the_epoch(value):
    assert "epoch 4" in failure(reporting(4, value)).reason


@pytest.mark.parametrize("epoch", [-1, 2.5, "1", True, None, 2**60])
def test_an_epoch_that_is_no_whole_number_from_1_fails_the_trial_and_is_shown(epoch):
    messages = Bench(reporting(epoch, 0.5)).call()
    assert [type(message) for message in messages] == [msg.FoldStarted, msg.FoldFailed]
    assert f"whole numbers from 1; received: {epoch!r}" in messages[-1].reason


class SpeechlessError(Exception):
    """Cannot say what has happened."""

    def __str__(self):
        raise SystemExit("no words")


class NoItems(Mapping):
    """Returned in place of values, which it does not give."""

    def __getitem__(self, name):
        raise asyncio.CancelledError(name)

    def __iter__(self):
        return iter(["value"])

    def __len__(self):
        return 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such x"), "ValueError: no such x"),
        (MemoryError(), "out of memory"),
        (KeyError("x"), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError("enough"), "CancelledError: enough"),
        (GeneratorExit(), "GeneratorExit"),
        (SpeechlessError(), "SpeechlessError: its message raises SystemExit"),
    ],
)
def test_an_objective_that_raises_fails_its_trial_and_the_next_call_is_as_if_nothing_had_been(error, words):
    def objective(parameters, comm, report):
        if parameters["fails"]:
            raise error
        return 2.0

    bench = Bench(objective)
    started, failed = bench.call(fails=True)
    assert started == msg.FoldStarted(assignment=0)
    assert words in failed.reason
    assert failed.traceback.startswith("Traceback")
    assert (failed.world_rank, bool(failed.host)) == (1, True)
    assert bench.call(fails=False)[-1].figure_of_merit == 2.0


def test_an_interruption_is_no_failure_of_the_trial():
    def objective(parameters, comm, report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bench(objective).call()


def test_a_value_that_raises_when_it_is_looked_at_fails_its_trial():
    assert failure(lambda parameters, comm, report: NoItems()).reason.startswith("CancelledError: value (`")


def test_a_long_message_is_shortened_and_the_log_has_all_of_it(caplog):
    caplog.set_level("INFO", "nnlo_opt.whole")

    def objective(parameters, comm, report):
        raise ValueError("first " + "x" * 5_000_000 + " last")

    failed = failure(objective)
    assert failed.reason.startswith("ValueError: first x")
    reason, place = failed.reason.split(" (`")
    assert reason.endswith("[4,998,011 characters left out] " + "x" * 995 + " last")
    assert re.fullmatch(r".*test_objective\.py`, line \d+\); traceback in `logs/rank-0000\d\.log`", place)
    assert len(failed.traceback) < 21_000
    assert failed.traceback.startswith("Traceback")
    assert "x" * 5_000_000 in caplog.text


def test_a_rank_that_raised_leaves_the_next_call_to_be_taken():
    """It comes as soon as block rank 0 is through with the one before: the same look at the messages may see both."""

    def objective(parameters, comm, report):
        raise ValueError("raised")

    block, orders = LoopbackNetwork(2), LoopbackNetwork(2)
    rank = rank_of(orders.end(1), block.end(1), Calls(objective), lambda gate: AloneComm(), ManualClock())
    root = block.end(0)
    root.send(1, msg.FoldFailed(assignment=0, reason="raised", world_rank=1))
    root.send(1, CallObjective(assignment=1, point={}))
    rank.handle(CallObjective(assignment=0, point={}))
    received = block.end(1).poll()
    assert received is not None
    assert received.message == CallObjective(assignment=1, point={})


def test_another_rank_of_the_block_finds_its_part_of_the_save_in_the_folder_of_the_attempt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    def objective(parameters, checkpoint):
        seen.append(checkpoint.folder)
        raise ValueError("raised")

    part = Path("run/trials/0004/fold0/attempt-2-5/checkpoint-1/rank-1")
    part.mkdir(parents=True)
    block, orders = LoopbackNetwork(2), LoopbackNetwork(2)
    rank = rank_of(orders.end(1), block.end(1), Calls(objective), lambda gate: AloneComm(), ManualClock())
    block.end(0).send(1, msg.FoldFailed(assignment=5, reason="raised", world_rank=1))
    rank.handle(CallObjective(assignment=5, trial=4, point={}, term=2, saved="checkpoint-1", epoch=1, first=1))
    assert seen == [part]


@pytest.mark.parametrize("reports", [True, False])
def test_a_stop_is_heard_at_the_next_report_or_at_the_end_and_the_call_has_no_result(reports):
    went_on = []

    def objective(parameters, comm, report):
        for epoch in (1, 2, 3):
            if epoch == 2:
                bench.coordinator.send(1, msg.StopFold(assignment=0))
            went_on.append(not reports or report(epoch, 1.0))
            if not went_on[-1]:
                break
        return 1.0

    bench = Bench(objective)
    assert bench.call()[-1] == msg.FoldStopped(assignment=0)
    assert went_on == ([True, False] if reports else [True] * 3)


def test_a_stop_that_comes_after_the_end_does_not_stop_the_next_call():
    bench = Bench(lambda parameters, comm, report: 1.0 if report(1, 1.0) else 0.0)
    bench.call()
    bench.rank.handle_order(msg.StopFold(assignment=0))
    assert isinstance(bench.call()[-1], msg.FoldFinished)


def test_the_time_of_a_call_is_reported_and_from_the_second_on_the_time_before_it():
    def objective(parameters, comm, report):
        bench.clock.advance(12.0)
        return 1.0

    bench = Bench(objective)
    first, finished = bench.call()
    bench.clock.advance(5.0)
    second, _ = bench.call()
    assert (first.waited_s, finished.train_s, second.waited_s) == (None, 12.0, 5.0)


def test_a_record_needs_no_answer_and_any_other_order_is_a_protocol_error():
    bench = Bench(lambda parameters, comm, report: 1.0)
    bench.rank.handle_order(msg.FoldRecorded(assignment=0))
    assert bench.coordinator.poll() is None
    with pytest.raises(ProtocolError):
        bench.rank.handle_order(msg.EndFold(assignment=0))


# ---------------------------------------------------------------- several values


def test_a_dict_has_the_value_of_every_objective():
    bench = Bench(lambda parameters, comm, report: {"error": 0.25, "size": np.int64(7), "other": 1}, *SEVERAL)
    _, finished = bench.call()
    assert finished.objectives == {"size": 7.0, "error": 0.25, "train_s": 0.0}
    assert (finished.figure_of_merit, finished.metrics) == (7.0, {"error": 0.25, "size": 7.0, "other": 1.0})


def test_one_objective_picks_its_value_of_a_dict():
    bench = Bench(lambda parameters, comm, report: {"error": 0.25, "size": 7}, Objective("error"))
    _, finished = bench.call()
    assert (finished.figure_of_merit, finished.objectives) == (0.25, {})


@pytest.mark.parametrize(
    ("value", "name", "words"),
    [
        (ERROR, "size", "`size`, as `--objective` or `--outcome-constraint` says; it returned error"),
        (0.25, "size", "`size`, as `--objective` or `--outcome-constraint` says; it returned value"),
        (ERROR, "figure_of_merit", "must name the returned value that is the figure of merit; returned were error"),
        ({}, "size", "it returned an empty dict"),
        ({"size": math.nan}, "size", "a finite number as `size`; received: nan"),
        ({"size": 1.0, "other": "x"}, "size", "a finite number as `other`; received: 'x'"),
    ],
)
def test_a_dict_without_what_was_asked_for_fails_the_trial(value, name, words):
    assert words in failure(lambda parameters, comm, report: value, Objective(name)).reason
