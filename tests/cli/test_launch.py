from pathlib import Path

import pytest

from nnlo_opt.cli import tool
from nnlo_opt.cli.launch import DriverCommand
from nnlo_opt.errors import EXIT_WRONG_REQUEST, ConfigurationError

DRIVER = ["OptimizationDriver", "--model", "objective.py", "--checkpoint", "L"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "n_before"),
    [
        (["OptimizationDriver"], 0),
        (["/some/bin/OptimizationDriver"], 0),
        (["drivers/OptimizationDriver.py"], 0),
        (["python", "drivers/OptimizationDriver.py"], 1),
        (["python", "-u", "/a/drivers/OptimizationDriver.py"], 2),
    ],
)
def test_a_driver_may_be_named_in_several_ways(words, n_before):
    command = DriverCommand.parse(["--", *words, "--model", "m.py", "--num-iterations", "3"])
    assert command.program == "OptimizationDriver"
    assert command.words[:n_before] == tuple(words[:n_before])
    assert Path(command.words[-1]).name == Path(words[-1]).name
    assert command.arguments == ("--model", "m.py", "--num-iterations", "3")


def test_a_start_has_the_name_that_was_chosen_and_what_the_user_gave_counts_more():
    command = DriverCommand.parse(["OptimizationDriver", "--model", "a/m.py", "--grace", "9"])
    assert command.directory == Path("checkpoints/m-001")
    line = command.line(54.0, again=False)
    assert line[1:] == ["--grace", "54", "--checkpoint", "checkpoints/m-001", "--model", "a/m.py", "--grace", "9"]
    named = DriverCommand.parse(["OptimizationDriver", "--model", "m.py", "--checkpoint", "x/y"])
    assert named.directory == Path("x/y")


@pytest.mark.parametrize("overwrite", ["--overwrite", "--overw"])
def test_a_restart_restores_and_overwrites_nothing(overwrite):
    command = DriverCommand.parse(["OptimizationDriver", "--model", "m.py", "--overlap", overwrite])
    assert overwrite in command.line(1.0, again=False)
    line = command.line(1.0, again=True)
    assert line[-1] == "--opt-restore"
    assert overwrite not in line
    assert "--overlap" in line


def test_a_training_is_restored_by_its_own_option_once():
    command = DriverCommand.parse(["TrainingDriver", "--model", "m.py", "--trial-name", "T"])
    assert command.line(1.0, again=True)[-1] == "--restore"
    command = DriverCommand.parse(["TrainingDriver", "--model", "m.py", "--restore", "T"])
    assert command.directory == Path("checkpoints/T")
    assert command.line(1.0, again=True).count("--restore") == 1


def test_an_existing_run_is_refused_before_anything_starts():
    Path("checkpoints/R").mkdir(parents=True)
    Path("checkpoints/R/journal.jsonl").touch()
    with pytest.raises(ConfigurationError, match="never touched without a word"):
        DriverCommand.parse(["OptimizationDriver", "--model", "m.py", "--checkpoint", "R"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "3"], "Behind `--` must stand OptimizationDriver or TrainingDriver"),
        (["-n", "3", "--", "ls"], "Behind `--` must stand"),
        (["-n", "0", "--", *DRIVER], "`-n` must be a whole number of ranks, at least 1"),
        (["--mpirun", "no-such-mpirun", "--", *DRIVER], "`--mpirun` must name a command that starts ranks"),
        (["-n", "3", "--", *DRIVER, "--num-iterations", "x"], "`--num-iterations` must be"),
    ],
)
def test_wrong_requests_start_nothing(tmp_path, capsys, words, sentence):
    assert tool.main(["launch", *words]) == EXIT_WRONG_REQUEST
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert not list(tmp_path.iterdir())
