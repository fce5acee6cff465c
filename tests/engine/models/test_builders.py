import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.engine.models.builders import builtin_names, names_objective, open_model
from nnlo_opt.models.data_files import find_list
from tests.helpers.launcher import python
from tests.helpers.refusals import check_refused

EXAMPLES = Path(__file__).parents[3] / "examples"
#: models of Keras for digits, with a search space, by name
SEARCHED = {"mnist": "mnist", "cifar10": "cifar10"} | {
    name: str(EXAMPLES / f"{name}.py") for name in ("example_mnist", "example_mlp")
}


@pytest.fixture(autouse=True)
def path_as_before(monkeypatch):
    """A user's folder stays in `sys.path` for good: one with a `keras.py` must not be there for the next test."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())


@pytest.fixture
def module(tmp_path):
    """Writes a model module and returns its path."""

    def write(source, name="user_model.py"):
        path = tmp_path / name
        path.write_text(source)
        return str(path)

    return write


def of_another_group(file):
    os.chown(file, -1, 65534)
    file.chmod(0o664)


def linked(file):
    other = file.parent / "other.py"
    file.rename(other)
    os.chown(other, 65534, -1)
    file.symlink_to(other)


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("net.py", lambda file: None, ""),
        ("net.py", lambda file: file.chmod(0o664), ""),
        ("net.py", lambda file: file.chmod(0o646), "and must be your own file, which nobody else can write to"),
        ("net.py", lambda file: file.write_text(file.read_text() + "#"), "which has changed since"),
        ("package/__init__.py", lambda file: file.chmod(0o666), "/__init__.py` is -rw-rw-rw- of user"),
        ("package/part.py", lambda file: file.chmod(0o666), "net.py, line 2: Code that only a run names is executed"),
        pytest.param("net.py", lambda file: os.chown(file, 65534, -1), "of user 65534", marks=AS_ROOT),
        pytest.param("net.py", of_another_group, "is -rw-rw-r-- of user 0", marks=AS_ROOT),
        pytest.param("net.py", linked, "other.py` is -rw-r--r-- of user 65534", marks=AS_ROOT),
        pytest.param("package/part.py", lambda file: os.chown(file, 65534, -1), "of user 65534", marks=AS_ROOT),
    ],
)
def test_code_that_only_a_run_names_is_executed_if_it_is_this_user_s_alone(tmp_path, file, change, words):
    ran, package = tmp_path / "ran", f"package_{tmp_path.name}"
    (tmp_path / package / "inner").mkdir(parents=True)  # a folder without `__init__.py`
    (tmp_path / package / "inner/code.py").touch()
    (tmp_path / package / "__init__.py").write_text(f"import {package}.inner.code")
    (tmp_path / package / "part.py").write_text(f"import os\nos.mkdir({str(ran)!r})")
    net = tmp_path / "net.py"
    net.write_text(f"import json\nimport {package}.part\ndef get_model(): ...\n")
    sha256 = hashlib.sha256(net.read_bytes()).hexdigest()
    change(tmp_path / file.replace("package", package))
    if words:
        assert "--model " in check_refused(words, open_model, str(net), sha256)
        assert not ran.exists()
        open_model(str(net))  # the user names it
    else:
        assert open_model(str(net), sha256).sha256 == sha256
    assert ran.exists()


def test_a_whole_module(module):
    definition = open_model(
        module("""
def get_name(): return "tiny"
def get_model(width, depth=2, *, rate=0.1): pass
get_model.parameter_range = ["a", "b"]
def get_train(): return ["a.h5", "b.h5"]
def get_val(): return "val.list"
def get_features(): return "x"
def get_labels(): return ("y", abs)
def get_loss(): return "mse"
def get_loss_weights(): return {"a": 1, "b": 0.5}
custom_objects = {"sine": abs}
get_model.jit_compile = True
""")
    )
    assert (definition.name, definition.kind) == ("tiny", "model")
    assert definition.parameter_range == ["a", "b"]
    assert definition.accepted_parameters == {"width", "depth", "rate"}
    assert definition.required_parameters == {"width"}
    assert definition.samples("get_train", {}) == (Path("a.h5"), Path("b.h5"))
    assert definition.samples("get_val", {}) == Path("val.list")
    assert definition.dataset("get_features") == ("x", None)
    assert definition.dataset("get_labels") == ("y", abs)
    assert definition.loss() == "mse"
    assert definition.loss_weights() == {"a": 1, "b": 0.5}
    assert definition.custom_objects == {"sine": abs}
    assert definition.jit_compile
    assert len(definition.sha256) == 64


def test_parameters_of_a_search_reach_the_functions_that_take_them(module):
    definition = open_model(
        module("""
def get_model(width): return width
get_model.framework = __import__("types").SimpleNamespace(is_model=lambda model: True)
def get_train(n=3, **others): return n, others
def get_val(lag): return lag
""")
    )
    assert definition.accepted_parameters == {"width", "n", "lag"}
    assert definition.required_parameters == {"width"}
    point = {"width": 4, "n": 5, "lag": 6}
    assert definition.arguments_of("get_train", point) == point
    assert definition.arguments_of("get_val", point) == {"lag": 6}
    assert definition.samples("get_train", {"n": 5, "lag": 6}) == (5, {"lag": 6})


def test_a_bare_module(module):
    definition = open_model(module("def get_model(**parameters): pass"))
    assert definition.name == "user_model"
    assert definition.parameter_range is None
    assert definition.accepted_parameters is None
    assert definition.required_parameters == frozenset()
    assert [definition.dataset(name) for name in ("get_features", "get_labels")] == [None] * 2
    assert definition.loss() is definition.loss_weights() is None
    assert not definition.jit_compile
    definition.check_parameters(["anything"])


def test_an_objective(module):
    definition = open_model(
        module("parameter_range = [1]\ndef objective(parameters, comm, report): return parameters['x']")
    )
    assert definition.kind == "objective"
    assert definition.parameter_range == [1]
    assert definition.accepted_parameters is None
    assert definition.objective({"x": 3}, None, None) == 3
    definition.check_parameters(["x"])


def test_parameters_are_checked_by_name(module):
    definition = open_model(module("def get_model(width, depth=2): pass"))
    definition.check_parameters(["width"])
    check_refused("Received: 'heigth'. It accepts: depth, width", definition.check_parameters, ["width", "heigth"])
    check_refused("none for 'width'", definition.check_parameters, ["depth"])


def test_neighbours_can_be_imported_late(module):
    module("VALUE = 5", name="neighbour_of_model.py")
    source = """
def get_name():
    import neighbour_of_model
    return neighbour_of_model.VALUE
def get_model(): pass
"""
    assert open_model(module(source)).name == "5"


def test_modules_of_one_name_stay_apart(tmp_path):
    paths = [tmp_path / folder / "keras.py" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(f"def get_name(): return '{path.parent.name}'\ndef get_model(): pass")
    assert [open_model(str(path)).name for path in paths] == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("x = 1", "with neither. Add one"),
        ("def get_model(): pass\ndef objective(): pass", "with both. Remove one"),
        ("def get_model(:", r"user_model.py, line 1, SyntaxError"),
        ("\n\nimport no_such_module_anywhere", r"line 3, ModuleNotFoundError: No module named 'no_such"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def get_model(): pass\ndef get_name(): raise KeyError('k')", "`get_name` of .* KeyError: 'k'"),
    ],
)
def test_a_module_that_cannot_be_used(module, source, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        open_model(module(source))


@pytest.mark.parametrize(
    ("function", "value", "sentence"),
    [
        ("get_features", "('x', 'y')", r"\(name, function\)"),
        ("get_labels", "[1]", r"Received: \[1\]"),
        ("get_loss", "1.0", "name or a function"),
        ("get_loss", "['mse', None]", "name or a function"),
        ("get_loss_weights", "1.0", "list or dict of numbers"),
        ("get_loss_weights", "['a']", "list or dict of numbers"),
    ],
)
def test_what_functions_must_return(module, function, value, sentence):
    definition = open_model(module(f"def get_model(): pass\ndef {function}(): return {value}"))
    with pytest.raises(ConfigurationError, match=sentence):
        getattr(definition, function.removeprefix("get_"))() if "loss" in function else definition.dataset(function)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("minst", r"Received: 'minst'\. .* Did you mean `mnist`\?"),
        (
            "it.onnx",
            "one of: cifar10, example, gan, hls4mlgru, jedi_torch, mnist, mnist_torch, topclass, topclass_torch",
        ),
        ("model.torch", "'model.torch', which is no file"),
        ("missing.py", "'missing.py', which is no file"),
        (".json", "Python file, a model saved by Keras or torch"),
    ],
)
def test_specs_that_name_nothing(spec, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        open_model(spec)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("[1]", "without a model's class"),
        ('{"class_name": "Model", "config": {}, "keras_version": "2.2.4"}', "must be made of layers that Keras 3 has"),
    ],
)
def test_architectures_that_cannot_be_read(module, text, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        open_model(module(text, name="old_arch.json"))


@pytest.mark.parametrize("name", SEARCHED)
def test_models_describe_themselves(name):
    definition = open_model(SEARCHED[name])
    assert definition.name == name
    assert {parameter.name for parameter in definition.parameter_range} == definition.accepted_parameters
    assert definition.required_parameters == frozenset()
    assert definition.dataset("get_features") == ("features", None)


@pytest.mark.parametrize("name", sorted({*builtin_names()} - {"example", "gan"}))
def test_builtin_models_take_what_is_searched(name):
    definition = open_model(name)
    assert definition.name == name
    assert {parameter.name for parameter in definition.parameter_range} <= definition.accepted_parameters
    assert definition.required_parameters == frozenset()


def test_missing_data_names_the_command(here, monkeypatch):
    monkeypatch.setattr("nnlo_opt.models.data_files._CHECKOUT", [here])
    check_refused("Run `GetData mnist` first", open_model("mnist").samples, "get_train", {})
    (here / "data/mnist").mkdir(parents=True)
    (here / "data/mnist/train_mnist.list").touch()
    assert open_model("mnist").samples("get_train", {}) == here / "data/mnist/train_mnist.list"


def test_no_framework_is_imported_to_read_a_module():
    code = """
import sys
from nnlo_opt.engine.models.builders import open_model
for spec in sys.argv[1:]:
    assert open_model(spec).parameter_range or spec == "example"
print(sorted({"keras", "tensorflow", "torch", "skopt", "mpi4py"} & sys.modules.keys()))
"""
    texts = {str(path): path.read_text() for path in EXAMPLES.glob("example_*.py")}
    searched = [path for path, text in texts.items() if "parameter_range" in text and "\nimport torch\n" not in text]
    specs = [*builtin_names(), *searched]
    done = python(code, *specs)
    assert (done.out, done.err) == ("[]\n", "")


def test_the_objective_example_learns():
    class OneRank:
        rank, size = 0, 1

        def Allreduce(self, source, target):
            np.copyto(target, source)

    reported = []

    def report(epoch, value):
        reported.append((epoch, value))
        return epoch < 5

    objective = open_model(str(EXAMPLES / "example_objective.py")).objective
    error = objective({"n_features": 50, "width": 0.5, "step_size": 0.8}, OneRank(), report)
    assert [epoch for epoch, _ in reported] == [1, 2, 3, 4, 5]
    assert error == reported[-1][1] < reported[0][1]


@pytest.mark.keras
class TestBuild:
    @pytest.mark.parametrize("spec", SEARCHED.values(), ids=SEARCHED)
    def test_corners_of_the_search_space(self, spec):
        definition = open_model(spec)
        for corner in (lambda values: values[0], lambda values: values[-1]):
            point = {
                p.name: corner(p.categories if hasattr(p, "categories") else (p.low, p.high))
                for p in definition.parameter_range
            }
            assert definition.build(point).output_shape == (None, 10)

    @pytest.mark.parametrize(("name", "n_classes"), [("example", 10), ("topclass", 3), ("hls4mlgru", 5)])
    def test_models_of_ancestors(self, name, n_classes):
        assert open_model(name).build({}).output_shape == (None, n_classes)

    @pytest.mark.needs("torch")
    @pytest.mark.parametrize("name", ["mnist_torch", "topclass_torch", "jedi_torch"])
    def test_torch_models_of_ancestors(self, name):
        assert list(open_model(name).build({}).parameters())

    def test_an_architecture(self, module):
        text = open_model("mnist").build({"nb_filters": 8, "dense": 10}).to_json()
        definition = open_model(module(text, name="mnist_arch.json"))
        assert definition.name == "mnist"
        assert definition.accepted_parameters == frozenset()
        assert definition.build({}).output_shape == (None, 10)

    def test_a_failing_get_model_is_the_trials_fault(self, module):
        definition = open_model(module("def get_model(width):\n    return 1 / width"))
        with pytest.raises(TrialError, match=r"failed at \{'width': 0\}, line 2, ZeroDivisionError") as caught:
            definition.build({"width": 0})
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(TrialError, match=r"must return a Keras model\. Received: float"):
            definition.build({"width": 2})

    def test_custom_objects_are_known_and_a_policy_holds_while_it_builds(self, module):
        import keras

        text = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation=keras.ops.sin)]).to_json()
        module(text.replace('"sin"', '"wave"'), name="wave_arch.json")
        source = """
import pathlib
def wave(x): return x
ARCHITECTURE = pathlib.Path(__file__).with_name("wave_arch.json").read_text()
def get_model():
    import keras
    return keras.models.model_from_json(ARCHITECTURE)
get_model.dtype_policy = "mixed_bfloat16"
"""
        for way in ("custom_objects = {'wave': wave}", "def get_custom_objects(): return {'wave': wave}"):
            model = open_model(module(source + way)).build({})
            assert model.layers[0].activation.__name__ == "wave"
        assert keras.config.dtype_policy().name == "float32"
        with pytest.raises(ConfigurationError, match="dict of objects by name"):
            open_model(module(source + "def get_custom_objects(): return 3")).build({})
        with pytest.raises(TrialError, match="wave"):
            open_model(module(source)).build({})


def test_a_space_may_be_given_whole(module):
    text = "from nnlo_opt.space import Real, Space\ndef get_model(x): ...\n"
    definition = open_model(module(text + "get_model.parameter_range = Space([Real(0, 1, name='x')])\n"))
    assert definition.parameter_range.names == ("x",)


def test_a_model_file_copied_from_an_earlier_example_still_imports(tmp_path):
    path = tmp_path / "copied.py"
    path.write_text("from nnlo_opt.models.data_files import find_list\n\n\ndef get_model():\n    return find_list\n")
    assert open_model(str(path)).kind == "model"


@pytest.mark.parametrize("ending", [".py", ".json", ".pt"])
def test_a_model_file_is_a_regular_file_with_a_name_that_a_file_can_have(tmp_path, ending, irregular):
    for path in (irregular(tmp_path / f"model{ending}"), tmp_path / ("m" * 300 + ending)):
        assert not names_objective(str(path))
        check_refused("which is no file", open_model, str(path))


@pytest.mark.parametrize("text", ["-" * 9000 + "1", "1" + "+1" * 9000], ids=["-", "+"])
def test_python_that_is_nested_beyond_all_use_is_refused_when_it_is_executed(module, text):
    path = module(f"value = {text}\n")
    assert not names_objective(path)
    check_refused("must import without an error", open_model, path)


def test_a_list_in_the_working_directory_is_found_by_its_names(here):
    for name in ("train_3d.list", "train_showers.list", "data/showers/train_showers.list"):
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert find_list("data/showers/train_showers.list", "GetData showers", "train_3d.list") == path
    check_refused("Run `GetData nothing` first", find_list, "data/nothing.list", "GetData nothing")
