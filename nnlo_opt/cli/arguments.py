"""Parsers of the commands, made from the table of options."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from nnlo_opt.cli.gan import GAN_DRIVER, GAN_OPTIONS, for_gan, for_search
from nnlo_opt.cli.options_file import in_full
from nnlo_opt.errors import ConfigurationError, did_you_mean
from nnlo_opt.run.option_table import OPTIMIZATION_OPTIONS, RUNS, TRAINING_OPTIONS, Option, read
from nnlo_opt.run.options import Options, optimization_options, training_options
from nnlo_opt.trials import run_directory
from nnlo_opt.trials.run_directory import JOURNAL_NAME
from nnlo_opt.trials.run_lock import may_be_at_work

#: help of the argument of a command about a run
RUN_HELP = f"name of the run in {RUNS}/, or its folder"
#: options that TrainingDriver and MPIDriver also take by their values alone, all three in this order
POSITIONAL = ("model", "train_data", "val_data")
#: model of a search without `--model` and `--example`
DEFAULT_EXAMPLE = "mnist"
#: name of the program of mpi_learn
MPI_DRIVER = "MPIDriver"
#: options without effect here, with the reason
_IDLE: Mapping[str, str] = {
    "tf": "`--tf` changes nothing here: `--keras-backend` chooses what Keras computes with, TensorFlow if it is left "
    "out.",
    "profile": "`--profile` changes nothing here: it was for Theano. `--timeline` and `--monitor` measure.",
}
#: options that mpi_learn took and never used
_NEVER_USED = ("elastic_lr", "elastic_momentum")


class HelpRequested(Exception):
    """Text that `--help` asks for; rank 0 prints it."""


class Parser(argparse.ArgumentParser):
    """Parser that raises ConfigurationError for a wrong command line: one rank of many prints it, and all leave.

    Args:
        options: options of the command; a group of them is a group in the help.
        kwargs: as of `argparse.ArgumentParser`.
    """

    def __init__(self, options: Iterable[Option] = (), **kwargs: Any) -> None:
        super().__init__(formatter_class=partial(argparse.HelpFormatter, max_help_position=28), **kwargs)
        # -1e-3 is a value too, and no option; argparse itself knows -0.001 only.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        #: options of the command
        self.options = tuple(options)
        for title, group in groupby(self.options, key=lambda option: option.group):
            container = self.add_argument_group(title) if title else self
            for option in group:
                container.add_argument(option.flag, *filter(None, [option.also]), **_argument(option))

    def common_help(self) -> str:
        """Return the help of the common options, which fits a screen."""
        common = [
            replace(option, help=option.help.split(";")[0], shown="", example="", also="")
            for option in self.options
            if option.common
        ]
        texts = {"usage": self.usage, "description": self.description}
        parser = Parser(common, **texts, epilog="All options, each with an example: --help-all", add_help=False)
        return parser.format_help().replace("\n\n", "\n")

    def add_rest(self, metavar: str, text: str) -> None:
        """Have all words from `--` on be the argument `command`; `text`: its help."""
        self.add_argument("command", metavar=metavar, nargs=argparse.REMAINDER, help=text)

    def given(self, argv: Sequence[str] | None, positional: Sequence[str] = ()) -> dict[str, Any]:
        """Return the texts of the options in `argv` by name; ConfigurationError or HelpRequested.

        Args:
            argv: words of the command line.
            positional: names of options that may be given all together by their values alone, in this order.
        """
        given, words = self.parse_known_args(argv)
        if words and (len(words) != len(positional) or any(word.startswith("-") for word in words)):
            self.error(f"unrecognized arguments: {' '.join(words)}")
        if twice := [name for name in positional if words and hasattr(given, name)]:
            self.error(f"argument --{twice[0].replace('_', '-')}: must be given once. Received: an option and {words}.")
        return vars(given) | dict(zip(positional, words, strict=False))

    def values(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Return all arguments with checked values and defaults; ConfigurationError or HelpRequested."""
        given = self.given(argv)
        return argparse.Namespace(**{**given, **vars(read(given, self.options))})

    def error(self, message: str) -> NoReturn:
        see, rule = f"`{self.prog} --help` lists the options.", f"{message[:1].upper()}{message[1:]}"
        if found := re.fullmatch(r"argument ([^/:]+).*?: (.+)", message):
            rule = f"`{found[1]}` {found[2].replace('expected one argument', 'must be followed by a value')}"
        if found := re.fullmatch(r"(`.+`) invalid choice: '(.*)' \(choose from (.+)\)", rule):
            known = found[3].replace("'", "")
            see = f"Received: {found[2]}.{did_you_mean(found[2], known.split(', '))}"
            rule = f"{found[1]} must be one of {known}"
        elif found := re.fullmatch("(`.+`) invalid int value: '(.*)'", rule):
            rule, see = f"{found[1]} must be a whole number", f"Received: {found[2]}. {see}"
        elif found := re.fullmatch("the following arguments are required: ([^,]+).*", message):
            rule = f"`{found[1]}` is required"
        elif found := re.fullmatch("unrecognized arguments: (.*)", message):
            raise ConfigurationError(self._unknown(found[1]))
        raise ConfigurationError(f"{rule}. {see}")

    def _unknown(self, arguments: str) -> str:
        first = next(iter(arguments.split()), "an empty one")
        hint = did_you_mean(first, self._option_string_actions) or f" `{self.prog} --help` lists the options."
        return f"Every argument must be an option of {self.prog} or its value. Received: {first}.{hint}"


def _argument(option: Option) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option; values stay texts, and options not given are absent."""
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


class _Help(argparse.Action):
    """Raises HelpRequested for `--help` and `--help-all`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        raise HelpRequested(parser.format_help() if self.dest == "help_all" else parser.common_help())


def run_parser(command: str, options: Iterable[Option], description: str, without: str = "newest") -> Parser:
    """Return the parser of a command of `nnlo-opt` about a run.

    Without a name this is the "newest" run, or the "newest at work"; "" if a name is needed.
    """
    parser = Parser(options, prog=f"nnlo-opt {command}", description=description)
    text = RUN_HELP + f"; the {without} one if it is left out" * bool(without)
    kind = partial(run_named, at_work=without != "newest")
    optional: dict[str, Any] = {"nargs": "?", "default": ""} if without else {}
    parser.add_argument("run", type=kind, metavar="RUN_DIRECTORY", help=text, **optional)
    return parser


def run_named(name: str, *, at_work: bool = False) -> Path:
    """Return the directory of a run: a path, or a name in the folder of runs, as for `--checkpoint`.

    The empty name means the newest run there, or the newest one that may be `at_work`; a line says which.
    """
    path, inside = Path(name), Path(RUNS, name)
    if name:
        is_path = os.sep in name or (path / JOURNAL_NAME).exists()
        return path if is_path or (path.exists() and not (inside / JOURNAL_NAME).exists()) else inside
    journals = [path for path in inside.glob(f"*/{JOURNAL_NAME}") if not at_work or may_be_at_work(path.parent)]
    what = "run at work" if at_work else "run"
    if not journals:
        raise ConfigurationError(f"A run must be named if there is no {what} in `{inside}`. Received: no name.")
    newest = max(journals, key=lambda path: path.stat().st_mtime).parent
    print(f"The newest {what}: `{newest}`.", file=sys.stderr, flush=True)
    return newest


def checked_run(run: Path) -> Path:
    """Return a run directory; ConfigurationError if it is none."""
    return run_directory.checked_run(run, f"runs are in `{RUNS}/`")


def optimization_parser() -> Parser:
    """Return the parser of OptimizationDriver."""
    return driver_parser(
        "OptimizationDriver",
        "Search hyperparameters: rank 0 coordinates, every other rank trains in a block of --block-size ranks.",
        OPTIMIZATION_OPTIONS,
    )


def training_parser(program: str = "TrainingDriver") -> Parser:
    """Return the parser of TrainingDriver, or of `program` with the same options."""
    return driver_parser(
        program,
        "Train one model on all ranks: rank 0 is the master, the others are its workers; one rank trains by itself.",
        TRAINING_OPTIONS,
    )


def driver_parser(program: str, description: str, options: Iterable[Option], needed: str = "--model MODEL ") -> Parser:
    """Return the parser of a driver with these options, and its two helps; `needed`: options that the usage shows."""
    parser = Parser(
        options,
        prog=program,
        usage=f"mpirun -np RANKS {program} {needed}[options]",
        description=description,
        add_help=False,
        epilog="Options may be written with - or _ and shortened while they stay unambiguous. TIME is in seconds, or "
        "as 90m, 2h or 1:30:00.",
    )
    asks: dict[str, Any] = {"action": _Help, "nargs": 0, "default": argparse.SUPPRESS}
    parser.add_argument("-h", "--help", help="show the common options and exit", **asks)
    _add_former_options(parser)
    parser.add_argument("--help-all", help="show all options, with examples, and exit", **asks)
    return parser


def given_of(program: str, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the texts of the options in a command line of a driver, by their names of today.

    Returns:
        Texts by name, and sentences for the user.

    Raises:
        ConfigurationError: the command line is wrong, or there is no driver `program`.
        HelpRequested: it asks for help.
    """
    parser = _parser_of(program)
    if program == "OptimizationDriver":
        given, remarks = as_today(parser.given(normalise(argv)))
        if not given.keys() & {"model", "example"}:
            given["example"] = DEFAULT_EXAMPLE
            remarks.append(f"Without `--model` the built-in model {DEFAULT_EXAMPLE} is searched, as NNLO did.")
        return dict(for_search(given)), remarks
    given, remarks = as_today(parser.given(normalise(argv), POSITIONAL), program)
    return for_gan(given, remarks) if program == GAN_DRIVER else (given, remarks)


def _parser_of(program: str) -> Parser:
    if program == "OptimizationDriver":
        return optimization_parser()
    return gan_parser() if program == GAN_DRIVER else training_parser(program)


def _with_file(program: str, argv: Sequence[str]) -> Sequence[str]:
    """Return a command line of a driver with the options of the file that `--options` names, if it names one."""
    parser = _parser_of(program)
    given, words = parser.parse_known_args(normalise(argv))
    if "options" not in given:
        return argv
    return in_full(argv, vars(given) | dict.fromkeys(POSITIONAL if words else ()), parser.options)


def parse_optimization(argv: Sequence[str]) -> Options:
    """Return the options of OptimizationDriver; ConfigurationError or HelpRequested."""
    argv = _with_file("OptimizationDriver", argv)
    given, remarks = given_of("OptimizationDriver", argv)
    return with_remarks(optimization_options(given, argv), remarks)


def parse_training(argv: Sequence[str], program: str = "TrainingDriver") -> Options:
    """Return the options of TrainingDriver, or of `program`; ConfigurationError or HelpRequested."""
    argv = _with_file(program, argv)
    given, remarks = given_of(program, argv)
    if "from_run" not in given:
        return with_remarks(training_options(given, argv), remarks, program)
    from nnlo_opt.cli.earlier_runs import training_again

    return with_remarks(training_again(given, argv), remarks, program)


def _add_former_options(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take options by their former names, which its help does not show."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--masters", dest="n_masters", **hidden)
    parser.add_argument("--easgd", dest="mode", action="store_const", const="easgd", **hidden)
    for name in _IDLE:
        parser.add_argument(f"--{name}", action="store_true", **hidden)


def as_today(given: Mapping[str, Any], program: str = "") -> tuple[dict[str, Any], list[str]]:
    """Return options by their names of today, and sentences for the user about options without effect."""
    remarks = [sentence for name, sentence in _IDLE.items() if name in given]
    idle = set(_IDLE)
    if program == MPI_DRIVER:
        for name in _NEVER_USED:
            if name in given:
                flag = f"--{name.replace('_', '-')}"
                remarks.append(f"`{flag} {given[name]}` is left out, as mpi_learn never used it; TrainingDriver does.")
        idle |= {*_NEVER_USED}
    return {name: value for name, value in given.items() if name not in idle}, remarks


def with_remarks(options: Options, remarks: Sequence[str], program: str = "") -> Options:
    """Return the options of the command `program`, with further sentences for the user."""
    return replace(options, remarks=(*options.remarks, *remarks), program=program)


def normalise(argv: Sequence[str]) -> list[str]:
    """Return `--train_data=x` as `--train-data=x`: NNLO wrote some options with underscores."""
    return [re.sub("^--[^=]*", lambda name: name[0].replace("_", "-"), argument) for argument in argv]


def gan_parser() -> Parser:
    """Return the parser of `MPIGDriver`."""
    what = "Train the GAN of calorimeter showers, as TrainingDriver trains a model."
    # Its model is built in: `--model`, which NNLO's command lines give, is no common option.
    others = (replace(option, common=option.common and option.name != "model") for option in TRAINING_OPTIONS)
    return driver_parser(GAN_DRIVER, what, (*others, *GAN_OPTIONS), needed="")


def parse_gan(argv: Sequence[str]) -> Options:
    """Return the options of `MPIGDriver`; ConfigurationError or HelpRequested."""
    argv = _with_file(GAN_DRIVER, argv)
    given, remarks = given_of(GAN_DRIVER, argv)
    asked = gan_parser().given(normalise(argv), POSITIONAL)
    own = {name: value for name, value in vars(read(asked, GAN_OPTIONS)).items() if value is not None}
    return replace(with_remarks(training_options(given, argv), remarks, GAN_DRIVER), point=own)


#: driver -> function that returns its options
PARSERS: Mapping[str, Callable[[Sequence[str]], Options]] = {
    "OptimizationDriver": parse_optimization,
    "TrainingDriver": parse_training,
    MPI_DRIVER: partial(parse_training, program=MPI_DRIVER),
    GAN_DRIVER: parse_gan,
}
