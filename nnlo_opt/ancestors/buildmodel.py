"""`BuildModel`: writes a model's architecture and initial weights as Keras or torch files.

BuildModel mnist nb_filters=16 dropout=0.3 --weights

For a built-in model the files are those of NNLO and mpi_learn: NAME_arch.json and NAME_weights.h5, or NAME_arch.torch
(TorchScript) and NAME_weights.torch.
"""

import argparse
import ast
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.run.options.kinds import FLAG, PATH
from nnlo_opt.app.run.options.table import SEED, Option
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.engine.models.builders import builtin_names, open_model
from nnlo_opt.engine.models.framework import framework_name, framework_named

# fmt: off
#: options of `BuildModel`
OPTIONS = (
    Option("out", "FILE", PATH, shown="<name>_arch.json, for torch <name>_arch.torch", example="model.json",
        help="file to write"),
    Option("weights", "", FLAG, default=False,
        help="write the initial weights as <name>.weights.h5, in the format of Keras 3; without it those of a "
             "built-in model are written as <name>_weights.h5, in the format of Keras 2"),
    replace(SEED, help="seed of the initial weights"),
)
# fmt: on


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Write the architecture of a model, and its initial weights."""
    parser.add_argument("model", help=f"a Python file with get_model, or one of: {', '.join(builtin_names())}")
    parser.add_argument("parameters", nargs="*", metavar="name=value", help="parameters of get_model")
    arguments = parser.values(argv)
    definition = open_model(arguments.model)
    if definition.kind != "model":
        raise ConfigurationError(
            f"Only a model can be built. Received: {arguments.model}, which defines `objective`. "
            "Name a module with `get_model`."
        )
    if definition.trains_itself:
        raise ConfigurationError(
            f"Only one model can be built. Received: {arguments.model}, of several models that are trained "
            "together. Train it: the models are saved at the end."
        )
    parameters = _parameters(arguments.parameters)
    definition.check_parameters(parameters)
    is_of_torch = framework_name(definition.source) == "torch"
    out = Path(arguments.out or f"{definition.name}_arch.{'torch' if is_of_torch else 'json'}")
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ConfigurationError(
            f"`--out` must be a file in a folder that can be written to. Received: {out}. Name another file."
        )
    try:
        # Last, because importing a framework takes seconds: everything else is checked before.
        framework = framework_named("torch" if is_of_torch else "keras")
        framework.import_framework(os.cpu_count() or 1)
        framework.set_seed(arguments.seed)
        model = definition.build(parameters, framework)
        paths = _written_torch(model, out) if is_of_torch else _written(model, out, arguments)
    except TrialError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(f"the output file must be writable. Received: {error}.") from error
    for path in paths:
        print(f"Wrote {path}")


def _parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Return name -> value; a value is parsed as a Python literal if possible, else it is text."""
    parameters: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in parameters:
            raise ConfigurationError(
                f"A parameter must be given once, as name=value. Received: {text!r}. Write, for example, dropout=0.5."
            )
        try:
            parameters[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            parameters[name] = value
    return parameters


def _written(model: Any, out: Path, arguments: argparse.Namespace) -> list[Path]:
    """Write a model of Keras; return the paths."""
    from nnlo_opt.engine.models.legacy.weights import save_legacy_weights

    try:
        architecture = model.to_json()
    except Exception as error:
        raise ConfigurationError(
            f"A model must be made of layers that Keras can describe as JSON. Received: {arguments.model}, "
            f"{type(error).__name__}. Give custom layers a `get_config`."
        ) from error
    atomic_write(out, architecture)
    name = out.stem.removesuffix("_arch")
    if not arguments.weights:
        if arguments.model not in builtin_names():
            return [out]
        weights = out.with_name(f"{name}_weights.h5")
        save_legacy_weights(model, weights)
        return [out, weights]
    weights = out.with_name(f"{name}.weights.h5")
    with tempfile.TemporaryDirectory() as folder:
        # Keras requires the suffix, which a temporary file beside the target would not have.
        temporary = Path(folder) / "model.weights.h5"
        model.save_weights(temporary)
        atomic_write(weights, temporary.read_bytes())
    return [out, weights]


def _written_torch(model: Any, out: Path) -> list[Path]:
    """Write a model of torch; return the paths."""
    from nnlo_opt.engine.models.torch.framework import save_files

    weights = out.with_name(f"{out.stem.removesuffix('_arch')}_weights.torch")
    save_files(model, out, weights)
    return [out, weights]
