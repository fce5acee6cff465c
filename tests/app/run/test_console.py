import errno
import io
import os
import sys
import threading

from nnlo_opt.app.run.start.console import ROOM_S, SAY_S, Console, WaitForSpace
from tests.helpers.manual_clock import ManualClock
from tests.helpers.refusals import refusal


def test_a_log_file_that_is_no_regular_file_is_refused(tmp_path, irregular):
    refusal(Console().keep, irregular(tmp_path / "log"), says=["`--log-file`", "(not a regular file)"])


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_at_once_then_once_a_minute_and_at_once_when_it_is_full_again(tmp_path):
    clock, said = ManualClock(), []
    wait = WaitForSpace(tmp_path, lambda text, stream: said.append((clock.now_s, text)), clock, clock.advance)
    for _ in range(round(2.5 * SAY_S / ROOM_S)):
        wait(FULL)
    assert [at_s for at_s, _ in said] == [0.0, SAY_S, 2 * SAY_S]
    assert f"`{tmp_path}` cannot be written (No space left on device): free some space" in said[0][1]
    clock.advance(20.0)
    wait(FULL)
    assert [at_s for at_s, _ in said[3:]] == [2.5 * SAY_S + 20.0]


def test_an_error_comes_after_the_lines_that_were_printed_before_it(monkeypatch):
    reads, writes = os.pipe()
    errors = io.StringIO()
    with os.fdopen(reads, "rb", buffering=0) as reader, os.fdopen(writes, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        Console().say("a table")
        speaking = threading.Thread(target=Console().say, args=("an error", errors))
        speaking.start()
        speaking.join(0.1)
        assert errors.getvalue() == ""
        assert reader.read(100) == b"a table\n"
        speaking.join()
        assert errors.getvalue() == "an error\n"


def test_what_is_awaited_is_said_until_it_has_come(capsys):
    asked = threading.Semaphore(0)

    def awaited():
        asked.release()
        return "Waiting for 3 of 4 ranks"

    with Console().waiting(awaited, first_s=0.01):
        assert asked.acquire(timeout=30)
        assert asked.acquire(timeout=30)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Waiting for 3 of 4 ranks, 0 s so far."] * 2
    n_threads = threading.active_count()
    with Console(prints=False).waiting(awaited, first_s=0.0):
        assert threading.active_count() == n_threads, "a script's own process gets no thread"
