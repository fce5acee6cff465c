"""Commands with placeholders."""

import re

import pytest

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.objective.template import Template


def test_values_arrive_as_they_are_and_args_are_those_of_the_point():
    template = Template("""train.py "a b" --name={name} {{{lr}}} {args} {trial}""")
    template.check(["name", "lr", "momentum"], ["momentum"])
    words = template.filled({"name": """$HOME 'x' "y" {z}""", "lr": 1e-07}, {"trial": 3})
    name = """$HOME 'x' "y" {z}"""
    assert words == ["train.py", "a b", f"--name={name}", "{1e-07}", "--name", name, "--lr", "1e-07", "3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a program"),
        ("train.py 'x", "Close the quote"),
        ("train.py {lr", "between every pair of braces"),
        ("train.py x{args}", "a word of its own"),
        ("train.py {lrr}", "Did you mean `lr`?"),
        ("train.py", "no `{lr}`"),
        ("train.py {lr} {trial}", "'trial'; rename it"),
    ],
)
def test_a_wrong_command_is_refused(text, said):
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Template(text).check(["lr", "trial"] if "trial" in text else ["lr"], [])


def test_a_parameter_with_a_condition_is_for_args():
    with pytest.raises(ConfigurationError, match=r"write `\{args\}`"):
        Template("train.py {lr}").check(["lr"], ["lr"])
