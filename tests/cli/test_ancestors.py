"""Command lines of NNLO and mpi_learn in their own forms."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.commands.driver_parsers import given_of
from tests.helpers.refusals import check_refused
from tests.helpers.sources import ROOT

FILES = ["mnist_arch.json", "train_mnist.list", "test_mnist.list"]


@pytest.mark.parametrize("program", ["TrainingDriver", "MPIDriver"])
@pytest.mark.parametrize("at", [0, 2, 3])
def test_model_and_lists_may_be_three_words_anywhere_in_the_line(program, at):
    words = ["--epochs", "3", "--easgd", "--masters", "2"]
    options = driver_options(program, [*words[:at], *FILES, *words[at:]])
    assert (options.model, str(options.data.train_data), str(options.data.val_data)) == tuple(FILES)
    assert (options.training.mode, options.n_masters, options.training.epochs) == ("easgd", 2, 3)


@pytest.mark.parametrize("words", [FILES[:1], FILES[:2], [*FILES, "more"], [*FILES[:2], "--unknown"]])
def test_a_wrong_number_of_words_is_refused(words):
    check_refused("Every argument must be an option", driver_options, "TrainingDriver", words)


def test_words_and_an_option_for_the_same_are_refused_and_a_search_takes_no_words():
    check_refused("`--model` must be given once", driver_options, "TrainingDriver", [*FILES, "--model", "mnist"])
    check_refused("Every argument must be an option", driver_options, "OptimizationDriver", FILES)


def test_what_has_no_effect_is_said_in_a_line():
    options = driver_options("MPIDriver", [*FILES, "--tf", "--profile", "--elastic-lr", "1.0"])
    assert options.training.of_rules["elastic_lr"] is None
    assert [remark.split("`")[1] for remark in options.remarks] == ["--tf", "--profile", "--elastic-lr 1.0"]
    assert driver_options("TrainingDriver", [*FILES, "--elastic-lr", "1.0"]).training.of_rules["elastic_lr"] == 1.0


def test_a_search_without_a_model_is_of_mnist_and_says_so():
    options = driver_options("OptimizationDriver", ["--num-iterations", "2"])
    assert options.model == "mnist"
    assert "mnist" in options.remarks[0]
    assert not driver_options("OptimizationDriver", ["--example", "cifar10"]).remarks


def test_the_programs_are_written_by_their_former_names_and_run(here, refused, printed):
    assert "nnlo/MPIDriver.py" in printed("examples", "nnlo", "--legacy")
    assert os.access("nnlo/MPIDriver.py", os.X_OK)
    command = [sys.executable, "MPIDriver.py", "--help"]
    done = subprocess.run(command, cwd="nnlo", capture_output=True, text=True, check=True)
    assert "MPIDriver --model" in done.stdout
    command = [sys.executable, "models/get_topclass.py", "2,1", "--n-samples", "4"]
    subprocess.run(command, cwd="nnlo", check=True)
    assert (here / "nnlo/train_topclass.list").read_text().split() == ["topclass_train_0.h5", "topclass_train_1.h5"]
    assert "No file is overwritten" in refused("examples", "nnlo", "--legacy")
    Path("other").mkdir()
    Path("other/GetData.py").symlink_to("/nowhere/GetData.py")
    assert "`other/GetData.py`, which exists" in refused("examples", "other", "--legacy")


def test_our_examples_are_written_as_they_are_in_the_checkout(here, printed):
    printed("examples", "ours")
    written = {path.relative_to(here / "ours"): path.read_text() for path in (here / "ours").rglob("*.*")}
    assert {Path("examples/example_mlp.py"), Path("search_spaces/mlp.py")} < written.keys()
    assert all((ROOT.parent / path).read_text() == text for path, text in written.items())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("TrainingDriver", [*FILES]),
        ("MPIDriver", [*FILES, "--masters", "1", "--easgd"]),
        ("MPIGDriver", ["gan.json", *FILES[1:], "--latent-size", "20", "--loss", "mse"]),
    ],
)
def test_a_command_line_in_a_journal_is_read_as_it_was_typed(program, words):
    options = driver_options(program, words)
    assert options.program == program
    given, _ = given_of(program, words)
    assert given["model"] == options.model
    assert str(options.data.train_data) == given["train_data"] == FILES[1]
    assert given.keys().isdisjoint({"latent_size", "loss"})
