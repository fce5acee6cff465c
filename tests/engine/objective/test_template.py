"""Commands with placeholders."""

import re

import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.objective.template import Template


def test_values_arrive_as_they_are_and_args_are_those_of_the_point():
    template = Template("""train.py "a b" --name={name} {{{lr}}} {args} {trial}""")
    template.check(["name", "lr", "momentum"], ["momentum"])
    words = template.filled({"name": """$HOME 'x' "y" {z}""", "lr": 1e-07}, {"trial": 3})
    name = """$HOME 'x' "y" {z}"""
    assert words == ["train.py", "a b", f"--name={name}", "{1e-07}", f"--name={name}", "--lr=1e-07", "3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a program"),
        ("train.py 'x", "Close the quote"),
        ("train.py {lr", "between every pair of braces"),
        ("train.py x{args}", "a separate word"),
        ("train.py {lrr}", "Did you mean `lr`?"),
        ("train.py", "no `{lr}`"),
        ("train.py {lr} {trial}", "'trial'; rename it"),
        ("train.py {args:flag}", "Did you mean `flags`?"),
        ("train.py {lr:}", "whose form '' is none of words, hydra"),
        ("train.py {lr:hydra,flags}", "exclude each other"),
        ("train.py {args:no-flags,flags}", "exclude each other"),
        ("train.py {lrr:flags}", "Did you mean `lr`?"),
        ("train.py --lr={lr:words}", "must be a separate word"),
        ("train.py {lr} {folder:words}", "Write `{folder}`"),
    ],
)
def test_a_wrong_command_is_refused(text, said):
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Template(text).check(["lr", "trial"] if "trial" in text else ["lr"], [])


def test_a_parameter_with_a_condition_is_for_args():
    with pytest.raises(ConfigurationError, match=r"write `\{args\}` .* or `\{lr:words\}`"):
        Template("train.py {lr}").check(["lr"], ["lr"])
    for text in ("{lr:words}", "{args:flags}", "{args}"):
        Template(f"train.py {text}").check(["lr"], ["lr"])


def test_commands_that_differ_in_the_words_of_args_alone_are_the_same_search():
    texts = {Template(f"train.py {text} {{{{args}}}}").fingerprint_text for text in ("{args}", "{args:words}")}
    assert texts == {"train.py {args} {{args}}"}
    assert Template("train.py {args:flags}").fingerprint_text == "train.py {args:flags}"
    old = Template.of_first_version("train.py {args} {{args}}")
    assert old.filled({"lr": 0.1}, {}) == ["train.py", "--lr", "0.1", "{args}"]
