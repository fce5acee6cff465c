import fcntl
import os
import struct
import termios

import pytest

from nnlo_opt.app.reporting.terminal import CLEAR, WIDE, BottomLine, fitted, line_width, styled, terminal_width
from nnlo_opt.app.run.start.console import Console


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 93 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    other, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 93, 0, 0))
    with os.fdopen(end, "w") as stream, os.fdopen(other, "rb", buffering=0):
        yield stream


def test_a_table_is_as_wide_as_the_terminal_or_as_columns_says_and_wide_in_a_pipe(terminal, tmp_path, monkeypatch):
    with (tmp_path / "file").open("w") as file:
        assert (line_width(terminal), line_width(file)) == (93, WIDE)
        assert terminal_width(file) is None
        monkeypatch.setenv("COLUMNS", "80")
        assert line_width(terminal) == line_width(file) == 80


def test_a_line_is_coloured_on_a_terminal_alone_and_never_in_the_log_file(terminal, tmp_path, monkeypatch, capsys):
    assert styled("done", "good", terminal) == "\x1b[32mdone\x1b[0m"
    assert styled("done", "", terminal) == "done"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("done", "good", terminal) == "done"
    console = Console()
    console.keep(tmp_path / "log")
    console.say("done\x1b[2J", style="good")
    console.close()
    assert capsys.readouterr().out == (tmp_path / "log").read_text() == "done\\u001b[2J\n"


def test_a_sentence_is_cut_between_words_on_a_terminal_alone_and_a_command_never(terminal, tmp_path):
    sentence, command = "a number 0.123456 " * 9 + "ends", "    mpirun " + "--option value " * 9
    first, *more = fitted(f"{sentence}\n{command}", terminal).splitlines()
    assert len(first) <= 93
    assert more[-1] == command
    assert " ".join([first, *(line.strip() for line in more[:-1])]) == sentence
    with (tmp_path / "file").open("w") as file:
        assert fitted(sentence, file) == sentence


def test_the_terminal_of_a_rank_is_that_of_mpirun(terminal, monkeypatch):
    # Open MPI gives each rank a terminal of its own, which nobody sees; here mpirun is the process that runs pytest.
    monkeypatch.setenv("PMIX_RANK", "0")
    assert terminal_width(terminal) is None
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert terminal_width(terminal) == 93


def test_the_bottom_line_makes_way_for_lines_and_comes_back_and_leaves_nothing():
    other, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 40, 0, 0))
    shown = ""

    def until(words):
        nonlocal shown
        while words not in shown:
            shown += os.read(other, 1000).decode()
        shown = shown.partition(words)[2]

    bottom = BottomLine(os.dup(end), lambda n: f"half of {n}")
    until(f"{CLEAR}half of 39")
    os.write(end, (bottom.above("one\ntwo") + "\n").encode())
    until(f"{CLEAR}one\r\n{CLEAR}two\r\n")
    until(f"{CLEAR}half of 39")
    bottom.close()
    os.write(end, b"|")
    until(f"{CLEAR}|")
    os.close(end)
    os.close(other)


def test_a_console_has_a_line_at_the_bottom_on_a_terminal_alone(capsys):
    console = Console()
    console.show_bottom(lambda n: "never shown")
    console.say("line")
    console.close()
    assert capsys.readouterr().out == "line\n"
