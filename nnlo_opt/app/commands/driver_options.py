"""Options of a driver, from its command line, a file, or an earlier run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnlo_opt.app.commands.driver_parsers import GAN_DRIVER, GAN_OPTIONS, POSITIONAL, driver_parser, given_of, normalise
from nnlo_opt.app.commands.earlier_runs import training_again
from nnlo_opt.app.commands.try_output import tried_output
from nnlo_opt.app.run.options.making import optimization_options, training_options
from nnlo_opt.app.run.options.table import Option, read
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.files import regular

#: name of the option, and its shortest unambiguous form
_NAME, _SHORTEST = "--options", "--option"
#: most aliases in a file: even nested ones expand it to at most 40 times its length
_MOST_ALIASES = 10


def driver_options(program: str, argv: Sequence[str]) -> Options:
    """Return the options of a driver; raises ConfigurationError or HelpRequested."""
    parser = driver_parser(program)
    known, words = parser.known(normalise(argv))
    if "options" in known:
        argv = _with_options_of_file(argv, vars(known) | dict.fromkeys(POSITIONAL if words else ()), parser.options)
    given, remarks = given_of(program, argv)
    if "try_output" in given:
        raise tried_output(given)
    if program == "OptimizationDriver":
        options = optimization_options(given, argv)
    elif program == GAN_DRIVER:
        own = read(parser.given(normalise(argv), POSITIONAL), GAN_OPTIONS)
        point = {name: value for name, value in vars(own).items() if value is not None}
        options = replace(training_options(given, argv), point=point)
    else:
        options = training_again(given, argv) if "from_run" in given else training_options(given, argv)
    return replace(options, remarks=(*options.remarks, *remarks), program=program)


# ---------------------------------------------------------------- a file of YAML, `--options run.yaml`


def _with_options_of_file(argv: Sequence[str], given: Mapping[str, Any], options: Iterable[Option]) -> list[str]:
    """Return a command line with the options of its file inserted; it is recorded, and a resume does not need the file.

    Args:
        argv: words of the command line.
        given: name -> text of the options in `argv`, including `options`, the path of the file; they take precedence
            over the file.
        options: all options of the command.

    Raises:
        ConfigurationError: the file cannot be read, or has an unknown option.
    """
    path = Path(given["options"])
    by_name = {option.name: option for option in options if option.name != "options"}
    by_name |= {option.also.removeprefix("--").replace("-", "_"): option for option in by_name.values() if option.also}
    words, seen = list[str](), set[str]()
    for key, value in _read(path):
        option = by_name.get(str(key).replace("-", "_"))
        if option is None:
            hint = did_you_mean(str(key).replace("_", "-"), [name.replace("_", "-") for name in by_name])
            raise ConfigurationError(
                f"Each name in `{path}` (`--options`) must be an option of the command without `--`. Received: "
                f"{key}.{hint or ' `--help-all` lists the options.'}"
            )
        if option.name in seen:
            raise ConfigurationError(
                f"Each option must be in `{path}` (`--options`) once. Received: {key} a second time. Remove one; "
                "an option that may be repeated takes a list."
            )
        seen.add(option.name)
        if option.name not in given:
            words += _words(option, value, path)
    return [*_without_file(argv), *words]


def _read(path: Path) -> list[tuple[Any, Any]]:
    """Return (name, value) pairs in order; a mapping would keep only the last of several values."""
    import yaml

    try:
        text = regular(path).read_bytes()
        if sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)) > _MOST_ALIASES:
            raise ValueError(f"more than {_MOST_ALIASES} aliases, which may stand for any number of values")
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            loader.flatten_mapping(node)
            return [tuple(loader.construct_object(part, deep=True) for part in pair) for pair in node.value]
        data = None if node is None else loader.construct_object(node)
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigurationError(
            f"`--options` must name a file of YAML. Received: `{path}` ({why}). Correct it."
        ) from None
    raise ConfigurationError(
        f"`--options` must name a file with a mapping of options. Received: `{path}`, which holds "
        f"{type(data).__name__}. Write a line `epochs: 10` for `--epochs 10`."
    )


def _words(option: Option, value: Any, path: Path) -> Iterator[str]:
    """Yield the words of an option with a YAML value; a list repeats the option, null omits it."""
    action = option.kind.action
    if value is None:
        return
    if isinstance(value, bool) and (action in ("store_true", "switch") or option.bare is not None):
        if value or action == "switch":
            yield option.flags[0 if value else -1]
        return
    if action == "append" and isinstance(value, Mapping) and option.name == "fix":
        value = [f"{name}={item}" for name, item in value.items()]
    repeats = action in ("append", "extend")
    if action == "store_true" or (isinstance(value, list) and not repeats):
        rule = "true or false" if action == "store_true" else "a single value"
        raise ConfigurationError(f"`{option.name}` in `{path}` must be {rule}. Received: {value}.")
    for item in value if isinstance(value, list) else [value]:
        is_point = isinstance(item, Mapping) and repeats
        text = ",".join(f"{name}={part!r}" for name, part in item.items()) if is_point else item
        yield f"{option.flag}={text}"


def _without_file(argv: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line without `--options FILE`."""
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if name.startswith(_SHORTEST) and _NAME.startswith(name):
            if not equals:
                next(words, None)
        else:
            yield word
