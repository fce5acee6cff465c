"""Command line parsers, built from the tables of options."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from nnlo_opt.app.commands.process import HelpRequested
from nnlo_opt.app.run.options.table import Option, read
from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.trials import run_directory
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME, RUNS
from nnlo_opt.core.trials.run_lock import may_be_at_work

#: help of the run argument of a command
RUN_HELP = f"name of the run in {RUNS}/, or its folder"


class Parser(argparse.ArgumentParser):
    """Parser that raises ConfigurationError for an invalid command line, so that only one of all ranks prints it.

    Args:
        options: options of the command; their groups are groups in the help.
        add_help: True to add `--help`.
        kwargs: as for `argparse.ArgumentParser`.
    """

    def __init__(self, options: Iterable[Option] = (), *, add_help: bool = True, **kwargs: Any) -> None:
        form = partial(argparse.HelpFormatter, max_help_position=28)
        super().__init__(formatter_class=form, add_help=False, exit_on_error=False, **kwargs)
        # -1e-3 is a value, not an option; argparse only recognises -0.001.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        #: options of the command
        self.options = tuple(options)
        #: required arguments
        self._needed: list[argparse.Action] = []
        #: end of a message about an invalid command line
        self._see = f"`{self.prog} --help` lists the options."
        if add_help:
            self.add_answer("-h", "--help", help="show this help message and exit", answer=self.format_help)
        for title, group in groupby(self.options, key=lambda option: option.group):
            container = self.add_argument_group(title) if title else self
            for option in group:
                container.add_argument(option.flag, *filter(None, [option.also]), **_argument(option))

    def common_help(self) -> str:
        """Return the help of the common options, which fits on a screen."""
        common = [
            replace(option, help=option.help.split(";")[0], shown="", example="", also="")
            for option in self.options
            if option.common
        ]
        texts = {"usage": self.usage, "description": self.description}
        parser = Parser(common, **texts, epilog="All options, each with an example: --help-all", add_help=False)
        return parser.format_help().replace("\n\n", "\n")

    def add_answer(self, *flags: str, help: str, answer: Callable[[], str]) -> None:
        """Add an option that raises HelpRequested with the result of `answer`."""
        self.add_argument(*flags, action=_Answer, const=answer, nargs=0, default=argparse.SUPPRESS, help=help)

    def add_rest(self, metavar: str, text: str) -> None:
        """Store all words from `--` on in the argument `command`; `text`: its help."""
        self.add_argument("command", metavar=metavar, nargs=argparse.REMAINDER, help=text)

    def add_run(self, without: str = "newest") -> None:
        """Add the run argument, for `values_of_run` or for a command with further arguments.

        Its default is the "newest" run or the "newest at work"; "" if a name is required.
        """
        text = RUN_HELP + f"; the {without} one if it is left out" * bool(without)
        kind = partial(run_named, at_work=without != "newest")
        optional: dict[str, Any] = {"nargs": "?", "default": ""} if without else {}
        self.add_argument("run", type=kind, metavar="RUN_DIRECTORY", help=text, **optional)

    def known(self, argv: Sequence[str], *, mixed: bool = False) -> tuple[argparse.Namespace, list[str]]:
        """Return the arguments in `argv`, and unknown words; raises ConfigurationError or HelpRequested.

        `mixed`: True if options may occur between the values of one argument.
        """
        for action in self._actions:  # `given` reports missing ones
            self._needed += [action] * action.required
            action.required = False
        try:
            return self.parse_known_intermixed_args(argv) if mixed else self.parse_known_args(argv)
        except argparse.ArgumentError as error:
            if error.argument_name is None:
                self.error(error.message)
            name = error.argument_name.partition("/")[0]
            option = self._option_string_actions.get(name)
            lacks_value = option is not None and option.nargs != 0
            self._refuse(f"`{name}` {'must be followed by a value' if lacks_value else error.message}")

    def given(self, argv: Sequence[str], positional: Sequence[str] = (), *, mixed: bool = False) -> dict[str, Any]:
        """Return name -> text of the options in `argv`; raises ConfigurationError or HelpRequested.

        Args:
            argv: words of the command line.
            positional: names of options that may all be given by value only, in this order.
            mixed: as for `known`.
        """
        given, words = self.known(argv, mixed=mixed)
        if missing := [action for action in self._needed if getattr(given, action.dest) is None]:
            self.refuse_without(missing[0].metavar or missing[0].dest)
        if words and (len(words) != len(positional) or any(word.startswith("-") for word in words)):
            first = next(iter(" ".join(words).split()), "an empty one")
            hint = did_you_mean(first, self._option_string_actions) or f" {self._see}"
            raise ConfigurationError(
                f"Every argument must be an option of {self.prog} or its value. Received: {first}.{hint}"
            )
        if twice := [name for name in positional if words and hasattr(given, name)]:
            self._refuse(f"`--{twice[0].replace('_', '-')}` must be given once. Received: an option and {words}")
        return vars(given) | dict(zip(positional, words, strict=False))

    def values(self, argv: Sequence[str], *, mixed: bool = False) -> argparse.Namespace:
        """Return all arguments with checked values and defaults; raises ConfigurationError or HelpRequested."""
        given = self.given(argv, mixed=mixed)
        return argparse.Namespace(**{**given, **vars(read(given, self.options))})

    def values_of_run(
        self, argv: Sequence[str], without: str = "newest", *, has_begun: bool = True
    ) -> argparse.Namespace:
        """Like `values`, for a command with a run argument; `without` as for `add_run`.

        `has_begun`: True to refuse a run without a journal.
        """
        self.add_run(without)
        arguments = self.values(argv)
        if has_begun:
            checked_run(arguments.run)
        return arguments

    def error(self, message: str) -> NoReturn:
        self._refuse(f"{message[:1].upper()}{message[1:]}")

    def refuse_without(self, name: object) -> NoReturn:
        """Raise ConfigurationError for the missing argument `name`."""
        self._refuse(f"`{name}` is required")

    def _refuse(self, rule: str) -> NoReturn:
        raise ConfigurationError(f"{rule}. {self._see}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known, name = [*action.choices], action.metavar or action.dest
            hint = did_you_mean(value, known)
            raise ConfigurationError(f"`{name}` must be one of {', '.join(known)}. Received: {value}.{hint}")


def _argument(option: Option) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option; values stay text, and options not given are absent."""
    action = option.kind.action
    argument: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS}
    argument["action"] = argparse.BooleanOptionalAction if action == "switch" else action
    argument["help"] = option.help_text.replace("%", "%%")
    if option.metavar:
        argument["metavar"] = option.metavar
    if action == "extend":
        argument["nargs"] = "+"
    if option.bare is not None:
        argument |= {"nargs": "?", "const": option.bare}
    return argument


class _Answer(argparse.Action):
    """Raises HelpRequested with the result of its constant."""

    def __call__(self, *_: Any) -> NoReturn:
        raise HelpRequested(self.const())


def whole_number(text: str) -> int:
    """Convert the text of a positional argument to an int."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number. Received: {text}") from None


def run_named(name: str, *, at_work: bool = False) -> Path:
    """Return the directory of a run, like `run_directory.run_named`.

    The empty name means the newest run, or the newest that may be `at_work`; a line is printed with its name.
    """
    if name:
        return run_directory.run_named(name)
    runs = Path(RUNS)
    journals = [path for path in runs.glob(f"*/{JOURNAL_NAME}") if not at_work or may_be_at_work(path.parent)]
    what = "run at work" if at_work else "run"
    if not journals:
        raise ConfigurationError(f"A run must be named if there is no {what} in `{runs}`. Received: no name.")
    newest = max(journals, key=lambda path: path.stat().st_mtime).parent
    print(f"The newest {what}: `{newest}`.", file=sys.stderr, flush=True)
    return newest


def checked_run(run: Path) -> Path:
    """Return a run directory; ConfigurationError if it is not one."""
    return run_directory.checked_run(run, f"runs are in `{RUNS}/`")
