"""Options in messages: as flags on the command line, as arguments in Python."""

import threading

import pytest

from nnlo_opt.core.base.spelling import either, python_spelling, spelled
from nnlo_opt.core.space.fixing import fixing

#: an option with its value -> as a flag, as an argument
SPELLINGS = [
    (("num_iterations",), ("--num-iterations", "num_iterations")),
    (("opt_restore", True), ("--opt-restore", "opt_restore=True")),
    (("overlap", False), ("--no-overlap", "overlap=False")),
    (("max_failures", 0), ("--max-failures 0", "max_failures=0")),
    (("elastic_lr", 0.5), ("--elastic-lr 0.5", "elastic_lr=0.5")),
    (("hyper_opt", "grid"), ("--hyper-opt grid", 'hyper_opt="grid"')),
    (
        ("optimizer_params", {"momentum": 0.9}),
        ("--optimizer-params {'momentum': 0.9}", "optimizer_params={'momentum': 0.9}"),
    ),
]


@pytest.mark.parametrize(("option", "said"), SPELLINGS)
def test_an_option_is_spelled_for_the_door_through_which_its_reader_came(option, said):
    flag, argument = said
    assert spelled(*option) == flag
    with python_spelling():
        assert spelled(*option) == argument
    assert spelled(*option) == flag


def test_a_fixed_parameter_is_a_text_on_the_command_line_and_a_dictionary_in_python():
    assert (fixing("dropout", "0.5"), fixing("dropout")) == ("--fix dropout=0.5", "--fix dropout=")
    with python_spelling():
        assert (fixing("dropout", "0.5"), fixing("dropout")) == ('fix={"dropout": 0.5}', 'fix={"dropout": ...}')


def test_a_call_from_python_within_another_leaves_its_spelling():
    with python_spelling():
        with python_spelling():
            pass
        assert either("-x", "x") == "x"


def test_a_thread_of_a_call_speaks_as_the_call_does_and_another_call_does_not_end_it():
    said, begun, go_on = [], threading.Event(), threading.Event()

    @python_spelling()
    def search():
        begun.set()
        assert go_on.wait(10)
        said.append(spelled("batch"))

    with python_spelling():
        thread = threading.Thread(target=search)
        thread.start()
        assert begun.wait(10)
    go_on.set()
    thread.join()
    assert said == ["batch"]
    assert spelled("batch") == "--batch"


def test_an_error_takes_the_spelling_back():
    with pytest.raises(KeyError), python_spelling():
        raise KeyError
    assert spelled("batch") == "--batch"
