"""Scripts under way: real processes."""

import os
import signal
import subprocess
import sys

import pytest

from nnlo_opt.objective import script
from nnlo_opt.objective.output import GO_ON, STOP, Output
from nnlo_opt.objective.script import Script
from nnlo_opt.safe_path import SafePath
from tests.helpers.launcher import seen_within
from tests.helpers.processes import MARK, STUBBORN, marked

#: a rank with a script, which dies
RANK = f"""
import os, signal, sys
from pathlib import Path
from nnlo_opt.objective.script import Script
from nnlo_opt.safe_path import SafePath

lines = []
words = [sys.executable, "-c", {STUBBORN!r}]
script = Script(words, os.environ, SafePath.of(Path("log")), lambda *line: lines.append(line))
while not lines:
    script.look(1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Started:
    """A script of Python with its lines."""

    def __init__(self, folder, program, **environ):
        self.number, self.lines, self.connections = os.urandom(8).hex(), [], []
        words = [sys.executable, "-c", program]
        environ = {**os.environ, "PYTHONUNBUFFERED": "1", MARK: self.number, **environ}
        self.script = Script(words, environ, SafePath(folder) / "log", self.take)

    def take(self, line, connection):
        self.lines.append(line)
        if connection is not None:
            with connection:
                connection.sendall(GO_ON if len(self.lines) < 3 else STOP)

    def end(self):
        """Wait for its end, and return its code."""
        assert seen_within(60, lambda: not self.script.look(0.01) and self.script.code is not None)
        self.script.close()
        return self.script.code


@pytest.fixture
def start(tmp_path):
    started = []

    def start(program, **environ):
        started.append(Started(tmp_path, program, **environ))
        return started[-1]

    yield start
    for one in started:
        if one.script.code is None:
            one.script.close()


def test_lines_and_log_have_what_a_script_writes_to_both_streams(start, tmp_path):
    started = start("import sys; print('a\\rb'); print('c', end='', file=sys.stderr); sys.exit(3)")
    assert started.end() == 3
    assert sorted(started.lines) == ["a", "b", "c"]
    assert sorted((tmp_path / "log").read_bytes()) == sorted(b"a\rb\nc")


def test_report_waits_for_its_answer_and_prints_the_line_without_a_search(start):
    program = """
from nnlo_opt import report
epoch = 1
while report(epoch, 0.5, accuracy=1):
    epoch += 1
"""
    started = start(program)
    assert started.end() == 0
    assert started.lines == [f'{{"epoch": {epoch}, "value": 0.5, "accuracy": 1}}' for epoch in (1, 2, 3)]
    printed = subprocess.check_output(
        [sys.executable, "-c", "import nnlo_opt; print(nnlo_opt.report(2, 0.5))"], text=True
    )
    assert printed == '{"epoch": 2, "value": 0.5}\nTrue\n'


def test_a_gigabyte_of_output_leaves_a_log_with_its_beginning_and_its_end(start, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "MOST_LOGGED", 2**20)
    started = start("print('first'); [print('x' * 2**20) for _ in range(64)]; print('y' * 2**22, end='\\nlast')")
    assert started.end() == 0
    assert started.lines[0] == "first"
    assert started.lines[-1] == "last"
    assert max(map(len, started.lines)) < 2**20
    log = (tmp_path / "log").read_text()
    assert log.startswith("first\n")
    assert log.endswith("last")
    assert " bytes in all" in log
    assert len(log) < 2**21


def test_strange_lines_keep_no_script_waiting(start):
    program = """
import sys
for line in ("[" * 30000, '{"value": ' * 30000, "1" * 5000, "x" * 50_000_000):
    print(line, end="\\n" * (len(line) < 10**6))
print('{"value": 1}')
"""
    started = start(program)
    assert started.end() == 0
    output = Output((), (r"(?P<epoch>\d+) (?P<value>x+)", r"value (?P<value>\d+)"))
    for line in started.lines:
        assert output.take(line) is None
    assert output.result is None  # the last line belongs to the one without an end
    assert max(map(len, started.lines)) < 2**20


def test_a_script_that_does_not_want_to_end_leaves_no_process(start):
    started = start(STUBBORN)
    assert seen_within(60, lambda: bool(started.script.look(0.01) and started.lines))
    assert len(marked(started.number)) == 4
    started.script.stop()
    assert len(marked(started.number)) == 4
    started.script.close()
    assert not marked(started.number)
    assert started.script.code == 128 + signal.SIGKILL


def test_a_script_has_sigterm_and_no_signal_is_ignored_or_blocked(start):
    program = """
import signal, sys
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready")
signal.pause()
"""
    started = start(program)
    assert seen_within(60, lambda: bool(started.script.look(0.01) and started.lines))
    started.script.stop()
    assert started.end() == 7


def test_the_death_of_a_rank_ends_its_script(tmp_path):
    number = os.urandom(8).hex()
    done = subprocess.run(
        [sys.executable, "-c", RANK], cwd=tmp_path, env={**os.environ, MARK: number}, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert seen_within(60, lambda: not marked(number))
