"""Scripts under way: real processes."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.engine.objective import script
from nnlo_opt.engine.objective.output import GO_ON, STOP, Output
from nnlo_opt.engine.objective.script import Script
from tests.helpers.launcher import seen_within
from tests.helpers.processes import MARK, STUBBORN, marked

#: a rank with a script, which dies alone, with the supervisor or with the guard
RANK = f"""
import os, psutil, signal, sys
from pathlib import Path
from nnlo_opt.engine.objective.script import Script
from nnlo_opt.core.base.safe_path import SafePath

lines = []
words = [sys.executable, "-c", {STUBBORN!r}]
script = Script(words, os.environ, SafePath.of(Path("log")), lambda *line: lines.append(line))
while not lines:
    script.look(1.0)
guard = psutil.Process().children()[0]
for process in {{"rank": [], "guard": [guard], "supervisor": guard.children()}}[sys.argv[1]]:
    process.kill()
os.kill(os.getpid(), signal.SIGKILL)
"""
#: prints who has heard SIGTERM, and who was not to hear it
LISTENER = """
import os, signal, sys, time
def hear(*_):
    print("heard by", sys.argv[1], flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, hear)
print("ready", flush=True)
while True:
    time.sleep(600)
"""


class Started:
    """A script of Python with its lines."""

    def __init__(self, folder, *program, **environ):
        self.number, self.lines, self.connections = os.urandom(8).hex(), [], []
        words = [*program] if len(program) > 1 else [sys.executable, "-c", *program]
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

    def start(*program, **environ):
        started.append(Started(tmp_path, *program, **environ))
        return started[-1]

    yield start
    for one in started:
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
    assert len(marked(started.number)) == 5  # three of the script, its supervisor, the guard
    started.script.stop()
    assert len(marked(started.number)) == 5
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


@pytest.mark.parametrize("with_it", ["rank", "guard", "supervisor"])
def test_the_death_of_a_rank_ends_its_script_even_if_the_supervisor_or_its_guard_dies_with_it(tmp_path, with_it):
    number = os.urandom(8).hex()
    words = [sys.executable, "-c", RANK, with_it]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, MARK: number}, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert seen_within(60, lambda: not marked(number))


def above(started):
    """The supervisor and the guard of a script, from the script up."""
    guard = psutil.Process(started.script._process.pid)
    return [*guard.children(), guard]


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_supervisor_or_guard_leaves_nothing_of_its_script(start, which):
    started = start(STUBBORN)
    assert seen_within(60, lambda: bool(started.script.look(0.01) and started.lines))
    above(started)[which].kill()
    started.end()
    assert not marked(started.number)
    assert started.script.killed_by == signal.SIGKILL


def test_the_first_process_of_a_script_ends_even_if_supervisor_and_guard_are_killed(start):
    started = start(LISTENER.replace("sys.argv[1]", "'me'"))
    assert seen_within(60, lambda: bool(started.script.look(0.01) and started.lines))
    for process in above(started):
        process.suspend()
    for process in above(started):
        process.kill()
    assert seen_within(60, lambda: not marked(started.number))


def test_a_guard_does_not_go_by_the_name_of_the_supervisor(start):
    started = start(LISTENER.replace("sys.argv[1]", "'me'"))
    assert seen_within(60, lambda: bool(started.script.look(0.01) and started.lines))
    supervisor, guard = above(started)
    assert "supervisor.py" in " ".join(supervisor.cmdline())
    assert "".join(guard.cmdline()) == "guard of a script"


@pytest.mark.parametrize(
    ("words", "heard"),
    [
        (["sh", "-c", "exec env A=b {program}"], ["program"]),
        (["bash", "-c", "{program}; echo after"], ["program", "after"]),
        (["sh", "-c", "true; {program}"], ["program"]),
        (["bash", "-c", "set -e; bash -c 'sh -c \"{program}; true\"; true'; true"], ["program"]),
        (["env", "A=b", "bash", "-c", "cd .; {program} | cat; echo after"], ["program", "after"]),
        (["bash", "-c", "(sleep 600; echo never) & {program}; echo after"], ["program", "after"]),
        (["bash", "-c", "{program} & wait"], ["program"]),
        (["bash", "-c", "trap 'echo left' EXIT; {program}; echo after"], ["program", "after", "left"]),
        (["bash", "-c", "trap 'echo told' TERM; {program}; echo after"], ["program", "told", "after"]),
        (["bash", "-c", "trap 'kill -TERM $!; wait $!; echo told' TERM; {program} & wait"], ["program", "told"]),
        (["bash", "-c", "trap 'echo told; exit 7' TERM; echo ready; while true; do sleep 0.1; done"], ["told"]),
    ],
)
def test_sigterm_is_heard_by_the_first_process_that_is_no_shell_and_by_a_trap(start, tmp_path, words, heard):
    (tmp_path / "listener.py").write_text(LISTENER)
    program = f"{sys.executable} {tmp_path / 'listener.py'} program"
    started = start(*[word.format(program=program) for word in words])
    assert seen_within(60, lambda: bool(started.script.look(0.01) and "ready" in started.lines))
    started.script.stop()
    started.end()
    assert [line.removeprefix("heard by ") for line in started.lines if line not in ("ready", "Terminated")] == heard
    assert started.script.killed_by is None


@pytest.mark.parametrize(
    ("program", "code", "killed_by"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGBUS)", 135, signal.SIGBUS),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, None),
        ("os.kill(os.getpid(), signal.SIGFPE)", 136, None),
        ("os.abort()", 134, None),
        ("os.kill(os.getpid(), signal.SIGUSR1)", 138, None),
        ("sys.exit(137)", 137, None),
        ("sys.exit(143)", 143, None),
        ("pass", 0, None),
    ],
)
def test_a_script_was_killed_if_a_signal_says_nothing_of_its_program(start, program, code, killed_by):
    started = start(f"import os, resource, signal, sys\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n{program}")
    assert started.end() == code
    assert started.script.killed_by == killed_by


def test_a_program_that_is_missing_was_not_killed(start):
    started = start("nonsuch", "-c")
    assert started.end() == 127
    assert started.lines == ["`nonsuch` cannot be started: No such file or directory"]
    assert started.script.killed_by is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT, signal.SIGSEGV])
def test_a_script_is_lost_with_its_supervisor_whatever_kills_that(start, number):
    if number == signal.SIGQUIT:
        signal.signal(number, signal.SIG_DFL)  # a shell has tests that it runs in the background ignore it
    started = start(STUBBORN)
    assert seen_within(60, lambda: bool(started.script.look(0.01) and started.lines))
    above(started)[0].send_signal(number)
    started.end()
    assert started.script.killed_by == number


def test_a_script_that_its_rank_kills_was_not_killed_by_another(start):
    started = start(STUBBORN)
    started.script.close()
    assert started.script.killed_by is None
