"""Searches whose trials run in processes forked from the caller's."""

import multiprocessing.reduction
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import psutil
import pytest

import nnlo_opt
from nnlo_opt import Real
from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.engine.objective import forked
from tests.helpers import launcher
from tests.helpers.effort import some_of
from tests.helpers.refusals import check_refused

SPACE = {"x": Real(-5, 5)}
FEW = {"num_iterations": 6, "hyper_opt": "random"}


@pytest.fixture(autouse=True)
def without_frameworks(monkeypatch):
    """Other tests may have imported one; what is forked here uses none."""
    monkeypatch.setattr(forked, "FRAMEWORKS", ())


@pytest.fixture
def left_behind():
    """Return a function that returns the child processes begun since; those of other tests, as a browser, stay."""
    before = psutil.Process().children()
    return lambda: [process for process in psutil.Process().children() if process not in before]


def test_anything_that_the_objective_refers_to_is_shared_without_pickling(monkeypatch, tmp_path, left_behind):
    def refuse(*_):
        raise AssertionError("something is pickled")

    for module in (pickle, multiprocessing.reduction.ForkingPickler):
        monkeypatch.setattr(module, "dumps", refuse)
    lock, numbers, square = threading.Lock(), (i for i in range(9)), lambda x: x * x
    with (tmp_path / "open.txt").open("w") as file:

        def objective(parameters):
            with lock:
                next(numbers)
                print("called", file=file, flush=True)
            return square(parameters["x"])

        result = nnlo_opt.optimize(objective, SPACE, n_parallel=3, **FEW)
    assert Counter(trial.state.value for trial in result.trials) == {"complete": 6}
    assert (tmp_path / "open.txt").read_text() == "called\n" * 6
    assert result.best_parameters == nnlo_opt.optimize(lambda p: p["x"] ** 2, SPACE, **FEW).best_parameters
    assert not left_behind()


def test_trials_run_at_the_same_time_each_with_random_numbers_of_its_own():
    def meets(parameters):
        time.sleep(0.05)
        return {"pid": os.getpid(), "random": random.random(), "numpy": np.random.random()}

    found = nnlo_opt.optimize(meets, SPACE, n_parallel=3, objective="random:min", **FEW)
    metrics = [trial.folds[0].metrics for trial in found.trials]
    assert len({one["pid"] for one in metrics} - {os.getpid()}) == 3
    assert all(len({one[name] for one in metrics}) == 6 for name in ("random", "numpy"))


@pytest.mark.parametrize("how", ["SIGKILL", "exit code 3"])
def test_a_process_that_dies_is_a_failed_attempt_which_says_how(how, left_behind):
    def dies(parameters):
        if parameters["x"] > 0:
            os.kill(os.getpid(), signal.SIGKILL) if how == "SIGKILL" else os._exit(3)
        return parameters["x"] ** 2

    result = nnlo_opt.optimize(dies, SPACE, n_parallel=2, max_attempts=2, **FEW)
    for trial in result.trials:
        died = trial.parameters["x"] > 0
        assert (trial.state.value, len(trial.assignments)) == (("failed", 2) if died else ("complete", 1))
        assert not died or trial.reason.endswith(f"(`max_attempts`); the last time: its process ended ({how})")
    assert not left_behind()


def test_a_death_is_seen_although_a_grandchild_keeps_the_pipe_open():
    def leaves_a_child(parameters):
        if not os.fork():
            time.sleep(3)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    result = nnlo_opt.optimize(leaves_a_child, SPACE, num_iterations=1, n_parallel=2, max_attempts=1)
    assert result.trials[0].state.value == "failed"


def test_a_first_mistake_is_raised_with_its_traceback_in_a_note(left_behind):
    def raises(parameters):
        return parameters["x"] / 0

    with pytest.raises(TrialError, match="ZeroDivisionError: float division by zero") as raised:
        nnlo_opt.optimize(raises, SPACE, n_parallel=2, **FEW)
    assert 'return parameters["x"] / 0' in raised.value.__notes__[0]
    assert not left_behind()


def test_a_run_is_kept_and_resumed(tmp_path):
    run = {"checkpoint": tmp_path / "run", "hyper_opt": "random"}

    def objective(parameters):
        return parameters["x"] ** 2

    nnlo_opt.optimize(objective, SPACE, n_parallel=2, num_iterations=3, **run)
    result = nnlo_opt.optimize(objective, SPACE, n_parallel=3, num_iterations=6, opt_restore=True, **run)
    assert [session.n_before for session in result.ledger.sessions] == [0, 3]
    assert result.best_parameters == nnlo_opt.optimize(objective, SPACE, **FEW).best_parameters


WRITES = """
import os, sys, threading, nnlo_opt
sys.stdout = open(STREAM)
def write():
    while True:
        sys.stdout.write("x" * 2000)
threading.Thread(target=write, daemon=True).start()
def objective(x):
    print("called")
    return x
result = nnlo_opt.optimize(objective, {"x": nnlo_opt.Real(0, 1)}, num_iterations=3, n_parallel=3)
os.write(2, str(result).encode())
os._exit(0)
"""


def test_a_thread_that_writes_all_the_time_keeps_no_process_waiting():
    # A pipe that is read slowly keeps the thread within its write, with the lock of the stream.
    program = WRITES.replace("STREAM", '1, "w", closefd=False')
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = b""
        until_s = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until_s:
            said += process.stdout.read1(256)
            time.sleep(5e-3)
        process.kill()
        said += process.stdout.read()
        assert b"3 complete" in process.stderr.read()
    assert said.count(b"called") == 3


def test_a_process_that_does_not_begin_is_a_lost_attempt(monkeypatch, left_behind):
    monkeypatch.setattr(forked, "BEGIN_S", 0.5)
    fork, n_forks = os.fork, iter(range(100))

    def hangs_at_first():
        first = not next(n_forks)
        pid = fork()
        if not pid and first:
            threading.Event().wait()  # as for a lock that another thread has held
        return pid

    monkeypatch.setattr(os, "fork", hangs_at_first)
    result = nnlo_opt.optimize(lambda x: x, SPACE, n_parallel=2, **FEW)
    assert Counter(trial.state.value for trial in result.trials) == {"complete": 6}
    assert Counter(len(trial.assignments) for trial in result.trials) == {1: 5, 2: 1}
    lost = next(trial for trial in result.trials if len(trial.assignments) == 2)
    assert lost.assignments[0].reason == "its process had not begun after 0.5 s"
    assert not left_behind()


CALLS_BACK = """
import os, sys, time, nnlo_opt
def called_back(study, trial):
    if not (child := os.fork()):
        HOW
    os.waitpid(child, 0)
def objective(x):
    time.sleep(0.05)
    return x
few = {"num_iterations": 6, "hyper_opt": "random"}
result = nnlo_opt.optimize(objective, {"x": nnlo_opt.Real(0, 1)}, n_parallel=3, callbacks=[called_back], **few)
print([len(trial.assignments) for trial in result.trials], os.path.exists(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("return", "must end by itself"),
        pytest.param("sys.exit(0)", "", marks=pytest.mark.proof),
        pytest.param("raise OSError('of a child')", "OSError: of a child", marks=pytest.mark.proof),
    ],
)
def test_a_child_of_a_callback_undoes_nothing_of_its_parent(how, says):
    done = launcher.python(CALLS_BACK.replace("HOW", how), "/").expect(0)
    assert done.out == "[1, 1, 1, 1, 1, 1] True\n"
    assert says in done.err if says else not done.err


LEAVES = """
import sys, nnlo_opt
def objective(x, report):
    for epoch in range(1, 3 if x > 0.5 else 10**6):
        report(epoch, x)
    return x
few = {"num_iterations": 20, "hyper_opt": "random", "callbacks": [lambda study, trial: sys.exit(3)]}
nnlo_opt.optimize(objective, {"x": nnlo_opt.Real(0, 1)}, n_parallel=4, **few)
"""


def test_the_exit_of_a_callback_leaves_no_traceback_of_a_child():
    done = launcher.python(LEAVES).expect(3)
    assert (done.out, done.err) == ("", "")


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_child_forked_in_a_save_leaves_the_folder_to_its_parent(n_parallel):
    def objective(trial):
        def write(folder):
            (folder / "before").write_text("x")
            if not (child := os.fork()):
                sys.exit(0)
            os.waitpid(child, 0)
            (folder / "after").write_text("x")

        trial.checkpoint.save(1, write)
        return len([*trial.checkpoint.folder.iterdir()])

    result = nnlo_opt.optimize(objective, SPACE, num_iterations=2, n_parallel=n_parallel)
    assert [trial.figure_of_merit for trial in result.trials] == [2, 2]


@pytest.mark.parametrize("n_parallel", some_of([2, 1]))
@pytest.mark.parametrize("how", ["sys.stdout.close()", "sys.stdout = sys.stderr = None", "sys.stderr.close()"])
def test_a_stream_that_a_trial_closes_is_open_in_the_next_one(n_parallel, how):
    program = f"""
import sys, nnlo_opt
def objective(x):
    print("called")
    print("called", file=sys.stderr)
    sys.stdout.write("written\\n")
    {how}
    return x
options = {{"num_iterations": 4, "hyper_opt": "random", "n_parallel": {n_parallel}}}
result = nnlo_opt.optimize(objective, {{"x": nnlo_opt.Real(0, 1)}}, **options)
print(result)
"""
    done = launcher.python(program).expect(0)
    assert "4 complete" in done.out
    counts = [text.count(word) for text, word in ((done.out, "called"), (done.out, "written"), (done.err, "called"))]
    assert counts == [4, 4, 4]


def test_descriptors_that_a_trial_closes_are_the_reason_and_no_signal(left_behind):
    def closes(x):
        os.closerange(3, 256)
        return x

    few = {"num_iterations": 1, "max_attempts": 2, "catch": True}
    result = nnlo_opt.optimize(closes, SPACE, n_parallel=2, **few)
    assert result.trials[0].reason.endswith("its process had closed file descriptors that it did not open")
    assert not left_behind()


REQUESTS = """
import os, nnlo_opt
def asks(study, *requests):
    if not (child := os.fork()):
        for request in requests:
            try:
                request()
            except nnlo_opt.ConfigurationError as error:
                print("refused:", error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
def called_back(study, trial):
    asks(study, lambda: study.enqueue({"x": 0.5}), study.stop)
space = {"x": nnlo_opt.Real(0, 1)}
result = nnlo_opt.optimize(lambda x: x, space, num_iterations=1, callbacks=[called_back])
with nnlo_opt.Study(space, num_iterations=2) as study:
    trial = study.ask()
    asks(study, lambda: study.enqueue({"x": 0.5}), study.stop, study.ask, lambda: study.tell(trial, 1.0))
    asks(study, lambda: next(iter(study)), lambda: trial.report(1, 0.5), study.close)
    study.tell(trial, 1.0)
    study.tell(study.ask(), 1.0)
print(result, study.result)
"""


def test_every_request_to_a_search_from_a_forked_process_is_refused():
    done = launcher.python(REQUESTS).expect(0)
    assert done.out.count("refused: A study belongs to the process that opened it.") == 8
    assert "1 complete" in done.out
    assert "2 complete" in done.out


SLOW = """
import sys, time, nnlo_opt
def slow(parameters):
    print("begins", flush=True)
    for i in range(600):
        time.sleep(0.1)
result = nnlo_opt.optimize(slow, {"x": nnlo_opt.Real(0, 1)}, num_iterations=9, n_parallel=3)
print(result.ended_because, len(result.trials), flush=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_with_the_first(tmp_path, signum):
    job = launcher.Job(1, [sys.executable, "-c", SLOW], tmp_path)
    out = next(tmp_path.glob(".out-*"))
    assert launcher.seen_within(60, lambda: out.read_text().count("begins") == 3)
    family = job.family()
    assert len(family) == 3
    # As a terminal does it, which sends Ctrl-C to the whole group.
    (os.killpg if signum == signal.SIGINT else os.kill)(job.process.pid, signum)
    outcome = job.wait(30, None)
    assert ("interrupted 3" in outcome.out) == (signum == signal.SIGINT)
    _gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (lambda p: 1.0, {"n_parallel": 0}, "Received: 0"),
        (lambda p: 1.0, {"n_parallel": 2, "block_size": 2}, "Received: `n_parallel=2` with `block_size=2`"),
        ("example_model.py", {"n_parallel": 2}, "for a model. Leave it out, and start the script with `mpirun`"),
    ],
)
def test_wrong_requests_are_refused(target, options, words, here):
    (here / "example_model.py").write_text("def get_model(x):\n    ...\n")
    check_refused(words, nnlo_opt.optimize, target, SPACE, **options, **FEW)


def test_more_processes_than_the_system_has_room_for_are_refused_with_a_sentence(left_behind):
    limit, files = resource.getrlimit(resource.RLIMIT_NOFILE), psutil.Process().num_fds()
    resource.setrlimit(resource.RLIMIT_NOFILE, (files + 20, limit[1]))
    try:
        more = {"n_parallel": 40, "num_iterations": 40}
        check_refused("Too many open files. Lower it", nnlo_opt.optimize, lambda p: time.sleep(9), SPACE, **more)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert not left_behind()


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "jax"])
def test_a_process_with_threads_of_a_framework_is_not_forked(framework, monkeypatch):
    monkeypatch.setattr(forked, "FRAMEWORKS", (framework,))
    monkeypatch.setitem(sys.modules, framework, sys)
    sentence = check_refused(framework, nnlo_opt.optimize, lambda p: 1.0, SPACE, n_parallel=2, **FEW)
    assert "Import it within the objective" in sentence
