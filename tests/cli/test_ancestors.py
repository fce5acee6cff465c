"""Command lines of NNLO and mpi_learn in their own forms."""

import pytest

from nnlo_opt.cli.arguments import parse_optimization, parse_training
from nnlo_opt.errors import ConfigurationError

FILES = ["mnist_arch.json", "train_mnist.list", "test_mnist.list"]


@pytest.mark.parametrize("program", ["TrainingDriver", "MPIDriver"])
@pytest.mark.parametrize("at", [0, 2, 3])
def test_model_and_lists_may_be_three_words_anywhere_in_the_line(program, at):
    words = ["--epochs", "3", "--easgd", "--masters", "2"]
    options = parse_training([*words[:at], *FILES, *words[at:]], program)
    assert (options.model, str(options.data.train_data), str(options.data.val_data)) == tuple(FILES)
    assert (options.training.mode, options.n_masters, options.training.epochs) == ("easgd", 2, 3)


@pytest.mark.parametrize("words", [FILES[:1], FILES[:2], [*FILES, "more"], [*FILES[:2], "--unknown"]])
def test_other_numbers_of_words_are_refused(words):
    with pytest.raises(ConfigurationError, match="Every argument must be an option"):
        parse_training(words)


def test_words_and_an_option_for_the_same_are_refused_and_a_search_takes_no_words():
    with pytest.raises(ConfigurationError, match="`--model` must be given once"):
        parse_training([*FILES, "--model", "mnist"])
    with pytest.raises(ConfigurationError, match="Every argument must be an option"):
        parse_optimization(FILES)


def test_what_has_no_effect_is_said_in_a_line():
    options = parse_training([*FILES, "--tf", "--profile", "--elastic-lr", "1.0"], "MPIDriver")
    assert options.training.elastic_lr is None
    assert [remark.split("`")[1] for remark in options.remarks] == ["--tf", "--profile", "--elastic-lr 1.0"]
    assert parse_training([*FILES, "--elastic-lr", "1.0"]).training.elastic_lr == 1.0


def test_a_search_without_a_model_is_of_mnist_and_says_so():
    options = parse_optimization(["--num-iterations", "2"])
    assert options.model == "mnist"
    assert "mnist" in options.remarks[0]
    assert not parse_optimization(["--example", "cifar10"]).remarks
