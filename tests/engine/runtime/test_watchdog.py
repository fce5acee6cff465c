"""The watchdog: what it takes for a hang, and what it does about one, in processes of their own."""

import math
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.pulse import SLOW, Pulse
from nnlo_opt.engine.runtime.peers import Heart, Peer
from nnlo_opt.engine.runtime.watchdog import Watch, Watchdog
from tests.helpers.launcher import seen_within

pytestmark = pytest.mark.many

linux = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")


# ---------------------------------------------------------------- pulse and watch


def test_patience_lasts_until_the_next_tick():
    pulse = Pulse()
    assert pulse.patience == 1.0
    pulse.expect(SLOW)
    assert pulse.patience == SLOW
    pulse.ticks += 1
    assert pulse.patience == 1.0


def test_slow_work_is_said_after_a_while_and_then_less_and_less_often():
    pulse, said = Pulse(), []
    watchdog = Watchdog(3, 600.0, said.append, pulse)
    watchdog.report(lambda rank, how: None, None, tells_work=True)
    for second in range(0, 70, 2):
        if second == 2:
            pulse.expect(SLOW, "computes the first batch")
        if second == 60:
            pulse.expect(SLOW)
        watchdog._look(float(second))
    assert said == [f"Rank 3 computes the first batch: {s} s so far." for s in (10, 20, 40)]
    pulse.ticks += 1
    pulse.expect(SLOW, "builds the model")
    for second in range(70, 84, 2):
        watchdog._look(float(second))
    assert said[3:] == ["Rank 3 builds the model: 10 s so far."]


def test_a_computation_of_a_user_may_take_any_time_and_its_end_is_a_tick():
    pulse = Pulse()

    def compute():
        with pulse.unwatched():
            with pulse.unwatched():
                assert pulse.patience == math.inf
            assert pulse.patience == math.inf
            raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        compute()
    assert pulse.patience == 1.0
    assert pulse.ticks


#: seconds between two looks, and whether something has moved since the one before
looks = st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), min_size=1, max_size=60)


@given(looks, st.sampled_from([1.0, 3.0]))
def test_what_stands_still_for_longer_than_the_time_out_hangs_and_nothing_else(looks, patience):
    watch, now_s, count, still_s = Watch(5.0, longest_gap_s=2.0), 0.0, 0, 0.0
    assert not watch.look(count, patience, now_s)
    for gap_s, moves in looks:
        now_s += gap_s
        count += moves
        # What the watcher slept through itself counts as the longest gap: the machine was not running.
        still_s = 0.0 if moves else still_s + min(gap_s, 2.0)
        assert watch.look(count, patience, now_s) == (watch.idle_s > 5.0 * patience)
        assert watch.idle_s == pytest.approx(still_s, abs=1e-9)


def test_a_job_that_was_suspended_as_a_whole_is_not_ended_when_it_wakes():
    watch = Watch(10.0, longest_gap_s=2.0)
    assert not watch.look(1, 1.0, 0.0)
    assert not watch.look(1, 1.0, 86400.0)


# ---------------------------------------------------------------- real processes

#: a rank as the command starts it; prints its handle, hears those of others, and does what it is told
RANK = """
import sys, time, ctypes, hashlib, signal
from pathlib import Path
from nnlo_opt.engine.runtime import watchdog as module
from nnlo_opt.engine.runtime.peers import Peer
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.engine.runtime.watchdog import Watchdog

rank, timeout_s, log = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
watchdog = Watchdog(rank, timeout_s, lambda text: print(text, file=sys.stderr, flush=True))
print(watchdog.heart.handle.hex(), flush=True)
handles = [word.split(":") for word in sys.stdin.readline().split()]
watchdog.watch([Peer(int(number), bytes.fromhex(handle)) for number, handle in handles if int(number) != rank])
watchdog.report(
    lambda world_rank, how: print("saw", world_rank, how, flush=True), log if timeout_s < 10 else None
)
watchdog.start()
print("watches", flush=True)

def work():
    while True:
        PULSE.ticks += 1
        time.sleep(0.01)

def hang_in_a_batch():
    time.sleep(1000)

def compute_an_objective():
    with PULSE.unwatched():
        time.sleep(4)
    print("done", flush=True)
    work()

def compute_in_c():
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)

def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(1000)

def hang_without_a_word():
    module.LAST_WORDS_S = module.LATER_S = 1.0
    watchdog._tell = lambda text: hold_the_interpreter()  # a terminal that takes nothing, at its worst
    time.sleep(1000)

def hang_without_a_word_and_hear_alarms():
    signal.signal(signal.SIGALRM, lambda signum, frame: None)
    hang_without_a_word()

globals()[sys.argv[4]]()
"""


@contextmanager
def node(tmp_path, *what, timeout_s=1.0):
    """Ranks 0, 1, … of one node, each doing what it is told."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(i), str(timeout_s), str(tmp_path / "logs" / f"{i}.log"), doing],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, doing in enumerate(what)
    ]
    try:
        handles = " ".join(f"{i}:{rank.stdout.readline().strip()}" for i, rank in enumerate(ranks))
        for rank in ranks:
            rank.stdin.write(handles + "\n")
            rank.stdin.flush()
        assert [rank.stdout.readline() for rank in ranks] == ["watches\n"] * len(ranks)
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.communicate(timeout=20)


@linux
def test_a_rank_that_hangs_ends_with_the_stacks_of_its_threads_in_its_log(tmp_path):
    with node(tmp_path, "hang_in_a_batch", "work") as (hung, busy):
        assert hung.wait(30) == 1
        assert "has done nothing for longer than `--hang-timeout`" in hung.stderr.readline()
        log = (tmp_path / "logs" / "0.log").read_text()
        assert "in hang_in_a_batch" in log
        assert "nnlo_opt/engine/runtime/watchdog.py" in log, "all threads"
        assert busy.poll() is None
        assert busy.stdout.readline().startswith("saw 0 its process died")


@linux
@pytest.mark.parametrize(
    ("what", "code"), [("hang_without_a_word", -signal.SIGALRM), ("hang_without_a_word_and_hear_alarms", 1)]
)
def test_a_rank_that_hangs_ends_by_a_signal_where_its_last_words_hang_too(tmp_path, what, code):
    """Under ULFM nobody would hear of an exit; it is left to where a user's handler takes the signal."""
    with node(tmp_path, what) as (hung,):
        assert hung.wait(30) == code


@linux
def test_the_state_of_a_rank_is_looked_up_only_where_its_heart_stands_still(monkeypatch):
    looked_up = []
    monkeypatch.setattr(Peer, "is_stopped", property(lambda peer: looked_up.append(peer.world_rank)))
    heart = Heart()
    watchdog = Watchdog(0, 10.0, lambda text: None)
    watchdog.watch([Peer(1, heart.handle)])
    for second in range(30):
        heart.beat(may_be_silent=False)
        watchdog._pulse.ticks += 1
        watchdog._look(float(second))
    assert not looked_up
    for second in range(30, 45):
        watchdog._pulse.ticks += 1
        watchdog._look(float(second))
    assert set(looked_up) == {1}


@pytest.mark.proof
@linux
def test_a_users_computation_is_not_ended_however_long_it_takes(tmp_path):
    with node(tmp_path, "compute_an_objective", "work", timeout_s=0.5) as (computing, _):
        assert computing.stdout.readline() == "done\n"
        with pytest.raises(subprocess.TimeoutExpired):
            computing.wait(1.0)


@linux
@pytest.mark.parametrize("first", [True, False])
def test_a_stopped_rank_is_ended_by_another_one_of_its_node(tmp_path, first):
    with node(tmp_path, "work", "work", "work") as ranks:
        stopped = ranks[0 if first else 2]
        stopped.send_signal(signal.SIGSTOP)
        assert stopped.wait(30) == -signal.SIGKILL
        # One of them sees to it, the first that is alive.
        by = ranks[1 if first else 0]
        assert "is stopped (SIGSTOP), for longer than `--hang-timeout`" in by.stderr.readline()
        assert by.poll() is None


@linux
def test_a_rank_whose_interpreter_is_blocked_is_ended_by_another_one(tmp_path):
    with node(tmp_path, "work", "hold_the_interpreter", timeout_s=0.5) as (watching, blocked):
        assert blocked.wait(40) == -signal.SIGKILL
        assert "is blocked, and its watchdog with it" in watching.stderr.readline()


def has_ended(ranks):
    return any(rank.poll() is not None for rank in ranks)


@pytest.mark.proof
@linux
def test_ranks_that_are_stopped_together_continue_together(tmp_path):
    with node(tmp_path, "work", "work") as ranks:
        for rank in ranks:
            rank.send_signal(signal.SIGSTOP)
        assert not seen_within(3.0, lambda: has_ended(ranks))
        for rank in ranks:
            rank.send_signal(signal.SIGCONT)
        assert not seen_within(0.7, lambda: has_ended(ranks))


@linux
def test_the_rank_that_died_first_is_known_and_one_that_was_told_to_end_is_not(tmp_path):
    with node(tmp_path, "work", "work", "work") as ranks:
        ranks[1].kill()
        assert ranks[0].stdout.readline().startswith("saw 1 ")
    with node(tmp_path, "work", "work", "work") as ranks:
        for rank in ranks:  # as mpirun does where somebody ends the job
            rank.terminate()
        assert [rank.wait(20) for rank in ranks] == [-signal.SIGTERM] * 3
        assert [rank.stdout.read() for rank in ranks] == [""] * 3


@linux
def test_sigterm_ends_a_rank_that_does_not_come_back_to_python(tmp_path):
    with node(tmp_path, "compute_in_c", "work", timeout_s=1000.0) as (computing, _):
        assert computing.stdout.readline() == "begun\n"
        process = psutil.Process(computing.pid)
        began_s = process.cpu_times().user
        assert seen_within(30, lambda: process.cpu_times().user > began_s + 0.3)
        computing.terminate()
        assert computing.wait(30) == 128 + signal.SIGTERM


@linux
def test_a_handle_of_another_process_is_refused():
    heart = Heart()
    mine = Peer(3, heart.handle)
    heart.beat(may_be_silent=True)
    assert (mine.beats, mine.may_be_silent, mine.has_ended, mine.is_stopped) == (1, True, False, False)
    forged = heart.handle[:-1] + bytes([heart.handle[-1] ^ 1])
    assert Peer.of(3, forged) is None
    assert Peer.of(3, bytes(len(heart.handle))) is None
