import os
import sys

import pytest

from nnlo_opt.user_files import execute_file, line_in, load_module, place_of
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
