import hashlib
import sys
from pathlib import Path

import pytest

from nnlo_opt.engine.models.user_figure import load_figure
from tests.helpers.refusals import check_refused

MODULE = '''"""Figures."""

NUMBER = 3


def good(fold):
    return fold["n_weights"]


def with_a_default(fold, power=2):
    return power


def two(fold, other):
    return 0.0


def none():
    return 0.0
'''


@pytest.fixture
def place(here, monkeypatch):
    (here / "my_figures_of_test.py").write_text(MODULE)
    (here / "broken_figures_of_test.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return here


def load(spec, functions=None, model="model.py"):
    return load_figure(spec, functions or {}, Path(model))


@pytest.mark.parametrize("source", ["my_figures_of_test.py", "my_figures_of_test", "./my_figures_of_test.py"])
@pytest.mark.parametrize("name", ["good", "with_a_default"])
def test_a_function_of_a_file_or_module_is_loaded_with_its_fingerprint(place, source, name):
    figure = load(f"{source}:{name}")
    assert figure.name == name
    assert figure.function({"n_weights": 7}) == (7 if name == "good" else 2)
    assert figure.sha256 == hashlib.sha256(MODULE.encode()).hexdigest()


@pytest.mark.parametrize("spec", ["mine", "model.py:mine"])
def test_a_function_of_the_model_module_is_taken_without_executing_it_again(place, spec):
    (place / "model.py").write_text("raise RuntimeError('executed')")

    def mine(fold):
        return 1.0

    assert load(spec, {"mine": mine}).function is mine


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("my_figures_of_test.py:nope", "nothing with this name"),
        ("my_figures_of_test.py:NUMBER", "int with this name"),
        ("my_figures_of_test.py:two", "takes (fold, other)"),
        ("my_figures_of_test.py:none", "takes ()"),
        ("nope.py:f", "no file"),
        ("nope_of_test:f", "cannot be found"),
        ("broken_figures_of_test.py:f", "nowhere_to_be_found"),
        ("broken_figures_of_test:f", "nowhere_to_be_found"),
        ("my_figures_of_test.py:", "file.py:function"),
        ("nope", "nothing with this name"),
        ("", "file.py:function"),
    ],
)
def test_a_wrong_one_is_named_in_one_sentence(place, spec, words):
    (place / "model.py").write_text("")
    check_refused(words, load, spec)
