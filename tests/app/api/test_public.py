"""The page on Python has all that is public, each with an example that is true."""

import doctest
import importlib
import re

import numpy as np
import pytest

import nnlo_opt
from tests.helpers.launcher import python
from tests.helpers.recorded import events_of
from tests.helpers.stories import write_journal
from tests.test_docs import REPOSITORY

PAGE = (REPOSITORY / "docs/reference/python.md").read_text()
#: all that the page describes
ENTRIES = re.findall(r"^\.\. auto\w+:: (nnlo_opt[\w.]*)", PAGE, re.MULTILINE)
#: names of the managers, each after those that its example uses
OF_MANAGERS = ("Algo", "Data", "H5Data", "ModelBuilder", "ModelFromJson", "MPIManager", "MPIKFoldManager")
#: names that need torch
OF_TORCH = ("nnlo_opt.torch_process_group",)
#: these import a framework: `tests/integrations` and `tests/allreduce` run what their examples show
OF_FRAMEWORKS = ("nnlo_opt.integrations.", "nnlo_opt.allreduce.callbacks")
#: an adapter that examples use, as the page "Extending" has it
LINEAR = (REPOSITORY / "docs/guide/extending.md").read_text().partition("# linear.py\n")[2].partition("```")[0]


def entry(path):
    """A module, a class or a function by its dotted name, and the names that its example may use."""
    place, _, name = path.rpartition(".")
    try:
        module = value = importlib.import_module(path)
    except ModuleNotFoundError:
        module = importlib.import_module(place)
        value = getattr(module, name)
    public = {name: getattr(nnlo_opt, name) for name in nnlo_opt.__all__}
    home = vars(importlib.import_module(getattr(value, "__module__", None) or place))
    return value, home | vars(module) | public | {"nnlo_opt": nnlo_opt, "np": np}


def check_examples(paths):
    """Run the examples of these entries and of their methods, one after another in one namespace."""
    runner, known = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), {}
    for path in paths:
        value, names = entry(path)
        known |= names
        if "Linear(" in value.__doc__:
            exec(LINEAR, known)
        name = path.rpartition(".")[2]
        tests = doctest.DocTestFinder(recurse=isinstance(value, type)).find(value, name, module=False, globs=known)
        assert [test for test in tests if test.name == name and test.examples], f"{path} has no example"
        for test in tests:
            test.globs = known
            runner.run(test, clear_globs=False)
    assert runner.failures == 0


def test_the_page_has_every_public_name():
    assert {f"nnlo_opt.{name}" for name in nnlo_opt.__all__} <= {*ENTRIES}


def test_public_modules_are_found_after_import_of_the_package():
    python(
        "import nnlo_opt; nnlo_opt.space.Real; nnlo_opt.extend.Pruner; nnlo_opt.controller; nnlo_opt.allreduce"
    ).expect(0)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.needs("torch")] if path in OF_TORCH else [])
        for path in ENTRIES
        if not path.endswith(OF_MANAGERS) and not path.startswith(OF_FRAMEWORKS)
    ],
)
def test_what_is_public_has_an_example_that_is_true(path, here):
    (here / "checkpoints/CP").mkdir(parents=True)
    write_journal(here / "checkpoints/CP", events_of())
    check_examples([path])
    import matplotlib.pyplot

    matplotlib.pyplot.close("all")


@pytest.mark.keras
def test_the_managers_have_examples_that_are_true():
    check_examples([f"nnlo_opt.{name}" for name in OF_MANAGERS])
