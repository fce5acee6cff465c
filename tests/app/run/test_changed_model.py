"""A command or a function that a run is resumed with: refused, or said, or the same."""

import shutil
from pathlib import Path

import pytest

from nnlo_opt.app.run.start.changed_model import model_difference, model_remark
from nnlo_opt.core.trials.identity import ModelFile
from nnlo_opt.engine.objective.command import Command
from nnlo_opt.engine.objective.template import Template

COMMAND = "python train.py --log run.log --resume snapshot.pt {args}"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)")
    Path("run.log").write_text("first")


def of_command(text=COMMAND, **given):
    definition = Command(template=Template(text), **given).definition()
    return ModelFile(
        name=definition.name,
        source=str(definition.source),
        sha256=definition.sha256,
        parts=dict(definition.parts),
        notes=dict(definition.notes),
    )


def of_older_version(model):
    """The same command as a version has written it to which all files were alike."""
    return model.replaced(parts=model.parts | model.notes, notes=None)


VERSIONS = [lambda model: model, of_older_version]


@pytest.mark.parametrize("written", VERSIONS, ids=["this version", "an older one"])
def test_a_file_that_the_script_writes_is_said_by_name_and_ends_no_run(written):
    known = written(of_command())
    assert model_difference(known, of_command()) == model_remark(known, of_command()) == ""
    Path("run.log").write_text("first, second")
    Path("snapshot.pt").write_text("new")
    asked = of_command()
    assert model_difference(known, asked) == ""
    assert "the command names have changed since the last start" in model_remark(known, asked)
    assert "`run.log`, `snapshot.pt`" in model_remark(known, asked)
    Path("run.log").unlink()
    assert model_difference(known, of_command()) == ""
    assert "`run.log`" in model_remark(known, of_command())


@pytest.mark.parametrize("written", VERSIONS, ids=["this version", "an older one"])
def test_another_script_command_or_pattern_is_refused_by_name(written):
    known = written(of_command())
    assert "`--command` differs: it was python train.py" in model_difference(known, of_command("python train.py {x}"))
    asked = of_command(patterns=(None, "(?P<value>.*)"))
    assert "`--result-pattern` differs: it was not given" in model_difference(known, asked)
    Path("train.py").write_text("print(2)")
    assert model_difference(known, of_command()) == "the file `train.py` differs"


def test_a_script_that_has_gone_is_refused():
    known = of_command()
    Path("train.py").unlink()
    assert model_difference(known, of_command()) == "the file `train.py` is missing"


def test_a_run_of_an_older_version_has_no_compiled_program():
    shutil.copy("/bin/true", "simulate")
    asked = of_command("./simulate {x}")
    known = asked.replaced(parts={"--command": "./simulate {x}"}, notes=None, sha256="0")
    assert "simulate" in asked.parts
    assert model_difference(known, asked) == ""


# ---------------------------------------------------------------- functions

KNOWN = ModelFile(
    name="objective",
    function="objective",
    sha256="1",
    parts={"objective": "a", "helper": "b"},
    notes={"LIMIT": "3", "NAME": "sha256:0", "IS_ON": "True"},
)


def test_an_older_run_of_a_function_is_known_by_its_checksum_and_a_newer_one_by_its_parts():
    older = KNOWN.replaced(parts={}, notes=None)
    assert model_difference(older, KNOWN) == ""
    assert model_difference(older, KNOWN.replaced(sha256="2")) == (
        "the function `objective`, or a plain value that it names, has changed"
    )
    assert model_remark(older, KNOWN) == ""
    assert model_difference(KNOWN, KNOWN.replaced(sha256="2")) == ""
    assert model_difference(KNOWN, KNOWN.replaced(parts={"objective": "c", "helper": "b"})) == (
        "the function `objective` has changed"
    )


@pytest.mark.parametrize("parts", [{"objective": "a", "helper": "c"}, {"objective": "a"}])
def test_a_called_function_that_has_changed_is_named(parts):
    changed = "the function `helper`, which `objective` calls, has changed"
    assert model_difference(KNOWN, KNOWN.replaced(parts=parts)) == changed


def test_numbers_are_said_with_both_values_and_texts_by_name():
    assert model_remark(KNOWN, KNOWN) == ""
    remark = model_remark(KNOWN, KNOWN.replaced(notes={"LIMIT": "4", "NAME": "sha256:1", "IS_ON": "True", "NEW": "1"}))
    assert "`LIMIT` was 3 and is 4, `NAME`. " in remark
    assert "sha256" not in remark
    remark = model_remark(KNOWN, KNOWN.replaced(notes={"LIMIT": "sha256:2"}))
    assert "`LIMIT`. " in remark, "a number that has become a text is hidden"


def test_a_function_of_a_model_has_one_checksum():
    model = ModelFile(name="net", function="get_model", sha256="1")
    assert model_difference(model, model) == ""
    assert model_difference(model, model.replaced(sha256="2")) == "the function `get_model` has changed"


def test_a_command_in_place_of_a_model_is_another_model():
    assert "the model file has changed" in model_difference(ModelFile(name="net", sha256="1"), of_command())
