"""A run on a file system without locks: its note guards it."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from nnlo_opt.core.base.files import with_checksum
from nnlo_opt.core.trials import owner as owners
from nnlo_opt.core.trials.owner import OWNER_NAME, read_owner, this_process
from nnlo_opt.core.trials.run_lock import LOCK_NAME, RunLock, launcher_of, may_be_at_work
from nnlo_opt.engine.data.cache import FileCache
from tests.helpers.no_locks import without_locks
from tests.helpers.refusals import check_refused
from tests.helpers.stories import START, write_journal

ANSWERS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
#: takes a run, says so, and holds it until its standard input ends
HOLD = """
import sys
from pathlib import Path
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.trials.run_lock import RunLock
try:
    lock = RunLock(Path(sys.argv[1]), float(sys.argv[2]))
except ConfigurationError as error:
    print("refused", error, flush=True)
    sys.exit(2)
print("held", flush=True)
sys.stdin.read()
lock.close()
"""


@pytest.fixture(params=ANSWERS, ids=errno.errorcode.get)
def no_locks(request, monkeypatch):
    """The file system of this process has no locks."""

    def flock(file, how):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def start(run, environment, *before, timeout_s=0.0):
    command = [*before, sys.executable, "-c", HOLD, str(run), str(timeout_s)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(tmp_path):
    """Starts processes without locks that take `tmp_path / "run"`; they are ended afterwards."""
    environment = without_locks(tmp_path, errno.ENOLCK)
    (tmp_path / "run").mkdir()
    started = []

    def begin(*before, timeout_s=0.0):
        started.append(start(tmp_path / "run", environment, *before, timeout_s=timeout_s))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def note(run, **changes):
    """What another process has left."""
    (run / LOCK_NAME).touch()
    (run / OWNER_NAME).write_text(with_checksum(this_process() | changes))


def test_a_run_goes_on_with_its_note_as_its_guard_and_a_line_says_so(tmp_path, no_locks, caplog):
    with closing(RunLock(tmp_path, 0.0)) as lock:
        lock.check()
        assert read_owner(tmp_path) == this_process()
        assert may_be_at_work(tmp_path)
        check_refused(f"(process {os.getpid()} on ", RunLock, tmp_path, 0.0)
    assert caplog.text.count("without locks") == 1
    assert "`run.owner` guards the run" in caplog.text
    assert not may_be_at_work(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


@pytest.mark.parametrize("changes", [{"pid": 2**22 + 1}, {"started": "1"}], ids=str)
def test_an_owner_of_this_machine_that_is_gone_or_whose_number_is_anothers_is_followed(tmp_path, no_locks, changes):
    note(tmp_path, **changes)
    assert not may_be_at_work(tmp_path)
    with closing(RunLock(tmp_path, 0.0)):
        assert read_owner(tmp_path) == this_process()
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


@pytest.mark.parametrize("changes", [{"namespace": "pid:[1]"}, {"boot": "x", "host": "y"}, {"boot": "x"}], ids=str)
def test_an_owner_that_cannot_be_seen_is_judged_by_its_beat(tmp_path, no_locks, monkeypatch, changes):
    monkeypatch.setattr(owners, "BEAT_S", 0.05)
    monkeypatch.setattr(owners, "STALE_S", 0.5)
    note(tmp_path, **changes)
    assert may_be_at_work(tmp_path)
    with closing(RunLock(tmp_path, 0.0)):  # after it was silent for long enough
        assert read_owner(tmp_path) == this_process()


def test_a_process_of_another_user_that_proc_hides_is_judged_by_its_beat(tmp_path, no_locks, monkeypatch):
    def kill(pid, number):
        raise PermissionError

    monkeypatch.setattr(owners.os, "kill", kill)
    note(tmp_path, pid=2**22 + 1)
    assert may_be_at_work(tmp_path)
    os.utime(tmp_path / OWNER_NAME, (1e9, 1e9))
    assert not may_be_at_work(tmp_path)


def test_a_killed_owner_is_followed_at_once_and_a_living_one_is_waited_for(tmp_path, holder):
    first = holder()
    assert first.stdout.readline() == "held\n"
    assert holder().stdout.readline().startswith("refused")
    patient = holder(timeout_s=60.0)
    first.send_signal(signal.SIGKILL)
    assert patient.stdout.readline() == "held\n"
    assert read_owner(tmp_path / "run")["pid"] == patient.pid


def test_of_many_starts_at_once_one_holds_the_run_also_after_a_dead_owner(tmp_path, holder):
    for _ in range(2):
        many = [holder() for _ in range(6)]
        with ThreadPoolExecutor(len(many)) as pool:
            answers = [*pool.map(lambda process: process.stdout.readline().split()[0], many)]
        assert sorted(answers) == ["held"] + ["refused"] * 5
        owner = many[answers.index("held")]
        assert read_owner(tmp_path / "run")["pid"] == owner.pid
        owner.kill()
        owner.wait()
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_an_owner_that_came_after_the_last_one_was_seen_dead_is_not_followed(tmp_path, no_locks, monkeypatch):
    """A start that is slow between its look at a dead owner and its claim must not take the run from a faster one."""
    note(tmp_path, started="1")
    parent = os.getppid()
    faster = this_process() | {"pid": parent, "started": owners._started(parent)}
    look = owners.is_alive

    def is_alive(owner):
        alive = look(owner)
        (tmp_path / OWNER_NAME).write_text(with_checksum(faster))
        return alive

    monkeypatch.setattr(owners, "is_alive", is_alive)
    check_refused(f"(process {parent} on ", RunLock, tmp_path, 0.0)
    assert read_owner(tmp_path) == faster
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_NAME, OWNER_NAME]


def test_the_successor_that_died_before_it_was_named_is_followed_as_well(tmp_path, no_locks, monkeypatch):
    note(tmp_path, started="1")
    with monkeypatch.context() as patched:
        patched.setattr(owners, "this_process", lambda: this_process() | {"started": "2"})
        patched.setattr(owners, "atomic_write", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            RunLock(tmp_path, 0.0)
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(".run.owner.")]) == 1
    with closing(RunLock(tmp_path, 0.0)):
        assert read_owner(tmp_path) == this_process()
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


@pytest.mark.skipif(os.geteuid() != 0, reason="unshare needs root")
def test_an_owner_in_another_process_namespace_is_alive_while_its_note_is_touched(tmp_path, holder, no_locks):
    inside = holder("unshare", "-p", "-f", "--mount-proc")
    assert inside.stdout.readline() == "held\n"
    assert read_owner(tmp_path / "run")["pid"] != inside.pid
    assert may_be_at_work(tmp_path / "run")
    os.utime(tmp_path / "run" / OWNER_NAME, (1e9, 1e9))
    assert not may_be_at_work(tmp_path / "run")


def test_a_run_has_one_launcher(tmp_path, no_locks):
    with launcher_of(tmp_path / "run"):
        check_refused("one launcher at a time", launcher_of(tmp_path / "run").__enter__)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", ["clean --yes", "repair"])
def test_the_commands_leave_a_run_at_work_alone(tmp_path, no_locks, capsys, words):
    from nnlo_opt.cli import tool

    run = write_journal(tmp_path, [START])
    leftover = run / ".results.0123456789ab.csv"
    leftover.touch()
    with closing(RunLock(run, 0.0)):
        tool.main([*words.split(), str(run)], "nnlo-opt")
    said = " ".join("".join(capsys.readouterr()).split())
    assert "at work, left alone" in said or "another process holds" in said
    assert leftover.exists()


def test_copies_of_data_are_refused_with_a_remedy(tmp_path, no_locks):
    assert "`$TMPDIR`" in check_refused("disk of the node, whose file system has locks", FileCache, tmp_path)
