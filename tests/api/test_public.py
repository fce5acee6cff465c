"""Everything that `nnlo_opt.__all__` names has a docstring with an example, and the example is true."""

import doctest

import matplotlib.pyplot
import numpy as np
import pytest

import nnlo_opt
from tests.helpers.recorded import events_of
from tests.helpers.stories import write_journal

#: names of the managers, each after those that its example uses
OF_MANAGERS = ("Algo", "Data", "H5Data", "ModelBuilder", "ModelFromJson", "MPIManager", "MPIKFoldManager")

#: names that need torch
OF_TORCH = ("torch_process_group",)


def check_examples(names):
    """Run the examples of these names, one after another in one namespace; each must have one."""
    known = {name: getattr(nnlo_opt, name) for name in nnlo_opt.__all__} | {"nnlo_opt": nnlo_opt, "np": np}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name in names:
        (example,) = doctest.DocTestFinder(recurse=False).find(known[name], name, module=False, globs=known)
        assert example.examples, f"{name} has no example"
        example.globs = known
        runner.run(example, clear_globs=False)
    assert runner.failures == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.needs("torch")] if name in OF_TORCH else [])
        for name in nnlo_opt.__all__
        if name not in OF_MANAGERS
    ],
)
def test_what_is_public_has_an_example_that_is_true(name, here):
    (here / "checkpoints/CP").mkdir(parents=True)
    write_journal(here / "checkpoints/CP", events_of())
    check_examples([name])
    matplotlib.pyplot.close("all")


@pytest.mark.keras
def test_the_managers_have_examples_that_are_true():
    check_examples(OF_MANAGERS)
