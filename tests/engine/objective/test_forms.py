"""Forms of arguments: the table of the guide, as parsers of other people read it."""

import ast
import re
import shlex
from argparse import ArgumentParser, BooleanOptionalAction

import pytest

from nnlo_opt.engine.objective.forms import FORMS, written
from nnlo_opt.engine.objective.template import Template
from tests.helpers.pages import REPOSITORY

PAGE = (REPOSITORY / "docs/guide/scripts.md").read_text()
#: cells of each row of the table of forms, without their quotes
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split(" |")]
    for line in PAGE.splitlines()
    if re.match(r"\| `\{args(:[a-z-]+)?\}` \| `\w+=", line)
]


def parameter(cell):
    name, _, value = cell.partition("=")
    return name, ast.literal_eval(value)


def keywords(cell):
    return eval(f"dict({cell})", {"BooleanOptionalAction": BooleanOptionalAction})


def with_argparse(words, name, cell):
    parser = ArgumentParser()
    parser.add_argument(f"--{name}", **keywords(cell))
    return getattr(parser.parse_args(words), name)


def with_click(words, name, cell):
    import click

    is_switch = cell.startswith('"')
    option = click.Option([cell.strip('"') if is_switch else f"--{name}"], **({} if is_switch else keywords(cell)))
    return click.Command("train", params=[option], callback=lambda **values: values[name]).main(
        words, standalone_mode=False
    )


def with_hydra(words, name, cell):
    """Read `name=value` as hydra reads the values of the table."""
    overrides = dict(word.split("=", 1) for word in words)
    return ast.literal_eval(re.sub(r"\bnull\b", "None", overrides[name]))


#: each parser, with the rows of the table that it reads
READINGS = [
    pytest.param(parse, row, marks=marks, id=f"{parse.__name__} {row[0]} {row[1]}")
    for parse, marks in ((with_argparse, ()), (with_click, pytest.mark.needs("click")), (with_hydra, ()))
    for row in ROWS
    if (parse is with_hydra) == ("hydra" in row[0])
]


def test_the_table_has_every_form():
    assert {row[0] for row in ROWS} == {"{args}", *(f"{{args:{form}}}" for form in FORMS)}


@pytest.mark.parametrize(("form", "given", "shown", "_", "__"), ROWS)
def test_each_row_of_the_table_is_what_a_script_gets(form, given, shown, _, __):
    name, value = parameter(given)
    for text in (form, form.replace("args", name)):
        if text != f"{{{name}}}":
            assert Template(f"train.py {text}").filled({name: value}, {}) == ["train.py", *shlex.split(shown)]


@pytest.mark.parametrize(("parse", "row"), READINGS)
def test_each_row_of_the_table_is_read_by_its_parsers(parse, row):
    form, given, _, for_argparse, for_click = row
    name, value = parameter(given)
    read = parse(Template(form).filled({name: value}, {}), name, for_click if parse is with_click else for_argparse)
    assert (list(read) if isinstance(value, list) else read) == value


@pytest.mark.parametrize("text", ["-1e-05", "-3", "-x", "--lr", "a b", ""])
def test_a_value_that_looks_like_an_option_is_a_value(text):
    assert with_argparse(written("name", text), "name", "type=str") == text


#: as the parser of hydra-core 1.3 reads them
FOR_HYDRA = {
    "relu": "relu",
    "./p/q.txt": "./p/q.txt",
    "-x": "-x",
    "a b": "'a b'",
    "": "''",
    "1": "'1'",
    "1e5": "'1e5'",
    "-inf": "'-inf'",
    "nan": "'nan'",
    "true": "'true'",
    "Null": "'Null'",
    "None": "None",
    "a,b": "'a,b'",
    "a=b": "'a=b'",
    "it's": r"'it\'s'",
    "x\\": r"'x\\'",
    "x\\'y": r"'x\\\'y'",
    None: "null",
    True: "True",
    1e-07: "1e-07",
    (64, ("a b", None)): "[64,['a b',null]]",
}


@pytest.mark.parametrize("value", FOR_HYDRA)
def test_hydra_reads_a_text_as_a_text(value):
    given = [64, ["a b", None]] if isinstance(value, tuple) else value
    assert written("net.kind", given, ["hydra"]) == [f"net.kind={FOR_HYDRA[value]}"]


def test_forms_go_together_and_a_parameter_without_its_condition_has_no_words():
    template = Template("train.py {args:flags,lists,optional} {lr:words} {momentum:words} {decay:optional}")
    template.check(["lr", "momentum", "decay"], ["momentum"])
    point = {"lr": 0.1, "amp": True, "bn": False, "layers": [1e-07, None], "decay": None}
    words = ["train.py", "--lr=0.1", "--amp", "--layers", "1e-07", "None", "--lr", "0.1"]
    assert template.filled(point, {}) == words


def test_an_empty_list_of_repeated_options_is_none():
    assert written("layers", [], ["repeat"]) == []
    assert written("layers", [], ["lists"]) == ["--layers"]
    assert written("layers", [1, 2], ["repeat", "words"]) == ["--layers", "1", "--layers", "2"]
