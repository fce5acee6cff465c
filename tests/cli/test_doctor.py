"""`nnlo-opt doctor`: order, output, exit codes."""

import json

import pytest

from nnlo_opt.cli import tool
from nnlo_opt.tools.doctor import command as doctor
from nnlo_opt.tools.doctor.examination import FRAMEWORKS, Examination
from nnlo_opt.tools.doctor.judgement import broken, works

METHODS = ("mpi", "ranks", "deaths", "cores", "threads", "disk", "framework", "gpus", "leftovers")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Every check finds all fine."""
    for name in METHODS:
        monkeypatch.setattr(Examination, name, lambda *_: iter([works("It is so.")]))


def test_the_gravest_finding_is_the_exit_code(capsys, monkeypatch, tmp_path, printed):
    command = ["doctor", str(tmp_path / "no" / "run")]
    monkeypatch.setattr(Examination, "cores", lambda _: iter([works("One core.", "Take two.")]))
    lines = printed(*command).splitlines()
    assert lines[3] == "remark: cores: One core. Take two."
    assert [line.split(": ")[1] for line in lines] == [
        "MPI", "ranks", "deaths", "cores", "threads", "folder", *FRAMEWORKS, "GPUs", "leftovers"
    ]  # fmt: skip
    monkeypatch.setattr(Examination, "gpus", lambda _: iter([broken("No card.", "Buy one.")]))
    monkeypatch.setattr(Examination, "disk", lambda _: 1 / 0)
    assert tool.main([*command, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["n_broken"] == 2
    assert {"check": "GPUs", "state": "broken", "text": "No card.", "remedy": "Buy one."} in said["findings"]
    assert "The check itself has failed: ZeroDivisionError" in str(said["findings"])


def test_the_folder_is_the_one_in_which_the_run_directory_would_be_made(monkeypatch, here, printed):
    monkeypatch.setattr(Examination, "disk", lambda of: iter([works(str(of.folder))]))
    assert f"fine: folder: {here}\n" in printed("doctor")
    (here / "checkpoints").mkdir()
    assert "fine: folder: checkpoints\n" in printed("doctor")


@pytest.mark.parametrize("words", [["--mpirun", ""], ["--timeout", "0"], ["-n", "0"], [__file__], []])
def test_a_wrong_request_is_one_sentence(words, monkeypatch, refused):
    if not words:
        monkeypatch.setenv("PMIX_RANK", "3")
    assert "Received: " in refused("doctor", *words)


def test_on_a_terminal_a_finding_has_a_symbol_and_a_colour(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    doctor._print("cores", broken("Six ranks share one core.", "Take another machine with seven cores."))
    text = capsys.readouterr().out
    assert "✘" in text
    assert "\x1b[31m" in text
    assert max(len(line) for line in text.splitlines()) < 80
