"""A parser that raises what is wrong with a command line instead of printing it."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from nnlo_opt.errors import ConfigurationError


class HelpRequested(Exception):
    """`--help`: the text is to be printed by rank 0."""


class Parser(argparse.ArgumentParser):
    """Raises ConfigurationError: with many ranks one of them has to say it, and all have to leave."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # -1e-3 is a value too, and no option; argparse itself knows -0.001 only.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        if message.startswith("argument ") and ": " in text:
            option, rule = text.split(": ", 1)
            raise ConfigurationError(f"`{option.split('/')[0]}` {rule}")
        if message.startswith("unrecognized arguments: "):
            raise ConfigurationError(self._unknown(message.removeprefix("unrecognized arguments: ")))
        raise ConfigurationError(f"{message[:1].upper()}{message[1:]}; `{self.prog} --help` lists the options.")

    def _unknown(self, arguments: str) -> str:
        first = next(iter(arguments.split()), "an empty one")
        close = difflib.get_close_matches(first, self._option_string_actions, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"see `{self.prog} --help`."
        return f"Every argument must be an option of {self.prog} or its value. Received: {first}; {hint}"


class Help(argparse.Action):
    """`--help` as HelpRequested."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show this text and leave")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        raise HelpRequested(parser.format_help())


def refused(sentence: str) -> type[argparse.Action]:
    """The action of an option that belongs elsewhere, as the sentence says."""

    class Refuse(argparse.Action):
        def __call__(self, *_: Any, **__: Any) -> None:
            raise ConfigurationError(sentence)

    return Refuse
