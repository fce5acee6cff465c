from types import SimpleNamespace

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError, ProtocolError, TrialError
from nnlo_opt.core.base.user_code import reason_of
from nnlo_opt.core.block.worker.training import Partners
from nnlo_opt.core.block.worker.worker import Worker, WorkerSetup
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.transport import Collective
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.rule import SteppingWorker
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.loopback_team import BuiltTasks, linear_tasks
from tests.helpers.memory_source import linear_source

N_FEATURES = 3
SOURCE = linear_source(25, N_FEATURES)
FOLDS = [single_fold(20, 5)]


class Bench:
    """A worker whose master is the test."""

    def __init__(self, tasks, partners=None):
        network = LoopbackNetwork(2)
        self._master, self._end = network.end(0), network.end(1)
        self.worker = Worker(WorkerSetup(block=self._end, tasks=tasks, world_rank=7, partners=partners or Partners()))

    def tell(self, message, payload=None):
        """Hand `message` over; what the worker answers, as (message, payload) or None."""
        self._master.send(1, message, payload)
        self.worker.handle(self._end.poll())
        while self.worker.can_work:
            self.worker.work()
        answers = []
        while (received := self._master.poll()) is not None:
            answers.append((received.message, received.payload))
        assert len(answers) <= 1
        return answers[0] if answers else None

    def start(self, assignment=0, worker=1, n_workers=1, **point):
        return self.tell(
            msg.StartFold(assignment=assignment, trial=0, fold=0, point=point, worker=worker, n_workers=n_workers)
        )

    def train(self, weights, assignment=0, version=0, position=None):
        return self.tell(msg.Train(assignment=assignment, version=version, position=position), weights)


def options_of(**changes):
    return TrainingOptions(**{"batch": 8, "optimizer": "sgd", "learning_rate": 0.1, **changes})


def bench_of(**changes):
    return Bench(linear_tasks(SOURCE, FOLDS, options_of(**changes))())


def full(value):
    return np.full(N_FEATURES + 1, value, np.float32)


def test_only_the_first_worker_sends_initial_weights_and_state_when_ready():
    ready, payload = bench_of().start(worker=1, n_workers=3)
    assert (ready.n_weights, ready.n_state, ready.n_train, ready.n_shard) == (4, 1, 20, 6)
    assert ready.has_validation
    assert payload.shape == (5,)
    ready, payload = bench_of().start(worker=2, n_workers=3)
    assert (ready.n_train, ready.n_shard, payload) == (20, 7, None)


def test_an_update_is_the_gradient_at_the_weights_that_came():
    bench = bench_of(shuffle=False)
    bench.start()
    push, update = bench.train(full(0.5), version=3)
    model = LinearAdapter(N_FEATURES)
    model.write_weights(full(0.5))
    metrics = model.gradient(*SOURCE.read(np.arange(8)), expected := full(0.0))
    assert np.array_equal(update, expected)
    assert (push.base_version, push.n_samples, push.end_of_pass) == (3, 8, False)
    assert push.sums == metrics.sums


def test_the_last_update_of_a_pass_says_so_and_may_be_smaller():
    bench = bench_of()
    bench.start()
    pushes = [bench.train(full(0.5))[0] for _ in range(6)]
    assert [push.n_samples for push in pushes] == [8, 8, 4, 8, 8, 4]
    assert [push.end_of_pass for push in pushes] == [False, False, True] * 2


def test_a_sync_period_trains_locally_and_ends_with_the_pass():
    bench = bench_of(sync_every=2)
    bench.start()
    pushes = [bench.train(full(0.5))[0] for _ in range(4)]
    assert [push.n_samples for push in pushes] == [16, 4, 16, 4]


def test_at_the_fence_a_worker_hands_in_its_state_and_position():
    bench = bench_of()
    bench.start()
    bench.train(full(0.5))
    reached, state = bench.tell(msg.Fence(assignment=0))
    assert reached.position == {"pass": 0, "offset": 8, "discrete": [[1]]}
    assert state.shape == (1,)


def test_what_a_fence_cuts_off_a_period_is_counted_once(monkeypatch):
    """Two workers, of 10 samples each: this one has trained 4 and then 2 more when the epoch ends, and reports them."""
    factors = []
    monkeypatch.setattr(SteppingWorker, "scale_learning_rate", lambda self, factor: factors.append(factor))
    bench = bench_of(mode="easgd", batch=2, sync_every=2, epochs=2, lr_schedule="linear")
    bench.tell(msg.StartFold(assignment=0, trial=0, fold=0, point={}, worker=1, n_workers=2, overlap=True))
    pushed, _ = bench.train(full(0.5))
    reached, _ = bench.tell(msg.Fence(assignment=0))
    assert (pushed.n_samples, reached.n_samples) == (4, 2)
    pushed, _ = bench.tell(msg.Train(assignment=0, version=1, n_samples=20), full(0.5))
    assert pushed.n_samples == 2
    # In the middle of 4 samples of both workers, of the 40 of both epochs.
    assert factors[3] == pytest.approx(1 - 22 / 40)


def test_a_worker_that_resumes_behind_its_shard_waits_for_larger_ones():
    """Of 20 samples on 3 workers it has 6, and trained them in the first of the two common steps."""
    alone = SimpleNamespace(sum_in_place=lambda vector: None)
    bench = Bench(linear_tasks(SOURCE, FOLDS, options_of(mode="allreduce", batch=6))(), Partners(team=alone))
    bench.start(n_workers=3)
    position = {"pass": 1, "offset": 0, "discrete": [[1]], "steps": 1, "samples": 6}
    pushed, _ = bench.train(full(0.5), position=position)
    assert (pushed.n_samples, pushed.end_of_pass) == (0, True)


def test_a_position_that_comes_with_the_weights_is_gone_to():
    bench = bench_of()
    bench.start()
    updates = [bench.train(full(0.5))[1].copy() for _ in range(5)]
    bench.start(assignment=1)
    position = {"pass": 1, "offset": 0, "discrete": [[3]]}
    assert np.array_equal(bench.train(full(0.5), assignment=1, position=position)[1], updates[3])
    assert bench.tell(msg.Fence(assignment=1))[0].position["discrete"] == [[4]]


def test_a_worker_validates_its_share_at_the_weights_that_came():
    bench = bench_of()
    bench.start(worker=2, n_workers=2)
    validated, _ = bench.tell(msg.Validate(assignment=0), np.append(full(0.5), np.float32(0)))
    model = LinearAdapter(N_FEATURES)
    model.write_weights(full(0.5))
    metrics = model.evaluate(*SOURCE.read(np.arange(22, 25)))
    assert (validated.n_samples, validated.sums) == (3, metrics.sums)


def test_after_a_failure_messages_about_the_assignment_are_dropped_until_the_next_start():
    bench = bench_of()
    failed, _ = bench.start(fault="build")
    assert failed == msg.FoldFailed(
        assignment=0, reason="there is no such layer", traceback=failed.traceback, world_rank=7, host=failed.host
    )
    of_it = {"assignment": 0}
    for message in (msg.Train(version=0, **of_it), msg.Fence(**of_it), msg.Validate(**of_it), msg.EndFold(**of_it)):
        assert bench.tell(message, full(0.0)) is None
    assert isinstance(bench.start(assignment=1)[0], msg.WorkerReady)
    assert bench.train(full(0.0), assignment=0) is None


@pytest.mark.parametrize("message", [msg.Train(assignment=0, version=0), msg.Validate(assignment=0)])
def test_weights_that_did_not_come_are_a_protocol_error(message):
    bench = bench_of()
    bench.start()
    with pytest.raises(ProtocolError):
        bench.tell(message)


def test_a_message_no_master_sends_is_a_protocol_error():
    bench = bench_of()
    bench.start()
    with pytest.raises(ProtocolError):
        bench.tell(msg.FoldRecorded(assignment=0))


# ---------------------------------------------------------------- models are released


class Ledger:
    """Counts models that are built and released; releasing may fail."""

    def __init__(self, error=None):
        self.events = []
        self._error = error

    def tasks(self):
        def build(parameters, options, seed):
            self.events.append("build")
            return LinearAdapter(N_FEATURES)

        return BuiltTasks(build=build, release=self._release, source=SOURCE, folds=FOLDS, options=options_of())

    def _release(self):
        self.events.append("release")
        if self._error is not None:
            raise self._error


def test_a_model_is_released_at_the_end_of_its_fold_and_before_the_next():
    ledger = Ledger()
    bench = Bench(ledger.tasks())
    bench.start(assignment=0)
    bench.tell(msg.EndFold(assignment=0))
    bench.start(assignment=1)
    bench.start(assignment=2)
    assert ledger.events == ["build", "release", "build", "release", "build"]


@pytest.mark.parametrize("error", [RuntimeError("in the framework"), MemoryError()])
def test_a_model_that_cannot_be_released_does_not_end_the_rank(error):
    bench = Bench(Ledger(error).tasks())
    for assignment in range(3):
        assert isinstance(bench.start(assignment)[0], msg.WorkerReady)
        assert isinstance(bench.train(full(0.5), assignment)[0], msg.PushUpdate)
        bench.tell(msg.EndFold(assignment=assignment))


# ---------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TrialError("the loss is nan"), "the loss is nan"),
        (ConfigurationError("two\n lines"), "two lines"),
        (ValueError("bad shape"), "ValueError: bad shape"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (MemoryError("4 GB wanted"), "out of memory: 4 GB wanted"),
        (MemoryError(), "out of memory: Python could not allocate"),
    ],
)
def test_a_reason_is_one_line_and_names_the_type_of_errors_that_are_not_ours(error, reason):
    assert reason_of(error) == reason


class WithOneThatFails(Collective):
    """A group of two, the other of which fails in every step."""

    def __init__(self):
        self.n_sums = 0

    def sum_in_place(self, vector):
        self.n_sums += 1
        # Gradient and flags (samples, ranks that failed, ranks that want the end) begin at multiples of 16 numbers.
        vector[16 + 1] += 1


def test_no_step_begins_after_one_in_which_another_rank_failed():
    """The other worker no longer takes part: this one would wait for it forever."""
    group = WithOneThatFails()
    options = options_of(mode="allreduce")
    bench = Bench(linear_tasks(SOURCE, FOLDS, options)(), Partners(team=group))
    bench.start(n_workers=2)
    assert bench.train(full(0.5)) is None
    assert bench.train(full(0.5), version=1) is None
    assert group.n_sums == 1
    # Until the master ends the assignment; the next is a new beginning.
    bench.tell(msg.EndFold(assignment=0))
    bench.start(assignment=1, n_workers=2)
    bench.train(full(0.5), assignment=1)
    assert group.n_sums == 2
