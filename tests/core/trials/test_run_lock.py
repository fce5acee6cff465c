import json
import os
import threading
import time
from contextlib import closing

import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import with_checksum
from nnlo_opt.core.trials import owner as owners
from nnlo_opt.core.trials.events import RunStarted
from nnlo_opt.core.trials.owner import OWNER_NAME, forget_owner, read_owner, this_process
from nnlo_opt.core.trials.run_directory import RunRequest, open_run
from nnlo_opt.core.trials.run_lock import LOCK_NAME, RunLock
from tests.helpers.launcher import seen_within
from tests.helpers.refusals import check_refused


def owned_by(run, **changes):
    (run / OWNER_NAME).write_text(with_checksum(this_process() | changes))


def check_can_be_held(run):
    with closing(RunLock(run, 0.0)):
        assert read_owner(run) == this_process()


def test_the_owner_is_named_while_it_holds_the_run_and_gone_afterwards(tmp_path):
    with closing(RunLock(tmp_path, 0.0)):
        assert read_owner(tmp_path)["pid"] == os.getpid()
        with pytest.raises(ConfigurationError, match=rf"process {os.getpid()} on .*wait for it to end"):
            RunLock(tmp_path, timeout_s=0.0)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


@pytest.mark.parametrize("changes", [{"pid": 1}, {"host": "a-container-of-another-name"}, {"boot": "before"}], ids=str)
def test_an_owner_of_this_machine_that_does_not_hold_the_lock_is_gone(tmp_path, changes):
    owned_by(tmp_path, **changes)
    check_can_be_held(tmp_path)


#: a process of another machine
THERE = {"host": "node-17", "boot": "another", "pid": 4711}


@pytest.fixture
def _quick(monkeypatch):
    """Hearts that beat so often that tests can wait for them."""
    monkeypatch.setattr(owners, "BEAT_S", 0.05)
    monkeypatch.setattr(owners, "STALE_S", 0.5)


def test_a_silent_owner_on_another_machine_is_refused_with_a_remedy_that_works(tmp_path):
    owned_by(tmp_path, **THERE, beat_s=None)  # by an older version
    with pytest.raises(ConfigurationError, match=r"process 4711 on node-17.*make sure that it has ended") as caught:
        RunLock(tmp_path, timeout_s=0.0)
    assert str(tmp_path / OWNER_NAME) in str(caught.value)
    assert read_owner(tmp_path)["pid"] == 4711
    forget_owner(tmp_path)
    forget_owner(tmp_path)
    RunLock(tmp_path, timeout_s=0.0).close()


@pytest.mark.usefixtures("_quick")
def test_an_owner_on_another_machine_that_is_alive_is_refused(tmp_path):
    owned_by(tmp_path, **THERE)
    over = threading.Event()

    def beat():
        while not over.wait(0.05):
            os.utime(tmp_path / OWNER_NAME)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(ConfigurationError, match=r"process 4711 on node-17.*wait for it to end"):
            RunLock(tmp_path, timeout_s=0.0)
    finally:
        over.set()
        heart.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_NAME, OWNER_NAME]


@pytest.mark.usefixtures("_quick")
def test_an_owner_on_another_machine_without_a_sign_of_life_is_followed_with_a_sentence(tmp_path, caplog):
    owned_by(tmp_path, **THERE)
    check_can_be_held(tmp_path)
    assert "(process 4711 on node-17) has no heartbeat any more: taking over its run" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


def test_a_note_of_the_first_version_is_read(tmp_path):
    (tmp_path / OWNER_NAME).write_text(json.dumps({**THERE}))
    with pytest.raises(ConfigurationError, match=r"process 4711 on node-17.*make sure that it has ended"):
        RunLock(tmp_path, timeout_s=0.0)


def test_an_old_owner_is_followed_at_once(tmp_path):
    owned_by(tmp_path, **THERE)
    os.utime(tmp_path / OWNER_NAME, (1e9, 1e9))
    check_can_be_held(tmp_path)


@pytest.mark.usefixtures("_quick")
def test_an_owner_shows_that_it_is_alive(tmp_path):
    with closing(RunLock(tmp_path, 0.0)):
        owner = tmp_path / OWNER_NAME
        os.utime(owner, (1e9, 1e9))
        assert seen_within(30, lambda: owner.stat().st_mtime > 1e9)


def test_an_owner_that_slept_and_was_followed_writes_nothing_more(tmp_path, monkeypatch):
    slept_s = [0.0]
    real = owners.now_s
    monkeypatch.setattr(owners, "now_s", lambda: real() + slept_s[0])
    directory = open_run(RunRequest(root=tmp_path, name="r"), "r")
    started = RunStarted(time_s=0.0, unix_s=1.0, n_ranks=1, n_blocks=1, identity={})
    directory.journal.append([started])
    owned_by(tmp_path / "r", **THERE)
    slept_s[0] = 400.0
    before = directory.journal.path.read_bytes()
    for _ in range(2):
        with pytest.raises(OSError, match=r"another coordinator has taken the run over \(process 4711 on node-17\)"):
            directory.journal.append([started])
    assert directory.journal.path.read_bytes() == before
    directory.close()
    assert read_owner(tmp_path / "r")["pid"] == 4711


def test_the_time_that_a_machine_is_suspended_for_counts(monkeypatch):
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 400.0, time.CLOCK_MONOTONIC: 7.0}.__getitem__)
    assert owners.now_s() == 400.0


def test_a_note_that_is_no_regular_file_names_no_owner(tmp_path, irregular):
    irregular(tmp_path / OWNER_NAME)
    check_can_be_held(tmp_path)


def test_a_forked_child_of_the_owner_neither_writes_nor_lets_go(tmp_path):
    with closing(RunLock(tmp_path, 0.0)) as lock:
        if not (child := os.fork()):
            lock.close()
            try:
                lock.check()
            except ConfigurationError as error:
                os._exit(f"forked from process {os.getppid()}" in str(error))
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        lock.check()
        assert read_owner(tmp_path) == this_process()
        check_refused("another process holds", RunLock, tmp_path, 0.0)


def test_a_run_that_was_let_go_of_can_be_held_again(tmp_path):
    RunLock(tmp_path, timeout_s=0.0).close()
    check_can_be_held(tmp_path)


def test_a_run_that_vanished_can_be_let_go_of(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lock = RunLock(run, timeout_s=0.0)
    for path in run.iterdir():
        path.unlink()
    run.rmdir()
    lock.close()
    run.mkdir()
    check_can_be_held(run)
