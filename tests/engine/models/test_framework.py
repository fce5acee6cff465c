import inspect
from pathlib import Path

import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.builders import builtin_names, model_file
from nnlo_opt.engine.models.framework import (
    FRAMEWORKS,
    Framework,
    framework_for,
    framework_named,
    framework_of,
    imported_in,
)
from tests.helpers.launcher import python
from tests.helpers.linear_model import LinearAdapter


def name_of(framework):
    return next(name for name in FRAMEWORKS if framework_named(name) is framework)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_have_the_functions_of_the_protocol(name):
    framework = framework_named(name)
    for attribute, expected in vars(Framework).items():
        if attribute.startswith("_"):
            continue
        assert hasattr(framework, attribute)
        if inspect.isfunction(expected):
            ours = list(inspect.signature(expected).parameters.values())[1:]
            theirs = list(inspect.signature(getattr(framework, attribute)).parameters.values())
            assert [(p.name, p.kind, p.default) for p in theirs] == [(p.name, p.kind, p.default) for p in ours]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch", "torch"),
        ("def get_model():\n    from torch import nn", "torch"),
        ("import torch.nn as nn, numpy", "torch"),
        ("import torch\ndef get_model():\n    import keras", "keras"),
        ("from tensorflow import keras\nimport torch", "keras"),
        ("import torchvision", "keras"),
        ("# import torch", "keras"),
        ("from . import torch", "keras"),
        ("import torch\ndef (", "keras"),
    ],
)
def test_the_text_of_a_module_tells_its_framework(tmp_path, text, expected):
    path = tmp_path / "model.py"
    path.write_text(text)
    assert name_of(framework_for(path)) == expected


def test_code_that_imports_no_framework_does_not_tell():
    assert imported_in("import numpy\nfrom . import torch") is None
    assert imported_in("class Net:\n    def build_model(self):\n        import torch") == "torch"


def test_files_that_are_no_modules_and_what_is_asked_for():
    assert name_of(framework_for(Path("a_arch.json"))) == "keras"
    assert name_of(framework_for(Path("weights.pt"))) == "torch"
    assert name_of(framework_for(Path("missing.py"))) == "keras"
    assert name_of(framework_for(Path("a_arch.json"), "torch")) == "torch"
    assert {name_of(framework_for(model_file(name))) for name in builtin_names()} <= {*FRAMEWORKS}
    with pytest.raises(ConfigurationError, match=r"`--backend` must be one of keras, torch\. Received: 'mxnet'"):
        framework_for(Path("model.py"), "mxnet")


def test_what_is_no_model_is_of_no_framework():
    assert framework_of(LinearAdapter(2)) is None


@pytest.mark.keras
@pytest.mark.proof
@pytest.mark.needs("torch")
def test_models_tell_their_framework():
    code = """
from nnlo_opt.engine.models.framework import framework_named, framework_of
keras_model, torch_module = framework_named("keras"), framework_named("torch")
import sys
assert framework_of(object()) is None and not {"keras", "torch"} & sys.modules.keys()
keras_model.import_framework(1, backend="torch")
import keras, torch
print(framework_of(keras.Sequential()) is keras_model, framework_of(torch.nn.Linear(1, 1)) is torch_module)
"""
    done = python(code)
    assert (done.out, done.err) == ("True True\n", "")
