import json
import os
import pickle
import sys

import pytest

from nnlo_opt.core.base.user_code import line_in, place_of
from nnlo_opt.engine.loading.modules import execute_file, load_module, name_of
from tests.helpers.launcher import python
from tests.helpers.refusals import check_refused


def test_a_file_that_is_edited_within_a_second_to_the_same_length_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "model.py"
    for value in (1, 2):
        path.write_text(f"value = {value}\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert execute_file(path).value == value
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.py"], "nothing is written beside it"


def test_the_name_of_a_module_need_not_be_utf_8(tmp_path):
    path = tmp_path / os.fsdecode(b"model-\xff.py")
    path.write_text("value = 3")
    assert execute_file(path).value == 3


def test_a_file_of_another_kind_is_no_module(tmp_path):
    check_refused("must be a Python file", execute_file, tmp_path / "model.txt")


def test_a_module_is_a_regular_file_with_a_name_that_a_file_can_have(tmp_path, irregular):
    for path in (irregular(tmp_path / "module.py"), tmp_path / ("m" * 300 + ".py")):
        check_refused("which is no file", load_module, str(path), "A module must exist")


def test_an_error_is_placed_at_the_innermost_line_of_the_users_code(here):
    (here / "layers_of_mine.py").write_text("import json\n\n\ndef make():\n    return json.loads('{')\n")
    own = here / "model.py"
    own.write_text("import layers_of_mine\n\ndef build(): layers_of_mine.make()\n\ndef wrong(): return 1 / 0\n")
    module, helper = execute_file(own), "`layers_of_mine.py`, line 5"
    # Each of the two is called by this file, which is a user's too, and further out.
    for function, in_own, place in ((module.build, helper, helper), (module.wrong, "line 5", "`model.py`, line 5")):
        with pytest.raises((ValueError, ZeroDivisionError)) as caught:
            function()
        assert line_in(own, caught.value) == f", {in_own}"
        assert place_of(caught.value) == place
    assert place_of(ValueError("never raised")) == ""


POINT = """
from dataclasses import dataclass
@dataclass
class Point:
    x: float
    def of(self):
        return __file__
"""


@pytest.fixture
def forgetting(monkeypatch):
    """Folders and modules of users' files are forgotten at the end."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("nnlo_opt.engine.loading.modules._named", {})
    before = {*sys.modules}
    yield
    for name in sys.modules.keys() - before:
        del sys.modules[name]


def loaded_anew(pickled: bytes) -> str:
    """What a new interpreter makes of a `Point`: the file of its class."""
    program = f"import sys, pickle; sys.path = {json.dumps(sys.path)}; print(pickle.loads({pickled!r}).of())"
    return python(program, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}).expect(0).out.strip()


@pytest.mark.parametrize(
    "name", ["points_of_mine", "colorsys", "points-with-a-line", "points.with.dots", "__points__", "pytest"]
)
def test_a_new_interpreter_finds_the_classes_of_a_file_whatever_its_name(tmp_path, forgetting, name):
    file = tmp_path / f"{name}.py"
    file.write_text(POINT)
    module = execute_file(file)
    is_free = name in ("points_of_mine", "points-with-a-line")
    assert module.__name__ == name if is_free else module.__name__.startswith("nnlo_opt.engine.loading.modules.")
    assert loaded_anew(pickle.dumps(module.Point(0.5))) == str(file)
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "nothing is written beside it"


def test_files_of_one_name_are_two_modules_which_a_new_interpreter_tells_apart(tmp_path, forgetting):
    files = [tmp_path / folder / "points_of_two.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(POINT)
    modules = [execute_file(file) for file in files]
    assert modules[0].__name__ == "points_of_two" != modules[1].__name__
    assert [loaded_anew(pickle.dumps(module.Point(1.0))) for module in modules] == [*map(str, files)]
    assert execute_file(files[0]).__name__ == "points_of_two"


def test_a_module_that_other_code_has_imported_keeps_its_name_and_its_classes(tmp_path, forgetting, monkeypatch):
    (tmp_path / "points_imported.py").write_text(POINT)
    monkeypatch.syspath_prepend(tmp_path)
    import points_imported

    point = points_imported.Point(1.0)
    assert execute_file(tmp_path / "points_imported.py") is not points_imported
    assert sys.modules["points_imported"] is points_imported
    assert pickle.loads(pickle.dumps(point)) == point


@pytest.mark.parametrize("is_package", [False, True])
def test_a_folder_beside_a_file_takes_its_name_if_it_is_a_package(tmp_path, forgetting, is_package):
    (tmp_path / "points_here").mkdir()
    if is_package:
        (tmp_path / "points_here/__init__.py").write_text("")
    (tmp_path / "points_here.py").write_text(POINT)
    module = execute_file(tmp_path / "points_here.py")
    assert (module.__name__ == "points_here") != is_package
    assert loaded_anew(pickle.dumps(module.Point(1.0))) == str(tmp_path / "points_here.py")


def test_the_name_of_the_first_version_stays_for_models_that_keras_has_saved(tmp_path, forgetting):
    (tmp_path / "layers_saved.py").write_text(POINT)
    module = execute_file(tmp_path / "layers_saved.py")
    name = name_of(tmp_path / "layers_saved.py")
    old = [other for other in sys.modules if other.startswith("_model_layers_saved_")]
    assert [sys.modules[other] for other in (name, *old)] == [module, module]


def test_a_file_that_raises_leaves_no_module(tmp_path, forgetting):
    (tmp_path / "raises_at_once.py").write_text("1 / 0")
    check_refused("ZeroDivisionError", execute_file, tmp_path / "raises_at_once.py")
    assert not [name for name in sys.modules if "raises_at_once" in name]
